"""Supervised data parallelism: several ranks learn as one, over MPI and gloo; the examples run; bad input is one line."""

import gzip
import json
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from parcade.cluster import mpi
from parcade.data_parallel import FitConfig, connect, fit
from parcade.errors import UsageError
from parcade.report.machine import available_cores

ROOT = Path(__file__).resolve().parents[1]
HARD_LIMIT_SECONDS = 120
MNIST, CLONING = str(ROOT / "examples" / "mnist.py"), str(ROOT / "examples" / "behavioural_cloning.py")


def run(command, **environment):
    """Run to the end within a hard limit, or end the whole process group."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**mpi.rank_environment(1), **environment},
        cwd=ROOT,
    )
    try:
        out, err = process.communicate(timeout=HARD_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, out, err


def launcher(name, ranks):
    """The words that start so many ranks of a Python program."""
    if name == "mpi":
        return [mpi.find_mpiexec(), "-n", str(ranks), sys.executable]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def blobs():
    """Two classes of points ``[96, 3]`` that a line can tell apart."""
    x = torch.randn(96, 3, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.sum(1) > 0).long())


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.5)


def fitted(dataset, **config):
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    done = fit(module, dataset, F.cross_entropy, FitConfig(**config), exchange=connect("local"), optimizer=sgd)
    return module, done


@pytest.mark.quick
def test_a_module_learns_what_a_line_can_tell():
    module, done = fitted(blobs(), epochs=40, batch_size=32)
    x, y = blobs().tensors
    assert (module(x).argmax(1) == y).double().mean() > 0.95
    assert (done.epochs, done.updates, done.samples) == (40, 120, 40 * 96)


@pytest.mark.quick
def test_any_dataset_gives_what_its_tensors_would():
    class Points(Dataset):
        def __len__(self):
            return 96

        def __getitem__(self, i):
            return tuple(tensor[i] for tensor in blobs().tensors)

    first, _ = fitted(Points(), epochs=2, batch_size=32)
    second, _ = fitted(blobs(), epochs=2, batch_size=32)
    assert torch.equal(first.weight, second.weight)


@pytest.mark.quick
def test_evaluations_come_as_often_as_asked_and_at_the_end():
    module = nn.Linear(3, 2)
    said = []
    done = fit(
        module,
        blobs(),
        F.cross_entropy,
        FitConfig(epochs=7, batch_size=32, evaluate_every=3),
        exchange=connect("local"),
        optimizer=sgd,
        evaluate=lambda m: {"is_training": float(m.training)},
        say=said.append,
    )
    assert [row["epoch"] for row in done.evaluations] == [3, 6, 7]
    assert all(row["is_training"] == 0.0 for row in done.evaluations) and len(said) == 3


@pytest.mark.quick
@pytest.mark.parametrize(
    ("module", "config", "said"),
    [
        (nn.Linear(3, 2).double(), FitConfig(), "parameters are torch.float64 on cpu; expected torch.float32 on cpu"),
        (nn.Linear(3, 2), FitConfig(batch_size=97), "batch_size=97 is more than the 96 samples there are"),
        (nn.Linear(3, 2), FitConfig(epochs=0), "epochs=0"),
    ],
)
def test_what_does_not_fit_is_refused(module, config, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        fit(module, blobs(), F.cross_entropy, config, exchange=connect("local"), optimizer=sgd)


@pytest.mark.quick
def test_the_threads_that_the_environment_asks_for_are_kept(monkeypatch):
    before = torch.get_num_threads()
    try:
        for asked, expected in (("3", 3), ("", available_cores()), ("many", available_cores())):
            monkeypatch.setenv("OMP_NUM_THREADS", asked)
            connect("local")
            assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


def test_gloo_without_torchrun_says_how_to_start(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError, match="start the ranks with: torchrun --nproc-per-node N SCRIPT"):
        connect("gloo")


PROGRAM = """
import sys, torch, torch.nn.functional as F
from pathlib import Path
sys.path.insert(0, "tests")
from test_data_parallel import blobs, sgd
from parcade.data_parallel import FitConfig, connect, fit
import numpy as np

exchange = connect()
torch.set_num_threads(1)
torch.manual_seed(exchange.rank)  # different on purpose: rank 0's parameters count
module = torch.nn.Linear(3, 2)
if exchange.rank == 0:
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
fit(module, blobs(), F.cross_entropy, FitConfig(epochs=3, batch_size=32), exchange=exchange, optimizer=sgd,
    run=Path(sys.argv[1]))
