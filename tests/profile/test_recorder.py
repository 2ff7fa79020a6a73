"""The recorder on a clock that the test moves: splits, segments, timelines and overhead."""

from types import SimpleNamespace

import numpy as np
import profiles
import pytest
import torch

from parcade.errors import UsageError
from parcade.exchange.base import LocalExchange
from parcade.machine import facts
from parcade.machine.device_timing import DeviceClock, HostEvents
from parcade.machine.timing import SCOPES, Timer
from parcade.profile import recorder as module
from parcade.profile.data import read_ranks, write_rank
from parcade.profile.recorder import (
    Recorder,
    recorder_from_environment,
    scope_cost_seconds,
    span_cost_seconds,
)
from parcade.profile.spans import binned, usual_segments

pytestmark = pytest.mark.quick


class World:
    """A rank whose clock is moved only by the test."""

    def __init__(self, monkeypatch, folder, seconds=100.0):
        self.now = 0.0
        for home in (
            "parcade.machine.timing.perf_counter",
            "parcade.machine.device_timing.perf_counter",
            "time.perf_counter",
            "time.process_time",
        ):
            monkeypatch.setattr(home, lambda: self.now)
        self.own = 0.0  # CPU seconds of the rank's main thread
        monkeypatch.setattr("time.thread_time", lambda: self.own)
        monkeypatch.setattr(module, "scope_cost_seconds", lambda: 1e-6)
        self.timer = Timer()
        self.exchange = LocalExchange(self.timer)
        self.exchange.parameters = SimpleNamespace(grad=torch.zeros(250))
        self.counts = SimpleNamespace(steps=0, frames=0)
        self.recorder = Recorder(folder, seconds, self.exchange, self.timer, None, barrier=True)

    def work(self, scope, seconds):
        with self.timer.scope(scope):
            self.now += seconds

    def call(self, num_bytes, seconds):
        """A collective call as an exchange makes it."""
        if self.exchange.on_collective is not None:
            self.exchange.on_collective(num_bytes, False)
        self.work("communicate", seconds)
        if self.exchange.on_collective is not None:
            self.exchange.on_collective(num_bytes, True)

    def iteration(self, *, calls=2):
        self.work("emulate", 4.0)
        for _ in range(calls):
            self.work("learn", 1.0)
            self.call(1000, 0.5)
            self.exchange.bytes_moved += 1000
            self.exchange.allreduce_seconds += 0.5
        self.now += 0.25
        self.counts.steps += 10
        self.counts.frames += 40
        self.recorder.end_iteration(self.counts)


def wait_at_a_call(world, seconds):
    """A collective call with a barrier at which this rank waits."""
    world.exchange.on_collective(1000, False)
    world.work("wait", seconds)
    world.work("communicate", 0.5)
    world.exchange.on_collective(1000, True)


@pytest.fixture
def world(monkeypatch, tmp_path):
    return World(monkeypatch, tmp_path)


def test_waiting_at_barriers_is_told_from_waiting_for_the_actors_thread(world, tmp_path):
    for _ in range(2):
        world.iteration()
    for _ in range(3):
        world.work("wait", 2.0)  # for the actor's thread
        with world.timer.scope("learn"):
            wait_at_a_call(world, 0.25)
            world.work("wait", 0.125)  # after the call
        world.iteration(calls=0)
    world.recorder.write()
    (found,) = read_ranks(tmp_path)
    assert found.barrier_seconds == 0.75 and found.seconds["wait"] == 3 * 2.375


def test_a_window_leaves_out_the_first_iterations_and_splits_the_rest(world, tmp_path):
    for _ in range(2 + 3):
        world.iteration()
    world.work("checkpoint", 2.0)
    world.recorder.write()
    (rank,) = read_ranks(tmp_path)
    assert rank.iteration_seconds == pytest.approx([7.25] * 3)
    assert rank.seconds == pytest.approx(
        {**dict.fromkeys(SCOPES, 0.0), "emulate": 12, "learn": 6, "communicate": 3, "other": 0.75}
    )
    assert (rank.steps, rank.frames, rank.allreduces, rank.gradient_bytes) == (30, 120, 6, 1000)
    assert rank.allreduce_seconds == pytest.approx(3.0)
    assert rank.checkpoint_save_seconds == pytest.approx(2.0)
    assert rank.work_seconds == pytest.approx(18.75)


def test_a_gpus_window_is_the_hosts(world, tmp_path):
    world.timer.device_clock = DeviceClock(HostEvents())
    for _ in range(2 + 3):
        with world.timer.on_device("copies"):
            world.now += 0.25
        world.iteration()
    world.work("infer", 5.0)
    world.recorder.write()
    (rank,) = read_ranks(tmp_path)
    expected = {"copies": 0.75, "emulate": 0.0, "infer": 0.0, "learn": 6.0, "busy": 6.75, "idle": 15.75}
    assert rank.device_seconds == pytest.approx(expected)
    assert rank.window_seconds == pytest.approx(22.5)
    assert (rank.device_spans, rank.device_name) == (3 * 3, HostEvents.name)


