"""The stand-in for CUDA graphs replays from its own memory and enforces every rule of a real graph."""

import pytest
import torch

from parcade.capture import Capture, CaptureError, Fixed, make_capture
from parcade.capture import base as capture_base
from parcade.capture.base import RecordingCapture
from parcade.capture.stand_in import StandInGraphs
from parcade.errors import UsageError
from parcade.machine.devices import STAND_IN

pytestmark = pytest.mark.quick


def run_three_times(capture, function, *arguments):
    """One call that warms up, one that records, and one that only replays."""
    for _ in range(3):
        result = capture.run(function, *arguments)
    return result


def test_a_replay_does_what_a_call_does_on_new_values():
    weights = torch.ones(3)

    def weighted(x, y):
        weights.mul_(2)
        return {"sum": (x * weights).sum() + y.amax()}

    capture, expected_weights = StandInGraphs(), torch.ones(3)
    for i in range(6):
        x, y = torch.full((3,), float(i)), torch.tensor([1.0, float(i)])
        expected_weights *= 2
        got = capture.run(weighted, x, y)["sum"]
        assert got == (x * expected_weights).sum() + y.amax()
        # Written in place once per call, also by the recording's own call.
        assert torch.equal(weights, expected_weights)
    assert capture.num_graphs == 1


def test_gradients_and_steps_are_replayed():
    def build():
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8, 2)
        )
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer = torch.optim.Adam(module.parameters(), lr=torch.tensor(0.1), fused=True)

        def update(x):
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            for parameter in module.parameters():
                parameter.grad.zero_()
            return loss.detach()

        return module, update

    data = torch.randn(8, 3, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    (plain, update), (recorded, recorded_update), capture = build(), build(), StandInGraphs()
    for x in data:
        assert update(x) == capture.run(recorded_update, x)
    for a, b in zip(plain.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_replay_reads_its_own_copies_of_the_arguments():
    capture, seen = StandInGraphs(), []
    given = [torch.full((2,), float(i)) for i in range(5)]
    for x in given:
        seen.append(capture.run(torch.neg, x).clone())
        x.fill_(torch.nan)  # overwritten after the call
    assert torch.stack(seen).tolist() == [[-float(i)] * 2 for i in range(5)]


def test_an_argument_that_another_replay_wrote_is_seen():
    """Writes of a replay do not change a tensor's version counter, so the counter proves nothing."""
    written, capture = torch.zeros(2), StandInGraphs()

    def write(x):
        written[:1].index_copy_(0, torch.zeros(1, dtype=torch.int64), x)

    for i in range(6):
        capture.run(write, torch.tensor([float(i)]))
        assert capture.run(torch.neg, written).tolist() == [-float(i), 0]


def test_fixed_arguments_are_copied_once_for_each_fixed_object():
    capture, x = StandInGraphs(), torch.ones(2)

    def added(a, b, c):
        return a + b + c

    for i in range(4):
        x.fill_(i)
        held = Fixed(x, torch.full((2,), 10.0 * i))
        for j in range(3):
            assert capture.run(added, held, torch.tensor(100.0 * j)).tolist() == [11 * i + 100 * j] * 2
    assert capture.num_graphs == 1 and Capture().run(added, held, torch.tensor(0.0)).tolist() == [33, 33]
    x.fill_(-1)  # violates the contract that held tensors keep their values
    assert capture.run(added, held, torch.tensor(0.0)).tolist() == [33, 33]


def test_other_shapes_types_and_values_get_recordings_of_their_own():
    capture = StandInGraphs()

    def scaled(x, doubled):
        return x * 2 if doubled else x * 1

    for x in (torch.ones(2), torch.ones(3), torch.ones(2, dtype=torch.int64)):
        for doubled in (False, True):
            assert torch.equal(run_three_times(capture, scaled, x, doubled), x * (2 if doubled else 1))
    assert capture.num_graphs == 6


def reads_item(x):
    return x * x.sum().item()


def reads_cpu(x):
    return x.cpu() + 1


def reads_numpy(x):
    return torch.zeros(1) + float(x.detach().numpy()[0])


def decides_by_a_value(x):
    return x + 1 if x.sum() > 0 else x


def takes_data_of_the_host(x):
    return x + torch.tensor([1.0])


def has_a_shape_that_depends_on_values(x):
    return x[x > 0].sum()


def finds_where(x):
    return x.nonzero()


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (reads_item, "reads a value on the host"),
        (reads_cpu, "Tensor.cpu reads a value on the host"),
        (reads_numpy, "Tensor.numpy reads a value on the host"),
        (decides_by_a_value, "reads a value on the host"),
        (takes_data_of_the_host, "tensor takes data from the host"),
        (has_a_shape_that_depends_on_values, "shape that depends on values"),
        (finds_where, "shape that depends on values"),
    ],
)
def test_what_a_graph_cannot_hold_is_refused(function, what):
    with pytest.raises(CaptureError, match=what):
        run_three_times(StandInGraphs(), function, torch.ones(2))