rows = exchange.gather_rows(np.full((exchange.rank, 2), float(exchange.rank)))
assert rows[:, 0].tolist() == [float(r) for r in range(exchange.world_size) for _ in range(r)], rows
first = exchange.gather_on_first(np.array([exchange.rank], np.uint8))
assert first is None if exchange.rank else first[:, 0].tolist() == list(range(exchange.world_size))
assert exchange.maximum(np.array([float(exchange.rank)]))[0] == exchange.world_size - 1
exchange.close()
"""


@pytest.mark.parametrize("name", ["mpi", "gloo"])
def test_two_ranks_learn_as_one_process_with_the_same_batch(name, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    code, _, err = run([*launcher(name, 2), str(program), str(tmp_path / "run")], PYTHONPATH=str(ROOT))
    assert code == 0, err
    alone, _ = fitted(blobs(), epochs=3, batch_size=32)
    together = safetensors.torch.load_file(tmp_path / "run" / "module.safetensors")
    torch.testing.assert_close(together["weight"], alone.weight.detach())
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["ranks"], result["updates"], result["samples"]) == (2, 9, 288)
    assert len(result["scope_seconds"]["learn"]) == 2


def test_a_batch_that_ranks_cannot_share_is_refused(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn, whose digits the example takes, is not installed")
    code, _, err = run([*launcher("mpi", 2), MNIST, "--batch-size", "33"], PYTHONPATH=str(ROOT))
    assert code != 0 and "mnist.py: batch_size=33 is not divisible by world_size=2; use 32 or 34" in err


def write_idx(path, array, type_code=0x08):
    raw = struct.pack(">HBB", 0, type_code, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


@pytest.fixture
def digits(tmp_path):
    """Four IDX files of pictures that are bright in the upper or in the lower half."""
    random = np.random.default_rng(0)
    for kind, suffix, n in (("train", "", 256), ("t10k", ".gz", 64)):
        labels = random.integers(0, 2, n).astype(np.uint8)
        images = random.integers(0, 60, (n, 28, 28)).astype(np.uint8)
        images[labels == 0, :14] += 150
        images[labels == 1, 14:] += 150
        write_idx(tmp_path / f"{kind}-images-idx3-ubyte{suffix}", images)
        write_idx(tmp_path / f"{kind}-labels-idx1-ubyte{suffix}", labels)
    return tmp_path


def test_the_digits_of_idx_files_are_learned(digits):
    command = [sys.executable, MNIST, "--data", str(digits), "--epochs", "4", "--batch-size", "32"]
    code, _, err = run([*command, "--run-dir", str(digits / "run")], PYTHONPATH=str(ROOT))
    assert code == 0, err
    assert json.loads((digits / "run" / "metrics.jsonl").read_text())["test_error_percent"] == 0.0


def test_an_idx_file_that_is_cut_short_is_refused(digits):
    path = digits / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    code, _, err = run([sys.executable, MNIST, "--data", str(digits)], PYTHONPATH=str(ROOT))
    assert code == 1
    assert err.startswith(f"mnist.py: {path} has 200719 bytes, expected 200720 for shape (256, 28, 28)")


def test_a_clone_learns_from_an_agents_recorded_games(tmp_path):
    agent, games = str(tmp_path / "agent"), str(tmp_path / "games.safetensors")
    train = ["-m", "parcade", "train", "tiny_catch", "--total-frames", "40000", "--run-dir", agent]
    for command in (train, [CLONING, "record", agent, games, "--games", "100"]):
        code, _, err = run([sys.executable, *command], PYTHONPATH=str(ROOT), PARCADE_PLAIN="1")
        assert code == 0, err
    fitting = [CLONING, "clone", agent, games, "--epochs", "20", "--batch-size", "64", "--games", "20"]
    code, out, err = run([sys.executable, *fitting, "--run-dir", str(tmp_path / "clone")], PYTHONPATH=str(ROOT))
    assert code == 0, err
    figures = json.loads((tmp_path / "clone" / "metrics.jsonl").read_text())
    assert figures["test_agreement"] > 60  # three actions: chance agrees a third of the time
    assert float(re.search(r"clone (-?[\d.]+)", out)[1]) > -0.6  # what chance scores
