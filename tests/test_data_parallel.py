"""Supervised data parallelism: several ranks learn as one.

Over MPI and gloo, on a CPU and on the GPU stand-in; examples and benchmark run; bad input is one line.
"""

import csv
import gzip
import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import gpu_supervised

from parcade import data_parallel
from parcade.cluster import mpi
from parcade.data_parallel import FitConfig, connect, fit, placed
from parcade.errors import UsageError
from parcade.machine.devices import STAND_IN
from parcade.machine.facts import available_cores

ROOT = Path(__file__).resolve().parents[1]
HARD_LIMIT_SECONDS = 120
MNIST, CLONING = str(ROOT / "examples" / "mnist.py"), str(ROOT / "examples" / "behavioural_cloning.py")


def run(command, **environment):
    """Run to the end within a hard limit, or kill the process group."""
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


def test_a_frozen_layer_stays_as_it_is():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    module[0].requires_grad_(False)
    before = [p.detach().clone() for p in module.parameters()]
    data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
    fit(
        module,
        data,
        F.cross_entropy,
        FitConfig(epochs=2, batch_size=16),
        exchange=connect("local"),
        optimizer=lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1),
        say=lambda line: None,
    )
    changed = [not torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True)]
    assert changed == [False, False, True, True]


@pytest.mark.quick
@pytest.mark.parametrize("version", ["2.1", 3])
def test_a_module_keeps_a_version_of_its_own(version):
    module = nn.Linear(4, 2)
    module.version = version
    fit(
        module,
        TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,))),
        F.cross_entropy,
        FitConfig(epochs=1, batch_size=16),
        exchange=connect("local"),
        optimizer=lambda p: torch.optim.SGD(p, 0.1),
        say=lambda line: None,
    )
    assert module.version == version


def launcher(name, ranks):
    """The command prefix that starts this many ranks of a Python program."""
    if name == "mpi":
        return [mpi.find_mpiexec(), "-n", str(ranks), sys.executable]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def blobs():
    """Two classes of points ``[96, 3]`` that a line separates."""
    x = torch.randn(96, 3, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.sum(1) > 0).long())


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.5)


def fitted(dataset, device="cpu", **config):
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    exchange = connect("local", device=device)
    done = fit(module, dataset, F.cross_entropy, FitConfig(**config), exchange=exchange, optimizer=sgd)
    return module, done


class Points(Dataset):
    """The blobs, sample by sample."""

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return tuple(tensor[i] for tensor in blobs().tensors)


@pytest.mark.quick
def test_a_module_learns_what_a_line_can_tell():
    module, done = fitted(blobs(), epochs=40, batch_size=32)
    x, y = blobs().tensors
    assert (module(x).argmax(1) == y).double().mean() > 0.95
    assert (done.epochs, done.updates, done.samples) == (40, 120, 40 * 96)


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


@pytest.mark.quick
def test_any_dataset_gives_what_its_tensors_would():
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


ONE_DEVICE = "expected torch.float32 on one device, cpu or cuda"


def with_a_buffer_elsewhere():
    module = nn.BatchNorm1d(3)
    module.running_mean = module.running_mean.to("meta")
    return module


