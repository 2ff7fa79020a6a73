"""Supervised data parallelism in one process: fits, what they record, and bad input in one line."""

import json
import math
import re
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from parcade.data_parallel import FitConfig, connect, fit, placed
from parcade.data_parallel import data as fit_data
from parcade.data_parallel.evaluations import Evaluations
from parcade.data_parallel.fitting import STOPPING, Fitting
from parcade.errors import UsageError
from parcade.machine.devices import STAND_IN
from parcade.machine.facts import available_cores


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
@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda x, y: F.cross_entropy(x, y, reduction="none"), "has shape [16]; expected a scalar: take its"),
        (lambda x, y: F.cross_entropy(x, y).detach(), "does not depend on the trained parameters; compute"),
        (lambda x, y: F.cross_entropy(x, y).item(), "returned a float; expected a scalar tensor"),
    ],
)
def test_a_loss_that_is_no_scalar_with_a_gradient_is_named(loss, says):
    data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
    with pytest.raises(UsageError, match=f"^the loss {re.escape(says)}"):
        fit(
            nn.Linear(4, 2),
            data,
            loss,
            FitConfig(epochs=1, batch_size=16),
            exchange=connect("local"),
            optimizer=lambda p: torch.optim.SGD(p, 0.1),
            say=lambda line: None,
        )


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
        (nn.Linear(3, 2), FitConfig(batch_size=16, seed=2**64), "seed=18446744073709551616: expected an"),
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


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (lambda parameters: None, "the function that makes the optimiser returned a NoneType; expected an"),
        (torch.optim.LBFGS, "LBFGS.step(closure) computes the loss several times, an update has one"),
    ],
)
def test_what_is_no_optimiser_of_one_gradient_is_refused(optimizer, said):
    config = FitConfig(batch_size=16)
    with pytest.raises(UsageError, match=re.escape(said)):
        fit(nn.Linear(3, 2), blobs(), F.cross_entropy, config, exchange=connect("local"), optimizer=optimizer)


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


@pytest.mark.quick
@pytest.mark.parametrize(
    ("file", "warned"),
    [
        ("metrics.jsonl", "warning: cannot write metrics.jsonl (Is a directory); training continues without"),
        ("module.safetensors", "warning: the results of this fit cannot be written to"),
        ("result.json", "warning: the results of this fit cannot be written to"),
    ],
)
def test_results_that_cannot_be_written_do_not_cost_the_training(file, warned, tmp_path):
    said = []

    def evaluate(module):
        (tmp_path / file).unlink(missing_ok=True)
        (tmp_path / file).mkdir()  # from now on it cannot be written, as on a full disk
        return {"error": 0.5}

    module, config = nn.Linear(3, 2), FitConfig(epochs=2, batch_size=16)
    done = fit(
        module, blobs(), F.cross_entropy, config, exchange=connect("local"), optimizer=sgd,
        evaluate=evaluate, run=tmp_path, say=said.append,
    )  # fmt: skip
    assert done.updates == 12 and len(done.evaluations) == 1
    (warning,) = [line for line in said if line.startswith("warning")]
    assert warning.startswith(warned)
    assert not list(tmp_path.glob("*.tmp"))
    if file == "metrics.jsonl":
        assert (tmp_path / "module.safetensors").is_file() and (tmp_path / "result.json").is_file()


@pytest.mark.quick
def test_an_evaluation_that_fails_leaves_the_module_of_the_last_update(tmp_path):
    module, said = nn.Linear(3, 2), []
    with pytest.raises(ZeroDivisionError):
        fit(
            module, blobs(), F.cross_entropy, FitConfig(epochs=2, batch_size=16, evaluate_every=1),
            exchange=connect("local"), optimizer=sgd, evaluate=lambda module: 1 / 0, run=tmp_path,
            say=said.append,
        )  # fmt: skip
    assert said == [f"the module of update 6 is in {tmp_path}"]
    kept = safetensors.torch.load_file(tmp_path / "module.safetensors")
    assert all(torch.equal(kept[name], each) for name, each in module.state_dict().items())
    assert not (tmp_path / "result.json").exists(), "this fit has no result"


@pytest.mark.quick
def test_a_loss_that_fails_at_once_leaves_an_earlier_module_alone(tmp_path):
    (tmp_path / "module.safetensors").write_text("of an earlier fit")
    with pytest.raises(ZeroDivisionError):
        fit(
            nn.Linear(3, 2), blobs(), lambda outputs, targets: 1 / 0, FitConfig(batch_size=16),
            exchange=connect("local"), optimizer=sgd, run=tmp_path,
        )  # fmt: skip
    assert (tmp_path / "module.safetensors").read_text() == "of an earlier fit"


@pytest.mark.quick
def test_a_directory_that_cannot_be_made_is_refused_before_the_fit(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    for run in ("file", "file/fit"):
        with pytest.raises(UsageError, match=f"run={tmp_path / run} cannot be a directory of results"):
            fit(
                nn.Linear(3, 2), blobs(), F.cross_entropy, FitConfig(batch_size=16),
                exchange=connect("local"), optimizer=sgd, run=tmp_path / run,
            )  # fmt: skip
    assert (tmp_path / "file").read_text() == "not a directory"


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
    assert said_at_once == [f"{STOPPING}\n"]
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
    monkeypatch.setattr(fit_data, "free_device_memory", lambda name: 96 * 3 * 4)
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
    return Fitting(
        module,
        placed(dataset, torch.device("meta"), data_on),
        F.cross_entropy,
        config,
        exchange=exchange,
        evaluations=Evaluations(None, config, exchange, run=None, say=print),
        stop=stop,
        say=print,
    )


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
    copy = fit_data._copied

    def counting(batch, device, *rest, **options):
        copied.append(batch[0].device.type)
        return copy(batch, device, *rest, **options)

    monkeypatch.setattr(fit_data, "_copied", counting)
    for data_on, kept in (("device", "meta"), ("host", "cpu")):
        begin_fitting(blobs(), data_on)._epoch()
        assert copied == [kept] * 3
        copied.clear()


def test_gloo_without_torchrun_says_how_to_start(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError, match="start the ranks with: torchrun --nproc-per-node N SCRIPT"):
        connect("gloo")