def test_without_a_gpu_there_is_nothing_of_one(world, tmp_path):
    for _ in range(3):
        world.iteration()
    world.recorder.write()
    (rank,) = read_ranks(tmp_path)
    assert rank.device_seconds == {} and (rank.device_spans, rank.device_span_cost_seconds) == (0, 0.0)


def test_ranks_of_several_recordings_are_not_read_as_one(tmp_path):
    for number in range(3):
        write_rank(profiles.rank(number, world_size=3, recording="1700000000.000001"), tmp_path)
    assert [rank.rank for rank in read_ranks(tmp_path)] == [0, 1, 2]
    for number in range(2):
        write_rank(profiles.rank(number, world_size=2, recording="1700000060.000001"), tmp_path)
    with pytest.raises(
        UsageError, match=r"holds ranks of several recordings; delete the earlier files: rank-2.json$"
    ):
        read_ranks(tmp_path)
    (tmp_path / "rank-2.json").unlink()
    assert [rank.rank for rank in read_ranks(tmp_path)] == [0, 1]
    (tmp_path / "rank-1.json").unlink()
    with pytest.raises(UsageError, match="holds 1 of the 2 ranks of its recording: rank-1.json is missing"):
        read_ranks(tmp_path)


def test_a_file_of_a_rank_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "rank-0.json").mkdir()
    with pytest.raises(UsageError, match=r"rank-0\.json cannot be read \(Is a directory\); expected a file"):
        read_ranks(tmp_path)


def test_a_recording_says_when_it_began_and_of_how_many_ranks_it_is(world, tmp_path, monkeypatch):
    monkeypatch.setattr(module.time, "time", lambda: 1_700_000_000.25)
    for _ in range(3):
        world.iteration()
    world.recorder.write()
    (rank,) = read_ranks(tmp_path)
    assert (rank.world_size, rank.recording) == (1, "1700000000.250000")


def test_own_work_is_cut_at_the_collective_calls(world, tmp_path):
    for _ in range(4):
        world.iteration()
    world.recorder.write()
    (rank,) = read_ranks(tmp_path)
    assert np.allclose(rank.segments, [[5.0, 1.0, 0.25]] * 2)
    assert np.allclose(rank.cpu_segments, rank.segments)
    assert rank.segment_bytes == [1000, 1000]


def test_what_happens_outside_the_window_is_not_recorded(world, tmp_path):
    for _ in range(2 + 3):
        world.iteration()
        with world.recorder.outside_window():
            assert not world.exchange.barrier_first
            world.call(16, 2.0)
    assert world.recorder.seconds_left == pytest.approx(100 - 3 * 7.25)
    assert world.exchange.barrier_first
    world.recorder.write()
    (rank,) = read_ranks(tmp_path)
    assert rank.iteration_seconds == rank.iteration_cpu_seconds == pytest.approx([7.25] * 3)
    assert rank.seconds["communicate"] == pytest.approx(3.0)
    assert np.allclose(rank.segments, [[5.0, 1.0, 0.25]] * 3)
    assert np.allclose(rank.cpu_segments, rank.segments)
    assert rank.segment_bytes == [1000, 1000]


def test_what_an_iteration_does_before_more_calls_than_most_make_is_work_before_the_first():
    iterations = [
        ([1.0, 2.0], [8], [0.5, 1.0]),
        ([1.0, 2.0, 3.0], [8, 9], [1.0, 1.0, 1.0]),
        ([3.0, 4.0], [8], [0.5, 2.0]),
        ([7.0], [], [7.0]),
    ]
    assert usual_segments(iterations) == (
        [[1.0, 2.0], [3.0, 3.0], [3.0, 4.0]],
        [8],
        [[0.5, 1.0], [2.0, 1.0], [0.5, 2.0]],
    )
    assert usual_segments([]) == ([], [], [])


def test_the_overhead_is_the_scopes_price_over_the_cpu_time(world, tmp_path):
    for _ in range(3):
        world.iteration()
    world.recorder.write()
    (rank,) = read_ranks(tmp_path)
    assert rank.scopes == pytest.approx(11, abs=3)
    assert rank.overhead_share == pytest.approx(1e-6 * rank.scopes / 7.25)


def test_the_overhead_includes_what_the_recorder_reads_after_an_iteration(world, tmp_path, monkeypatch):
    readings = []

    def read(process):
        readings.append(world.now)
        world.own += 0.25
        return {1: world.now}

    monkeypatch.setattr(module, "thread_seconds", read)
    for _ in range(2 + 3):
        world.iteration()
    world.recorder.write()
    (rank,) = read_ranks(tmp_path)
    assert readings == pytest.approx([14.5, 21.75, 29.0, 36.25])
    assert rank.overhead_share == pytest.approx((1e-6 * rank.scopes + 3 * 0.25) / (3 * 7.25))


