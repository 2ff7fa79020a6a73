"""Supervised data parallelism over MPI and gloo: ranks learn as one, on a CPU and on the GPU stand-in.

The examples run as a user starts them.
"""

import gzip
import json
import re
import struct
import sys
from pathlib import Path

import limited
import numpy as np
import pytest
import safetensors.torch
import torch
from test_data_parallel import blobs, fitted

from parcade.cluster import mpi
from parcade.machine.devices import STAND_IN

ROOT = Path(__file__).resolve().parents[1]
MNIST, CLONING = str(ROOT / "examples" / "mnist.py"), str(ROOT / "examples" / "behavioural_cloning.py")


def run(command, **environment):
    """Run with the environment of a rank of one thread, and these variables."""
    return limited.run(command, env={**mpi.rank_environment(1), **environment}, cwd=ROOT)


def launcher(name, ranks):
    """The command prefix that starts this many ranks of a Python program."""
    if name == "mpi":
        return [mpi.find_mpiexec(), "-n", str(ranks), sys.executable]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


FAILING = """
import torch
from parcade.data_parallel import FitConfig, connect, fit
module, data = torch.nn.Linear(3, 2), torch.utils.data.TensorDataset(torch.zeros(8, 3), torch.zeros(8).long())
fit(
    module, data, torch.nn.functional.cross_entropy, FitConfig(batch_size=8, evaluate_every=1),
    exchange=connect(), optimizer=lambda p: torch.optim.SGD(p, 0.5), evaluate=lambda module: 1 / 0,
)
"""


@pytest.mark.processes
def test_a_rank_that_fails_ends_all(tmp_path):
    (tmp_path / "fails.py").write_text(FAILING)
    code, _, err = run([*launcher("mpi", 2), str(tmp_path / "fails.py")])
    assert code != 0 and "ZeroDivisionError" in err