def test_a_tensor_that_was_allocated_inside_must_not_be_kept():
    kept = []

    def keeps(x):
        kept.append(x + 1)
        return x * 2

    with pytest.raises(CaptureError, match=r"keeps a tensor of shape \(2,\)"):
        run_three_times(StandInGraphs(), keeps, torch.ones(2))


@pytest.mark.parametrize("change", ["address", "shape"])
def test_what_was_recorded_must_stay_where_it_is(change):
    weights, capture = torch.nn.Parameter(torch.ones(2)), StandInGraphs()

    def weighted(x):
        return (x * weights).sum().detach()

    run_three_times(capture, weighted, torch.ones(2))
    weights.data = torch.ones(2) if change == "address" else torch.ones(1)
    with pytest.raises(CaptureError, match="must not move"):
        capture.run(weighted, torch.ones(2))


def test_a_float_argument_is_refused_because_it_would_be_recorded_for_good():
    with pytest.raises(CaptureError, match="pass a tensor"):
        StandInGraphs().run(torch.mul, torch.ones(2), 0.5)


class Lenient(RecordingCapture):
    """A capture whose recording fails."""

    def record(self, function, arguments):
        raise RuntimeError("operation not permitted\nwhen stream is capturing")


def test_what_cannot_be_captured_says_so_once_and_runs_as_it_is(capsys):
    capture = Lenient()
    for i in range(6):
        assert capture.run(torch.neg, torch.tensor([float(i)])).tolist() == [-i]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "operation not permitted" in said[0] and "individually" in said[0]


def test_too_little_memory_for_a_graph_is_one_line():
    class Full(RecordingCapture):
        def record(self, function, arguments):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(UsageError, match="too little memory .* use --no-capture, fewer --num-envs"):
        run_three_times(Full(), torch.neg, torch.ones(2))


def test_shapes_that_keep_changing_end_in_plain_calls_and_bounded_memory(capsys, monkeypatch):
    monkeypatch.setattr(capture_base, "MOST_GRAPHS", 3)
    capture = StandInGraphs()
    for size in range(1, 8):
        assert len(run_three_times(capture, torch.neg, torch.ones(size))) == size
    assert capture.num_graphs == 3 and "more than 3 kinds of arguments" in capsys.readouterr().err
    for size in range(1, 1000):
        capture.run(torch.abs, torch.ones(size))
    assert len(capture._calls) <= capture_base.MOST_COUNTED


def test_what_records_is_chosen_by_device_and_setting(monkeypatch):
    monkeypatch.setenv(STAND_IN, "1")
    assert type(make_capture("cuda")) is StandInGraphs
    assert type(make_capture("cuda", enabled=False)) is Capture
    assert type(make_capture("cpu")) is Capture