@pytest.mark.quick
@pytest.mark.parametrize(
    ("module", "config", "said"),
    [
        (nn.Linear(3, 2).double(), FitConfig(), f"parameters are torch.float64 on cpu; {ONE_DEVICE}"),
        (nn.ReLU(), FitConfig(), f"parameters are none; {ONE_DEVICE}"),
        (nn.Linear(3, 2, device="meta"), FitConfig(), f"parameters are torch.float32 on meta; {ONE_DEVICE}"),
        (
            nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, device="meta")),
            FitConfig(),
            f"parameters are torch.float32 on cpu, torch.float32 on meta; {ONE_DEVICE}",
        ),
        (
            with_a_buffer_elsewhere(),
            FitConfig(),
            f"parameters are torch.float32 on cpu, buffers on cpu, buffers on meta; {ONE_DEVICE}",
        ),
        (nn.Linear(3, 2), FitConfig(data_on="disk"), "data_on='disk'; expected one of device, host"),
        (
            nn.Linear(3, 2),
            FitConfig(batch_size=97),
            "batch_size=97 is more than the 96 samples of the dataset",
        ),
        (nn.Linear(3, 2), FitConfig(epochs=0), "epochs=0"),
        (nn.Linear(3, 2), FitConfig(batch_size=16.0), "batch_size=16.0: expected an integer"),
        (nn.Linear(3, 2), FitConfig(max_grad_norm=-1.0), "max_grad_norm=-1.0: expected a number above 0"),
        (nn.Linear(3, 2), FitConfig(max_grad_norm="1"), "max_grad_norm='1': expected a number above 0"),
        (nn.Linear(3, 2), FitConfig(hang_seconds=math.nan), "hang_seconds=nan: expected a number of 0 or"),
        (
            nn.Linear(3, 2).requires_grad_(False),
            FitConfig(batch_size=16),
            "no parameter of Linear has requires_grad",
        ),
    ],
)
def test_what_does_not_fit_is_refused(module, config, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        fit(module, blobs(), F.cross_entropy, config, exchange=connect("local"), optimizer=sgd)


@pytest.mark.quick
def test_an_unknown_launcher_or_device_is_refused():
    with pytest.raises(UsageError, match="engine='slurm'; expected one of auto, local, mpi, gloo"):
        connect("slurm")
    with pytest.raises(UsageError, match="device='tpu'; expected one of cpu, cuda"):
        connect("local", device="tpu")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("figures", "recorded"),
    [
        ({"error": torch.tensor(0.5), "count": np.int64(3)}, {"error": 0.5, "count": 3}),
        ({"error": float("nan"), "rows": np.arange(2), "model": Points}, {"error": None, "rows": [0, 1]}),
        (None, {}),
        (0.5, {"evaluation": "0.5"}),
        ({"epoch": 7, "seconds": 0.5}, {"epoch": 1, "evaluation/epoch": 7, "evaluation/seconds": 0.5}),
    ],
)
def test_whatever_an_evaluation_returns_the_module_is_saved(figures, recorded, tmp_path):
    module = nn.Linear(3, 2)
    config = FitConfig(epochs=1, batch_size=16)
    fit(
        module, blobs(), F.cross_entropy, config, exchange=connect("local"), optimizer=sgd,
        evaluate=lambda module: figures, run=str(tmp_path / "run"),
    )  # fmt: skip
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert recorded.items() <= json.loads(line).items()
    assert module.training, "as without an evaluation, and as on other ranks"
    assert (tmp_path / "run" / "module.safetensors").exists()


class Unusual(nn.Linear):
    """A layer with an extra state, a transposed buffer, and a frozen layer in channels last."""

    def __init__(self):
        super().__init__(3, 2)
        self.register_buffer("table", torch.arange(6.0).reshape(2, 3).T)
        frozen = nn.Conv2d(2, 2, 3).requires_grad_(False)
        self.frozen = frozen.to(memory_format=torch.channels_last)

    def get_extra_state(self):
        return {"kind": "unusual"}

    def set_extra_state(self, state):
        pass


@pytest.mark.quick
def test_the_tensors_of_a_module_are_saved_whatever_their_layout(tmp_path):
    module, run = Unusual(), tmp_path / "run"
    config = FitConfig(epochs=1, batch_size=16)
    fit(module, blobs(), F.cross_entropy, config, exchange=connect("local"), optimizer=sgd, run=run)
    saved = safetensors.torch.load_file(run / "module.safetensors")
    assert set(saved) == {"weight", "bias", "table", "frozen.weight", "frozen.bias"}
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in saved.items())