PROGRAM = """
import sys, torch, torch.nn.functional as F
from pathlib import Path
sys.path.insert(0, "tests")
from test_data_parallel import blobs, sgd
from parcade.data_parallel import FitConfig, connect, fit
import numpy as np

exchange = connect(device=sys.argv[2])
sys.stdout.write(f"exchange {type(exchange).__name__}\\n")  # one write: ranks share the launcher's output
torch.set_num_threads(1)
torch.manual_seed(exchange.rank)  # different on purpose: rank 0's parameters count
module = torch.nn.Linear(3, 2)
if exchange.rank == 0:
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
fit(module, blobs(), F.cross_entropy, FitConfig(epochs=3, batch_size=32, data_on=sys.argv[3]),
    exchange=exchange, optimizer=sgd, run=Path(sys.argv[1]))
rows = exchange.gather_rows(np.full((exchange.rank, 2), float(exchange.rank)))
assert rows[:, 0].tolist() == [float(r) for r in range(exchange.world_size) for _ in range(r)], rows
first = exchange.gather_on_first(np.array([exchange.rank], np.uint8))
assert first is None if exchange.rank else first[:, 0].tolist() == list(range(exchange.world_size))
assert exchange.maximum(np.array([float(exchange.rank)]))[0] == exchange.world_size - 1
exchange.close()
"""


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Fits with two ranks of a launcher on a device, each run once: parameters, result and exchange."""
    runs, program = {}, tmp_path_factory.mktemp("ranks") / "program.py"
    program.write_text(PROGRAM)

    def fit_together(launched_by, device, data_on="device"):
        key = (launched_by, device, data_on)
        if key not in runs:
            directory = program.parent / "-".join(key)
            command = [*launcher(launched_by, 2), str(program), str(directory), device, data_on]
            stand_in = {STAND_IN: "1"} if device == "cuda" else {}
            code, out, err = run(command, PYTHONPATH=str(ROOT), **stand_in)
            assert code == 0, err
            result = json.loads((directory / "result.json").read_text())
            runs[key] = (
                safetensors.torch.load_file(directory / "module.safetensors"),
                result,
                set(re.findall(r"exchange (\w+)", out)),
            )
        return runs[key]

    return fit_together


@pytest.mark.processes
@pytest.mark.parametrize("name", ["mpi", "gloo"])
def test_two_ranks_learn_as_one_process_with_the_same_batch(together, name):
    alone, _ = fitted(blobs(), epochs=3, batch_size=32)
    parameters, result, _ = together(name, "cpu")
    torch.testing.assert_close(parameters["weight"], alone.weight.detach())
    assert (result["ranks"], result["updates"], result["samples"]) == (2, 9, 288)
    assert len(result["scope_seconds"]["learn"]) == 2 and result["device_seconds"] == {}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "data_on", "exchange"),
    [
        ("mpi", "device", "NcclExchange"),
        pytest.param("mpi", "host", "NcclExchange", marks=pytest.mark.cluster),
        pytest.param("gloo", "device", "GlooExchange", marks=pytest.mark.cluster),
    ],
)
def test_two_ranks_on_the_stand_in_are_two_ranks_on_the_cpu_bit_for_bit(together, name, data_on, exchange):
    """Over MPI, gradients use ``NcclExchange`` with gloo instead of NCCL, and everything else uses MPI."""
    expected, _, _ = together(name, "cpu")
    parameters, result, exchanges = together(name, "cuda", data_on)
    assert exchanges == {exchange}
    assert all(torch.equal(parameters[key], expected[key]) for key in expected)
    assert len(result["device_seconds"]["learn"]) == 2


@pytest.mark.processes
def test_a_batch_that_ranks_cannot_share_is_refused(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn, whose digits the example takes, is not installed")
    code, _, err = run([*launcher("mpi", 2), MNIST, "--batch-size", "33"], PYTHONPATH=str(ROOT))
    assert code != 0 and "mnist.py: batch_size=33 is not divisible by world_size=2; use 32 or 34" in err


def write_idx(path, array, type_code=0x08):
    raw = (
        struct.pack(">HBB", 0, type_code, array.ndim)
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


@pytest.fixture
def digits(tmp_path):
    """Four IDX files of images that are bright in the upper or in the lower half."""
    random = np.random.default_rng(0)
    for kind, suffix, n in (("train", "", 256), ("t10k", ".gz", 64)):
        labels = random.integers(0, 2, n).astype(np.uint8)
        images = random.integers(0, 60, (n, 28, 28)).astype(np.uint8)
        images[labels == 0, :14] += 150
        images[labels == 1, 14:] += 150
        write_idx(tmp_path / f"{kind}-images-idx3-ubyte{suffix}", images)
        write_idx(tmp_path / f"{kind}-labels-idx1-ubyte{suffix}", labels)
    return tmp_path


@pytest.mark.processes
def test_the_digits_of_idx_files_are_learned(digits):
    command = [sys.executable, MNIST, "--data", str(digits), "--epochs", "4", "--batch-size", "32"]
    code, _, err = run([*command, "--run-dir", str(digits / "run")], PYTHONPATH=str(ROOT))
    assert code == 0, err
    assert json.loads((digits / "run" / "metrics.jsonl").read_text())["test_error_percent"] == 0.0


@pytest.mark.processes
def test_an_idx_file_that_is_cut_short_is_refused(digits):
    path = digits / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    code, _, err = run([sys.executable, MNIST, "--data", str(digits)], PYTHONPATH=str(ROOT))
    assert code == 2
    assert err.startswith(f"mnist.py: {path} has 200719 bytes, expected 200720 for shape (256, 28, 28)")


@pytest.mark.processes
def test_a_clone_learns_from_an_agents_recorded_games(tmp_path):
    agent, games = str(tmp_path / "agent"), str(tmp_path / "games.safetensors")
    train = ["-m", "parcade", "train", "tiny_catch", "--total-frames", "40000", "--run-dir", agent]
    for command in (train, [CLONING, "record", agent, games, "--episodes", "100"]):
        code, _, err = run([sys.executable, *command], PYTHONPATH=str(ROOT), PARCADE_PLAIN="1")
        assert code == 0, err
    fitting = [CLONING, "clone", agent, games, "--epochs", "20", "--batch-size", "64", "--episodes", "20"]
    code, out, err = run(
        [sys.executable, *fitting, "--run-dir", str(tmp_path / "clone")], PYTHONPATH=str(ROOT)
    )
    assert code == 0, err
    figures = json.loads((tmp_path / "clone" / "metrics.jsonl").read_text())
    assert figures["test_agreement"] > 60  # three actions: chance agrees a third of the time
    assert float(re.search(r"clone (-?[\d.]+)", out)[1]) > -0.6  # the score of chance
