"""What several ranks of a fit must share: buffers, datasets and an end."""

import json
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_data_parallel_ranks import launcher, run
from torch import nn
from torch.utils.data import TensorDataset

from parcade.cluster import mpi
from parcade.data_parallel import FitConfig, connect, fit
from parcade.profile.data import read_ranks

pytestmark = pytest.mark.processes
PROGRAM = """
import json
import signal
import sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import TensorDataset
from parcade.data_parallel import FitConfig, connect, fit

case, exchange = sys.argv[1], connect()
torch.manual_seed(exchange.rank)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("features", torch.randn(4, 4))
        self.register_buffer("complex", torch.polar(torch.ones(4), torch.arange(4.0) + exchange.rank))
        self.register_buffer("expanded", torch.full((1,), float(exchange.rank)).expand(4))
        self.register_buffer("permuted", torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
        self.register_buffer("flag", torch.tensor([exchange.rank == 0]))
        self.register_buffer("nothing", torch.zeros(0))
        self.frozen = nn.Conv2d(3, 3, 3).to(memory_format=torch.channels_last).requires_grad_(False)

    def forward(self, x):
        seen.append(self.features.clone())
        return self.layer(x @ self.features)


def evaluate(module):
    if case == "exit":
        sys.exit("this rank leaves")
    return {}


def loss(scores, targets):
    if case == "stop" and exchange.rank == 1 and len(seen) == 100:
        signal.raise_signal(signal.SIGTERM)
    return nn.functional.mse_loss(scores, targets)


seen, module = [], Module()
torch.manual_seed(0)
x = torch.randn(256 - 32 * exchange.rank * (case == "uneven"), 4)
if case == "stop":
    x = x.repeat(250, 1)  # 2,000 updates per epoch
data = TensorDataset(x, x.sum(1, keepdim=True))
norm = 0.01 if case == "norm" and exchange.rank else None
run = Path(__file__).parent / "run" if case == "run" and exchange.rank == 0 else None
done = fit(
    module, data, loss,
    FitConfig(epochs=10_000 if case == "recorded" else 2, batch_size=32, max_grad_norm=norm),
    exchange=exchange, optimizer=lambda p: torch.optim.SGD(p, 1e-2), evaluate=evaluate, run=run,
    say=lambda line: None,
)
tensors = {**dict(module.named_buffers()), "weight": module.frozen.weight, "first": seen[0]}
if case == "stop":
    sys.exit(print(done.epochs, done.updates, len(done.epoch_seconds)))
told = {name: torch.view_as_real(t + 0j).tolist() for name, t in tensors.items()}
print(json.dumps(told))
"""


@pytest.fixture
def on_two_ranks(tmp_path):
    pytest.importorskip("mpi4py", reason="the extra parcade[mpi] is not installed")
    (tmp_path / "program.py").write_text(PROGRAM)
    program = str(tmp_path / "program.py")
    return lambda case, **environment: run([*launcher("mpi", 2), program, case], **environment)


def test_all_ranks_train_with_the_buffers_and_frozen_weights_of_rank_0(on_two_ranks):
    code, out, err = on_two_ranks("plain")
    assert code == 0, err
    first, second = map(json.loads, out.strip().splitlines())
    assert first == second
    assert first["first"] == first["features"], "the first batch saw other features than the last"
    assert np.allclose(first["complex"][1], [np.cos(1), np.sin(1)]) and first["flag"] == [[1.0, 0.0]]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("uneven", "len(dataset) is 224 on rank 1 and 256 on rank 0"),
        ("norm", "max_grad_norm (0: None) is 0.01 on rank 1 and 0 on rank 0"),
        ("run", "run (0: None, 1: a directory) is 0 on rank 1 and 1 on rank 0"),
    ],
)
def test_ranks_with_different_arguments_are_told_so(on_two_ranks, case, says):
    code, _, err = on_two_ranks(case)
    assert code != 0
    assert f"{says}; give every rank the same dataset, module and settings" in err


def test_a_recorded_fit_makes_the_collective_calls_of_one_that_is_not(on_two_ranks, tmp_path):
    profile = {"PARCADE_PROFILE": str(tmp_path / "profile"), "PARCADE_PROFILE_SECONDS": "0.5"}
    code, _, err = on_two_ranks("recorded", **profile)
    assert code == 0, err
    ranks = read_ranks(tmp_path / "profile")
    assert [rank.segment_bytes for rank in ranks] == [[20], [20]]  # the gradient of 5 parameters
    assert len(ranks[0].iteration_seconds) == len(ranks[1].iteration_seconds)
    assert max(rank.window_seconds for rank in ranks) >= 0.5


def test_a_signal_on_one_rank_stops_all_after_the_same_update_of_an_epoch(on_two_ranks):
    code, out, err = on_two_ranks("stop")
    assert code == 0, err
    first, second = out.strip().splitlines()
    epochs, updates, ends = map(int, first.split())
    assert first == second and epochs == ends == 0 and 100 <= updates <= 127


def test_a_rank_that_exits_within_a_fit_ends_all(on_two_ranks):
    code, _, err = on_two_ranks("exit")
    assert code != 0
    assert "this rank leaves" in err and "rank 0 exits within a fit; terminating all ranks" in err


@pytest.mark.quick
def test_a_single_process_keeps_its_buffers_as_they_are():
    module = nn.Linear(3, 2)
    module.register_buffer("phase", torch.polar(torch.ones(4), torch.arange(4.0)))
    module.register_buffer("expanded", torch.ones(1).expand(4))
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    data = TensorDataset(torch.randn(32, 3), torch.zeros(32, dtype=torch.int64))
    config = FitConfig(epochs=1, batch_size=16)
    fit(
        module, data, F.cross_entropy, config, exchange=connect("local"),
        optimizer=lambda p: torch.optim.SGD(p, 0.1), say=lambda line: None,
    )  # fmt: skip
    assert all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())


@pytest.mark.quick
@pytest.mark.parametrize(
    ("end", "code"), [(SystemExit("text"), 1), (SystemExit(3), 3), (KeyboardInterrupt(), 130)]
)
def test_other_ranks_are_ended_with_the_code_of_the_one_that_leaves(end, code, monkeypatch):
    ended = []
    monkeypatch.setattr(mpi, "abort", ended.append)
    monkeypatch.setattr(mpi, "mpi_rank", lambda: 1)
    monkeypatch.setattr(mpi, "launched_by_mpi", lambda: True)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with mpi.aborting_on_exit():
        raise end
    assert ended == [code]


@pytest.mark.quick
def test_without_other_ranks_an_exit_is_an_exit():
    with pytest.raises(SystemExit), mpi.aborting_on_exit():
        raise SystemExit(3)