@pytest.mark.quick
def test_a_run_of_a_training_is_not_replaced_by_a_fit(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("a training's")
    with pytest.raises(UsageError, match="holds a run of parcade train; use another directory"):
        fit(
            nn.Linear(3, 2), blobs(), F.cross_entropy, FitConfig(batch_size=16), exchange=connect("local"),
            optimizer=sgd, run=tmp_path,
        )  # fmt: skip
    assert (tmp_path / "metrics.jsonl").read_text() == "a training's"


@pytest.mark.quick
def test_the_threads_that_the_environment_asks_for_are_kept(monkeypatch):
    before = torch.get_num_threads()
    try:
        for asked, expected in (("3", 3), ("", available_cores()), ("many", available_cores())):
            monkeypatch.setenv("OMP_NUM_THREADS", asked)
            connect("local")
            assert torch.get_num_threads() == expected
        monkeypatch.setenv("OMP_NUM_THREADS", "100000")
        with pytest.raises(UsageError, match="OMP_NUM_THREADS=100,000 is more than"):
            connect("local")
    finally:
        torch.set_num_threads(before)


@pytest.mark.quick
@pytest.mark.parametrize("dataset", [blobs(), Points()], ids=["tensors", "samples"])
@pytest.mark.parametrize("data_on", ["device", "host"])
def test_a_fit_on_the_stand_in_is_the_fit_on_the_cpu_bit_for_bit(monkeypatch, dataset, data_on):
    alone, expected = fitted(blobs(), epochs=3, batch_size=32, max_grad_norm=0.1)
    monkeypatch.setenv(STAND_IN, "1")
    module, done = fitted(dataset, device="cuda", epochs=3, batch_size=32, max_grad_norm=0.1, data_on=data_on)
    assert torch.equal(module.weight, alone.weight) and torch.equal(module.bias, alone.bias)
    assert (done.loss, done.updates, len(done.epoch_seconds)) == (expected.loss, 9, 3)
    assert "learn" in done.device_seconds and expected.device_seconds == {}


@pytest.mark.quick
def test_ctrl_c_ends_a_fit_within_its_epoch_and_says_so_at_once(capfd, tmp_path):
    def interrupting_loss(scores, targets):
        loss = F.cross_entropy(scores, targets)
        losses.append(loss.item())
        if len(losses) == 3 + 2:
            signal.raise_signal(signal.SIGINT)
            said_at_once.append(capfd.readouterr().err)
        return loss

    losses, said_at_once, said = [], [], []
    done = fit(
        nn.Linear(3, 2), blobs(), interrupting_loss, FitConfig(epochs=500, batch_size=32),
        exchange=connect("local"), optimizer=sgd, evaluate=lambda module: {}, run=tmp_path, say=said.append,
    )  # fmt: skip
    assert said_at_once == [f"{data_parallel.STOPPING}\n"]
    # The ranks ask one another after 1, 3 and 7 updates, and an epoch has 3.
    assert (done.epochs, done.updates, done.samples, len(done.epoch_seconds)) == (2, 7, 7 * 32, 2)
    assert done.loss == pytest.approx(losses[-1]) and done.seconds > done.epoch_seconds[-1]
    assert said[0] == "stopped within epoch 3, after update 7" and said[1].startswith("epoch 2 ")
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["epochs"], result["updates"]) == (2, 7) and (tmp_path / "module.safetensors").exists()


@pytest.mark.quick
def test_without_a_gpu_connecting_says_so():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(
        UsageError, match=re.escape("device 'cuda': torch ") + ".* finds no NVIDIA GPU here; use --device cpu"
    ):
        connect("local", device="cuda")


@pytest.mark.quick
def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    ranks = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "LOCAL_WORLD_SIZE": "2",
    }
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        UsageError, match=re.escape("2 ranks on this host and 1 GPU(s); start one rank per GPU")
    ):
        connect("gloo", device="cuda")


@pytest.mark.quick
def test_data_that_do_not_fit_on_the_gpu_are_refused_and_stay_on_the_host(monkeypatch):
    monkeypatch.setattr(data_parallel, "free_device_memory", lambda name: 96 * 3 * 4)
    gpu = torch.device("cuda", 0)
    with pytest.raises(
        UsageError, match="the data take .* GiB, but the GPU has only .* GiB free; use data_on='host'"
    ):
        placed(blobs(), gpu, "device")
    kept = blobs()
    assert placed(kept, gpu, "host") is kept


def begin_fitting(dataset, data_on):
    """A fit on torch's meta device, whose tensors have no values, so any read by the host would raise."""
    module, exchange = (
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to("meta"),
        connect("local"),
    )
    exchange.attach(module, lambda p: torch.optim.Adam(p, 1e-3), 0.5)
    config, stop = (
        FitConfig(epochs=2, batch_size=32, data_on=data_on),
        SimpleNamespace(requested=lambda: False),
    )
    data = placed(dataset, torch.device("meta"), data_on)
    return data_parallel._Fitting(module, data, F.cross_entropy, config, exchange, None, None, print, stop)


