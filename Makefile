# parcade: `make pong` learns Pong, `make test` runs the tests. Both make .venv first; a second call starts at once.
PYTHON ?= $(firstword $(shell for v in 3.12 3.11 3.13; do python$$v -c "import sys" >/dev/null 2>&1 && command -v python$$v; done) python3)
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0
BACKEND ?= native

# A waiting OpenMP thread must not burn a core that emulation could use.
export OMP_WAIT_POLICY := PASSIVE

.PHONY: pong test test-cluster test-exact test-exact-gpu test-gpu-code quick lint curves bench-sb3 bench-ranks bench-threads reports results-cray bench-async soak clean help

help:
	@echo "make pong    install, then learn Pong until the mean score of 100 games is 18 (SEED=0, BACKEND=native or ale)"
	@echo "make test    install what the tests need, then run them, but for those below; .ci/run runs what CI does"
	@echo "make test-cluster   ranks, hosts and Slurm that fail; root, Debian; minutes"
	@echo "make test-exact   every game against ale-py, frame by frame; minutes"
	@echo "make test-exact-gpu   38 games on the GPU's kernels, run on the CPU, against ale-py; minutes"
	@echo "make test-gpu-code   compile the GPU's kernels without a GPU, against bounds, and simulate them; minutes"
	@echo "make quick   the unit tests alone"
	@echo "make lint    names, imports, lines: ruff"
	@echo "make curves  Pong curves of every algorithm into benchmarks/results; resumable, hours"
	@echo "make results-cray   four games x PPO, A2C, IMPALA, Ape-X; resumable, days on a small machine"
	@echo "make bench-async    frames to a score with 1 to 8 actor-learners"
	@echo "make soak    a run on Ray with a kill -9 every 20 s; ten minutes and as long undisturbed"
	@echo "make bench-threads   too many threads a rank against one"
	@echo "make reports   example profiles and scaling studies into benchmarks/results; wants a quiet machine"
	@echo "make bench-sb3, bench-ranks   against Stable-Baselines3; 1 against 2 MPI ranks"

# torch comes first and alone, so that nothing else chooses its version. On Linux, PyPI's build brings gigabytes of CUDA
# along; PyTorch's own index has a build for CPUs only:
#   make pong TORCH_INDEX="--index-url https://download.pytorch.org/whl/cpu"
TORCH_INDEX ?=

$(VENV)/.torch:
	$(PYTHON) -c "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))" || { echo "parcade needs Python 3.11 to 3.13; got $$($(PYTHON) --version); use: make PYTHON=python3.12"; exit 2; }
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
	$(BIN)/parcade train pong --preset pong_fast --backend $(BACKEND) --seed $(SEED)

# Two files at a time: each test compares bits on one thread.
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not exact and not exact_gpu and not cluster and not gpu_code" tests

test-cluster: $(VENV)/.installed-test
	tests/cluster/install.sh $(BIN)/python
	PARCADE_MPICH=$(CURDIR)/.venv-mpich $(BIN)/python -m pytest -q -m cluster tests

test-exact: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -m exact tests/atari

test-exact-gpu: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -m exact_gpu tests/atari

# The GPU's kernels as machine code and in numba's simulator, and compiled networks, without a GPU.
test-gpu-code: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[cuda]" "nvidia-cuda-nvcc>=13"
	$(BIN)/python -m pytest -q -m gpu_code tests

quick: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -m quick tests

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .

curves: $(VENV)/.installed-test
	$(BIN)/python benchmarks/curves.py

bench-sb3: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "stable-baselines3==2.9.2" opencv-python-headless
	$(BIN)/python benchmarks/against_sb3.py

results-cray: $(VENV)/.installed-test
	$(BIN)/python benchmarks/results_cray.py

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
	rm -rf $(VENV) .venv-mpich build *.egg-info .pytest_cache