def test_threads_are_read_now_and_then_and_at_the_end_of_the_window(world, tmp_path, monkeypatch):
    readings = []
    monkeypatch.setattr(
        module, "thread_seconds", lambda process: readings.append(world.now) or {1: world.now}
    )
    monkeypatch.setattr(module, "THREADS_SECONDS", 16.0)
    world.recorder.seconds = 5 * 7.25
    for _ in range(2 + 5):
        world.iteration()
    assert [round(at / 7.25) for at in readings] == [2, 3, 6, 7]
    world.recorder.write()
    (rank,) = read_ranks(tmp_path)
    assert (rank.threads, rank.busy_threads) == (1, 1)


def test_the_cores_and_quota_of_the_hosts_ranks_are_recorded_next_to_the_ranks_own(
    world, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "usable_cores", lambda: (1,))
    monkeypatch.setattr(facts, "cgroup_cores", lambda: 2.5)
    world.exchange.local_cores = (0, 1, 2, 3)
    for _ in range(3):
        world.iteration()
    world.recorder.write()
    (rank,) = read_ranks(tmp_path)
    assert (rank.affinity, rank.local_cores, rank.cores_at_once) == ([1], [0, 1, 2, 3], 2)


def test_the_window_is_full_after_its_seconds(world):
    world.recorder.seconds = 10.0
    for _ in range(3):
        world.iteration()
    assert not world.recorder.is_full
    world.iteration()
    assert world.recorder.is_full


def test_a_run_too_short_to_be_recorded_says_so(world):
    world.iteration()
    with pytest.raises(UsageError, match="ended before iteration 3.* or the epochs of a fit"):
        world.recorder.write()


def test_a_timeline_is_shares_of_equal_bins():
    spans = [("emulate", 10.0, 11.0), ("learn", 11.0, 13.0), ("emulate", 13.0, 14.0)]
    shares, width = binned([spans[:2], spans[2:]])
    shares = np.array(shares)
    assert width == pytest.approx(4.0 / len(shares))
    assert np.allclose(shares.sum(1), 1.0, atol=2e-3)
    quarter = len(shares) // 4
    assert np.allclose(shares[:quarter, SCOPES.index("emulate")], 1.0)
    assert np.allclose(shares[quarter : 3 * quarter, SCOPES.index("learn")], 1.0)
    assert binned([]) == ([], 0.0)


def test_a_scope_costs_microseconds_not_more():
    assert 0 < scope_cost_seconds() < 1e-4


def test_the_price_of_a_span_is_measured_on_a_clock_of_its_own():
    clock = DeviceClock(HostEvents())
    assert span_cost_seconds(clock) > 0 and clock.num_spans == 0
    assert span_cost_seconds(None) == 0.0


def test_the_environment_asks_for_a_recorder(monkeypatch, tmp_path):
    exchange = LocalExchange(Timer())
    monkeypatch.delenv("PARCADE_PROFILE", raising=False)
    assert recorder_from_environment(exchange, exchange.timer) is None
    monkeypatch.setenv("PARCADE_PROFILE", str(tmp_path / "new"))
    monkeypatch.setenv("PARCADE_PROFILE_SECONDS", "7.5")
    monkeypatch.setenv("PARCADE_PROFILE_BARRIER", "0")
    found = recorder_from_environment(exchange, exchange.timer)
    assert found.seconds == 7.5 and not found.barrier and (tmp_path / "new").is_dir()
    monkeypatch.setenv("PARCADE_PROFILE_SECONDS", "long")
    with pytest.raises(UsageError, match="PARCADE_PROFILE_SECONDS='long' is not a number"):
        recorder_from_environment(exchange, exchange.timer)
    for seconds in ("nan", "0", "inf"):
        monkeypatch.setenv("PARCADE_PROFILE_SECONDS", seconds)
        with pytest.raises(UsageError, match=f"PARCADE_PROFILE_SECONDS={seconds} is not above 0 and finite"):
            recorder_from_environment(exchange, exchange.timer)
    monkeypatch.setenv("PARCADE_PROFILE_SECONDS", "7.5")
    (tmp_path / "file").touch()
    monkeypatch.setenv("PARCADE_PROFILE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="file cannot be a directory .*file is a file.; use another path"):
        recorder_from_environment(exchange, exchange.timer)
    monkeypatch.setenv("PARCADE_PROFILE", "/proc/self")  # not even root can create files here
    with pytest.raises(UsageError, match="PARCADE_PROFILE=/proc/self cannot be written .*; use another path"):
        recorder_from_environment(exchange, exchange.timer)


def test_a_profile_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "rank-0.json").mkdir()
    with pytest.raises(UsageError, match=r"rank-0.json could not be written \(Is a directory\); use another"):
        write_rank(profiles.rank(0), tmp_path)
