# `make pong` trains an agent on Pong, `make test` runs the tests. Both create .venv first, if it does not exist.
PYTHON ?= $(firstword $(shell for v in 3.12 3.11 3.13 3.14; do python$$v -c "import sys" >/dev/null 2>&1 && command -v python$$v; done) python3)
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0
BACKEND ?= native

# A waiting OpenMP thread must not occupy a core that emulation could use.
export OMP_WAIT_POLICY := PASSIVE

.PHONY: pong test test-processes test-cluster test-integrations test-exact test-exact-gpu test-gpu-code test-browser quick lint types docs wheel test-wheel curves bench-sb3 bench-ranks bench-threads reports scores zoo bench-async soak clean help

help:
	@echo "make pong    install, then train on Pong to a mean score of 18 over 100 episodes (SEED=0, BACKEND=native or ale)"
	@echo "make test    install the test dependencies and run the tests, except those below; .ci/run runs all of CI but test-exact-gpu"
	@echo "make test-processes   test real commands, ranks, launchers and servers, each a process of its own; minutes"
	@echo "make test-cluster   test failing ranks, hosts and Slurm jobs; needs root and Debian; minutes"
	@echo "make test-exact   compare every game with ale-py, frame by frame; minutes"
	@echo "make test-exact-gpu   compare 38 games in the GPU kernels, run on the CPU, with ale-py; half an hour or more"
	@echo "make test-gpu-code   compile the GPU kernels without a GPU, check their resources, simulate them; minutes"
	@echo "make test-integrations   test TorchRL, RLlib, W&B, ONNX and rliable, in an environment of their own; minutes"
	@echo "make test-browser   test dashboard and race in Debian's chromium; minutes"
	@echo "make quick   run the unit tests only"
	@echo "make lint    check names, imports and line lengths with ruff"
	@echo "make types   check the types of the public API with mypy"
	@echo "make docs    build the documentation into site/; warnings are errors"
	@echo "make wheel   build the sdist, and the wheel from it, into dist/"
	@echo "make test-wheel   install the wheel in an empty environment and use it there; minutes"
	@echo "make curves  write learning curves of every algorithm on Pong to benchmarks/results; resumable, hours"
	@echo "make scores  train what the table of scores lacks, then write it; resumable, weeks on a small machine"
	@echo "make zoo     train and store the agents that are part of the package; resumable, hours"
	@echo "make bench-async    measure frames to a score with 1 to 8 actor-learners"
	@echo "make soak    run on Ray with a kill -9 every 20 s; ten minutes, and as long without kills"
	@echo "make bench-threads   compare too many threads per rank with one"
	@echo "make reports   write example profiles and scaling studies to benchmarks/results; needs an idle machine"
	@echo "make bench-sb3, bench-ranks   compare with Stable-Baselines3; compare 1 and 2 MPI ranks"

# torch is installed first, on its own, so that no other package selects its version. On Linux, PyPI's build installs
# gigabytes of CUDA libraries; PyTorch's own index has a CPU-only build:
#   make pong TORCH_INDEX="--index-url https://download.pytorch.org/whl/cpu"
TORCH_INDEX ?=

$(VENV)/.torch:
	$(PYTHON) -c "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))" || { echo "parcade needs Python 3.11 to 3.14; got $$($(PYTHON) --version); use: make PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0" $(TORCH_INDEX)
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	@touch $@

pong: $(VENV)/.installed
	$(BIN)/parcade train pong --preset pong_fast --backend $(BACKEND) --seed $(SEED) --keep-policy-frames 200000

# Two files run in parallel; every test uses one thread, for bit-exact comparisons.
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not (processes or exact or exact_gpu or cluster or gpu_code or integrations or browser)" tests

test-processes: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "processes and not (cluster or gpu_code)" tests

test-cluster: $(VENV)/.installed-test
	tests/cluster/install.sh $(BIN)/python
	PARCADE_MPICH=$(CURDIR)/.venv-mpich $(BIN)/python -m pytest -q -m cluster tests

# RLlib requires an older Gymnasium than the other tests use.
.venv-integrations/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0" $(TORCH_INDEX)
	.venv-integrations/bin/python -m pip install --quiet --disable-pip-version-check -e ".[human,onnx,pettingzoo,rllib,sb3,torchrl,wandb]" "pandas<3" "pytest>=8" "rliable>=1.2" "supersuit>=3.11"
	@touch $@

test-integrations: .venv-integrations/.installed
	.venv-integrations/bin/python -m pytest -q -m integrations tests/integrations tests/suite

test-exact: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n 2 -m exact tests/atari

test-exact-gpu: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -m exact_gpu tests/atari

$(VENV)/.installed-cuda: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[cuda]"
	@touch $@

# The GPU kernels, as machine code, in numba's simulator and run on the CPU, and compiled networks; needs no GPU.
test-gpu-code: $(VENV)/.installed-cuda
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "gpu_code and not exact_gpu" tests

# The dashboard in a real browser: Debian's chromium, or the program that PARCADE_CHROMIUM names.
test-browser: $(VENV)/.installed-test
	tests/web/install.sh
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "playwright>=1.50" "axe-playwright-python>=0.1.4"
	$(BIN)/python -m pytest -q -m browser tests

quick: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -m quick tests

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .

types: $(VENV)/.installed-test
	$(BIN)/mypy

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	@touch $@

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(VENV)/.installed-test
	rm -rf build dist *.egg-info
	$(BIN)/python -m build

test-wheel: wheel
	tests/wheel/use.sh $(BIN)/python dist/*.whl

curves: $(VENV)/.installed-test
	$(BIN)/python benchmarks/curves.py

bench-sb3: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "stable-baselines3==2.9.2" opencv-python-headless
	$(BIN)/python benchmarks/against_sb3.py

scores: $(VENV)/.installed-test
	$(BIN)/python benchmarks/scores.py

zoo: $(VENV)/.installed-test
	$(BIN)/python benchmarks/zoo.py

bench-async: $(VENV)/.installed-test
	$(BIN)/python benchmarks/async_speedup.py

soak: $(VENV)/.installed-test
	$(BIN)/python benchmarks/soak.py

bench-threads: $(VENV)/.installed-test
	$(BIN)/python benchmarks/oversubscription.py

reports: $(VENV)/.installed-test
	$(BIN)/python benchmarks/reports.py

bench-ranks: $(VENV)/.installed-test
	$(BIN)/python benchmarks/ranks.py

clean:
	rm -rf $(VENV) .venv-mpich .venv-integrations build dist site *.egg-info .pytest_cache
