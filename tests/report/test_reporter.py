"""The reporter's shares of a GPU's time, and complete runs with a device clock on the host."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scripted_events import ScriptedEvents, record

from parcade import train
from parcade.config import RunConfig, TrainConfig
from parcade.errors import UsageError
from parcade.exchange.base import LocalExchange
from parcade.experience.episodes import EpisodeLog
from parcade.machine.device_timing import DeviceClock, HostEvents
from parcade.machine.timing import SCOPES, Timer
from parcade.profile.data import read_ranks
from parcade.report.callbacks import Callback, Callbacks
from parcade.report.metrics import METRICS
from parcade.report.progress import Progress
from parcade.report.reporter import Reporter

pytestmark = pytest.mark.quick


class TwoRanks(LocalExchange):
    """This rank, and another with the same values except for a GPU that is always idle."""

    world_size = 2

    def sum(self, x):
        is_device = len(x) == 6 and float(x[4] + x[5]) > 0
        return x + torch.tensor([0, 0, 0, 0, 0, x[4] + x[5]]) if is_device else 2 * x

    def check_parameters(self):
        pass


class Counting(LocalExchange):
    """Names its collective calls."""

    def __init__(self, timer):
        super().__init__(timer)
        self.calls = []

    def sum(self, x):
        self.calls.append("sum")
        return x

    def maximum(self, x):
        self.calls.append("maximum")
        return x

    def gather_rows(self, rows):
        self.calls.append("gather_rows")
        return rows

    def sum_and_gather(self, x, rows):
        self.calls.append("sum_and_gather")
        return x, rows


class Reported:
    """A reporter on a clock that the test moves; every iteration adds a report to ``reports``."""

    def __init__(self, monkeypatch, clock, exchange=LocalExchange, callbacks=()):
        self.now = 100.0
        for home in ("parcade.machine.timing.perf_counter", "time.perf_counter"):
            monkeypatch.setattr(home, lambda: self.now)
        timer = Timer()
        timer.device_clock = clock
        exchange = exchange(timer)
        exchange.check_parameters = lambda: None
        self.reports = []
        self.reporter = Reporter(
            TrainConfig("tiny_catch", run=RunConfig(report_seconds=1.0, checkpoint_seconds=1e9)),
            None,
            exchange,
            Progress(10**9, ()),
            timer=timer,
            actor_timer=None,
            view=SimpleNamespace(update=self.reports.append),
            writer=SimpleNamespace(write=lambda metrics: None),
            save=lambda: None,
            keep_policy=lambda: "",
            stop_requested=lambda: False,
            callbacks=Callbacks(callbacks),
        )
        self.source = SimpleNamespace(
            frames=0, reset_frames=0, steps=0, cut_games=0, episode_logs=[EpisodeLog(np.arange(1))]
        )

    def after(self, seconds):
        """The report after ``seconds`` more."""
        self.now += seconds
        self.reporter.record(self.source, {"loss/value": torch.tensor(1.0)})
        return self.reports[-1] if self.reports else None


def gpu(report):
    return {name.removeprefix("gpu/"): value for name, value in report.items() if name.startswith("gpu/")}


def test_a_report_has_the_shares_of_the_gpu_since_the_last_one(monkeypatch):
    clock = DeviceClock(ScriptedEvents())
    run = Reported(monkeypatch, clock)
    record(clock, "copies", 0.0, 1.0)
    record(clock, "learn", 1.0, 5.0)
    record(clock, "infer", 8.0, 9.0)
    clock.events.now = 6.0
    report = run.after(10.0)
    assert gpu(report) == pytest.approx(
        {"busy": 0.5, "idle": 0.5, "copies": 0.1, "emulate": 0.0, "infer": 0.0, "learn": 0.4}
    )
    assert set(report) <= set(METRICS)
    clock.events.now = 10.0
    assert gpu(run.after(4.0)) == pytest.approx(
        {"busy": 0.25, "idle": 0.75, "copies": 0.0, "emulate": 0.0, "infer": 0.25, "learn": 0.0}
    )
    assert gpu(run.after(2.0))["idle"] == 1.0


def test_several_ranks_report_the_mean_of_their_gpus(monkeypatch):
    clock = DeviceClock(ScriptedEvents())
    run = Reported(monkeypatch, clock, TwoRanks)
    record(clock, "learn", 0.0, 4.0)
    clock.events.now = 5.0
    assert gpu(run.after(5.0)) == pytest.approx(
        {"busy": 0.4, "idle": 0.6, "copies": 0.0, "emulate": 0.0, "infer": 0.0, "learn": 0.4}
    )


def test_an_iteration_without_a_report_takes_one_collective_call(monkeypatch):
    run = Reported(monkeypatch, None, Counting)
    for episodes in (0, 1, 2):
        run.source.episode_logs[0].add_finished(np.ones((episodes, 5)))
        run.source.frames = 100 * (episodes + 1)
        run.after(0.1)
    assert run.reporter.exchange.calls == ["sum_and_gather"] * 3
    assert (run.reporter.progress.board.episodes, run.reporter.progress.frames) == (3, 300)


def test_the_callback_of_an_episode_ends_the_run_after_its_iteration(monkeypatch):
    class Ending(Callback):
        def on_episode(self, episode):
            return episode.score == 3.0

    run = Reported(monkeypatch, None, Counting, [Ending()])
    run.reporter._report = run.reporter._checkpoint = lambda: None
    for score in (None, 1.0, 3.0):
        assert run.reporter.finished is None
        run.source.episode_logs[0].add_finished(np.full((int(score is not None), 5), score or 0.0))
        run.after(0.1)
    assert run.reporter.finished == "stopped"
    assert run.reporter.exchange.calls == ["sum_and_gather"] * 2 + [
        "maximum",
        "sum_and_gather",
        "maximum",
    ]


def test_without_a_device_clock_there_are_no_metrics_of_a_gpu(monkeypatch):
    assert gpu(Reported(monkeypatch, None).after(10.0)) == {}


@pytest.fixture
def on_stand_in(monkeypatch):
    """All timers of a run share one clock of host events, as in a run on a stand-in for a GPU."""
    clock = DeviceClock(HostEvents())

    def make(**words):
        timer = Timer(**words)
        timer.device_clock = clock
        return timer

    monkeypatch.setattr(train, "Timer", make)
    monkeypatch.setenv("PARCADE_PLAIN", "1")
    return clock


def run_to_its_end(tmp_path, **words):
    run = RunConfig(run_dir=str(tmp_path / "run"), threads_per_rank=1, report_seconds=0.05, **words)
    config = TrainConfig("tiny_catch", run=run)
    directory = train.start_run(config)
    train.run_training(config, directory)
    return directory


@pytest.mark.parametrize("overlap", [False, True], ids=["one thread", "actor and learner"])
def test_a_run_on_a_stand_in_for_a_gpu_writes_its_shares(tmp_path, on_stand_in, overlap, capsys):
    directory = run_to_its_end(tmp_path, total_frames=8_000, overlap=overlap)
    reports = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for report in reports:
        shares = gpu(report)
        assert set(shares) == {"busy", "idle", "copies", "emulate", "infer", "learn"}
        assert shares["busy"] + shares["idle"] == pytest.approx(1.0, abs=1e-4)
        assert all(0 <= share <= 1 for share in shares.values())
        assert shares["busy"] >= max(shares["infer"], shares["learn"]) > 0
    assert on_stand_in.lost == 0 and on_stand_in.num_spans > 0
    assert "% busy" in capsys.readouterr().out


def test_a_recorded_run_on_a_stand_in_for_a_gpu_has_the_devices_split(tmp_path, on_stand_in, monkeypatch):
    monkeypatch.setenv("PARCADE_PROFILE", str(tmp_path / "profile"))
    monkeypatch.setenv("PARCADE_PROFILE_SECONDS", "0.1")
    run_to_its_end(tmp_path, total_frames=10_000_000)
    (rank,) = read_ranks(tmp_path / "profile")
    device = rank.device_seconds
    assert device["busy"] + device["idle"] == pytest.approx(rank.window_seconds, rel=0.02)
    assert min(device["infer"], device["learn"]) > 0 == device["copies"]
    assert rank.device_spans > 0 and rank.device_span_cost_seconds > 0 and set(rank.seconds) == set(SCOPES)


def test_the_other_ranks_fail_with_the_first_one_when_its_reports_cannot_start(tmp_path, monkeypatch):
    import parcade.build.reporting as reporting

    def fail(*arguments):
        raise UsageError("W&B cannot start")

    monkeypatch.setattr(reporting, "make_writers", fail)
    config, exchange = TrainConfig("tiny_catch"), SimpleNamespace(maximum=lambda failed: np.ones(1))
    for view, expected in ((SimpleNamespace(say=print), "W&B cannot start"), (None, "the first rank cannot")):
        with (
            pytest.raises(UsageError, match=expected),
            reporting.open_reporter(
                config, tmp_path, exchange, progress=Progress(1, ()), view=view, resume=False
            ),
        ):
            pass
