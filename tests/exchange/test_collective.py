"""Timing of an Allreduce whose call returns before the device is done."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parcade.exchange import collective
from parcade.exchange.collective import CollectiveExchange
from parcade.machine.timing import Timer
from parcade.profile.recorder import Recorder

pytestmark = pytest.mark.quick


class Device:
    """A clock that only work moves.

    Work starts at once and is done when the host synchronizes with the device.
    """

    type = "cuda"

    def __init__(self, monkeypatch):
        self.now, self.queued = 0.0, 0.0
        for home in ("parcade.machine.timing.perf_counter", "time.perf_counter"):
            monkeypatch.setattr(home, lambda: self.now)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        zeros = torch.zeros
        monkeypatch.setattr(
            collective.torch, "zeros", lambda n, device: Buffer(self) if device is self else zeros(n)
        )

    def synchronize(self, device):
        assert device is self
        self.now, self.queued = self.now + self.queued, 0.0


class Buffer:
    """A tensor of 1,000 bytes on such a device."""

    def __init__(self, device):
        self.device = device

    def numel(self):
        return 250

    def element_size(self):
        return 4

    def __itruediv__(self, other):
        return self


class Launching(CollectiveExchange):
    """An Allreduce of 2 s whose call takes 0.001 s."""

    world_size = 2

    def _reduce(self, x):
        x.device.now += 0.001
        x.device.queued += 2.0

    def maximum(self, x):
        return x


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch)


def test_a_recorded_allreduce_takes_what_the_device_takes_and_the_backward_pass_before_it_is_learning(device):
    timer = Timer()
    exchange, grad = Launching(timer), Buffer(device)
    exchange.on_collective = lambda num_bytes, over: None
    with timer.scope("learn"):
        device.queued += 5.0  # the backward pass
        exchange.average_gradient(grad)
        exchange.sum(grad)
    assert exchange.allreduce_seconds == pytest.approx(2.001)
    assert timer.seconds["communicate"] == pytest.approx(4.002) and timer.seconds["learn"] == pytest.approx(
        5.0
    )


def test_the_cores_of_ranks_on_other_hosts_are_not_of_this_one(device, monkeypatch):
    monkeypatch.setattr(collective, "usable_cores", lambda: (2, 3))
    exchange = Launching(Timer())
    others = np.array([[0, 1], [0, 4], [2, 0], [2, 3]])  # of ranks 0 and 1 on the first host, and of rank 2
    monkeypatch.setattr(exchange, "gather_rows", lambda rows: np.concatenate([others, rows]).astype(float))
    assert exchange._cores_of_host(2) == (0, 2, 3)


def test_nothing_waits_for_the_device_without_a_recorder(device):
    exchange = Launching(Timer())
    exchange.average_gradient(Buffer(device))
    exchange.sum(Buffer(device))
    assert device.now == pytest.approx(0.002) and device.queued == 4.0


def test_the_ceiling_is_of_a_buffer_where_the_gradient_lives(device, tmp_path):
    exchange = Launching(Timer())
    exchange.parameters = SimpleNamespace(grad=Buffer(device))
    device.queued = 7.0
    np.testing.assert_allclose(exchange.time_allreduce(250, 3, device), 2.001)
    recorder = Recorder(tmp_path, 10.0, exchange, exchange.timer, None, barrier=True)
    for _ in range(3):
        device.now += 1.0
        recorder.end_iteration(SimpleNamespace(steps=0, frames=0))
    recorder.write()
    written = json.loads((tmp_path / "rank-0.json").read_text())
    np.testing.assert_allclose(written["ceiling_seconds"], 2.001)