@pytest.mark.quick
@pytest.mark.parametrize("dataset", [blobs(), Points()], ids=["tensors", "samples"])
@pytest.mark.parametrize("data_on", ["device", "host"])
def test_nothing_is_read_back_within_an_epoch(dataset, data_on):
    fitting = begin_fitting(dataset, data_on)
    assert fitting._epoch() is False
    assert (fitting.done.updates, fitting._epoch_loss.device.type) == (3, "meta")
    with pytest.raises((NotImplementedError, RuntimeError)):
        fitting.run_epochs()  # reads the loss of the last epoch


@pytest.mark.quick
def test_data_on_the_device_are_copied_once_and_data_on_the_host_batch_by_batch(monkeypatch):
    copied = []
    copy = data_parallel._copied

    def counting(batch, device, *rest, **options):
        copied.append(batch[0].device.type)
        return copy(batch, device, *rest, **options)

    monkeypatch.setattr(data_parallel, "_copied", counting)
    for data_on, kept in (("device", "meta"), ("host", "cpu")):
        begin_fitting(blobs(), data_on)._epoch()
        assert copied == [kept] * 3
        copied.clear()


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

exchange = connect(device=sys.argv[2])
print("exchange", type(exchange).__name__)
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


TINY = ["--samples", "128", "--epochs", "2", "--repeats", "1", "--batch-sizes", "64", "--ranks", "2"]


def rows_of(folder):
    with (folder / "gpu_supervised.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.gpu_code
def test_the_benchmark_measures_both_forms_once_and_calls_the_stand_in_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv(STAND_IN, "1")
    command = [*TINY, "--results", str(tmp_path)]
    gpu_supervised.main(command)
    rows = rows_of(tmp_path)
    assert [(row["card"], row["ranks"], row["form"], row["error"]) for row in rows] == [
        ("stand-in: CPU", "2", form, "") for form in ("naive", "fixed")
    ]
    for name in gpu_supervised.FIGURES + gpu_supervised.GPU_FIGURES:
        assert all(float(row[name]) >= 0 for row in rows), name
    monkeypatch.setattr(gpu_supervised, "measure", lambda *case: pytest.fail("measured again"))
    gpu_supervised.main(command)
    assert rows_of(tmp_path) == rows


@pytest.mark.quick
def test_a_case_that_fails_leaves_a_row_and_is_measured_again(tmp_path, monkeypatch):
    monkeypatch.setenv(STAND_IN, "1")
    monkeypatch.setattr(
        gpu_supervised, "commit", lambda: "abc-dirty" if (tmp_path / "gpu_supervised.csv").exists() else "abc"
    )
    measured = []

    def measure(case, device, data, timeout_seconds):
        measured.append((case["form"], len(list(data.iterdir()))))
        if len(measured) == 1:
            raise RuntimeError("no GPU\nis left")
        return {"samples_per_second": 1.0}

    monkeypatch.setattr(gpu_supervised, "measure", measure)
    for _ in range(3):
        gpu_supervised.main([*TINY, "--results", str(tmp_path)])
    assert [form for form, _ in measured] == ["naive", "fixed", "naive"] and {
        files for _, files in measured
    } == {4}
    assert [row["error"] for row in rows_of(tmp_path)] == ["RuntimeError: no GPU is left", "", ""]


@pytest.mark.quick
def test_the_benchmark_begins_no_case_that_it_has_no_time_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(STAND_IN, "1")
    gpu_supervised.main([*TINY, "--results", str(tmp_path), "--minutes", "0.5"])
    assert "the remaining cases are left for the next call" in capsys.readouterr().out and not list(
        tmp_path.iterdir()
    )


@pytest.mark.quick
def test_the_stand_in_writes_no_results_of_gpus(monkeypatch):
    monkeypatch.setenv(STAND_IN, "1")
    with pytest.raises(
        UsageError, match="the stand-in does not measure a GPU; choose another folder with --results"
    ):
        gpu_supervised.main(TINY)
