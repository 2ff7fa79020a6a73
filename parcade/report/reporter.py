"""The reporter sums counters over all ranks, decides when to report, save and stop, and writes the metrics.

Every rank has a reporter, and all reporters make the same decisions. One small Allreduce per iteration sums
the counters, and counts the ranks that want each decision that depends on a clock, a signal or a file, so
that no rank leaves the loop while another waits for it. Iterations in which episodes ended gather their rows.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parcade.config import TrainConfig
from parcade.errors import UsageError
from parcade.exchange.base import Exchange
from parcade.experience.source import Source
from parcade.files.run_directory import checkpoint_directory, complete_checkpoints
from parcade.machine.device_timing import device_seconds
from parcade.machine.timing import SCOPES, Timer, process_cpu_seconds
from parcade.report.callbacks import Callbacks
from parcade.report.progress import COUNTERS, Progress
from parcade.report.terminal import PlainView
from parcade.report.writers import Writer

REPORT, CHECKPOINT, STOP, TIME_UP, HAS_CALLBACKS = range(5)
NUM_FLAGS = 5
"""Flags that a rank sets for itself and that hold for all."""


@dataclass(eq=False)
class Reporter:
    """Follows one run. ``finished`` is None while the run continues, then the reason it ended.

    Args:
        timer: timer of this thread. Attach its device clock before creating the reporter, which reads it once
            per report.
        view, writer: destinations of reports; None on every rank but the first.
        save: writes a checkpoint; called on all ranks together. Returns why it could not, or "".
        keep_policy: keeps the policy for good; called on the first rank. Returns why it could not, or "".
        stop_requested: polled every iteration (a signal, a file); true on any rank stops all ranks.
        on_iteration: called with the source at the start of ``record``; used to record a profile.
        callbacks: the user's; called on the first rank.
    """

    config: TrainConfig
    run: Path
    exchange: Exchange
    progress: Progress
    _: KW_ONLY
    timer: Timer
    actor_timer: Timer | None
    view: PlainView | None
    writer: Writer | None
    save: Callable[[], str]
    keep_policy: Callable[[], str]
    stop_requested: Callable[[], bool]
    on_iteration: Callable[[Source], None] | None = None
    callbacks: Callbacks = field(default_factory=Callbacks)

    def __post_init__(self) -> None:
        # A run that was killed after its last checkpoint, before its result was written, is finished.
        self.finished = self._reason_to_finish(np.zeros(NUM_FLAGS)) if self.progress.iterations else None
        self._last_report = self._last_checkpoint = time.perf_counter()
        self._last_counts = self._counts()
        self._last_seconds = self._seconds()
        clock = self.timer.device_clock
        self._last_device = clock.snapshot() if clock else {}
        self._sums: dict[str, Tensor] = {}
        self._iterations_since = 0
        self._new_scores: list[float] = []
        self._source: Source | None = None
        self._has_failed_to_end = False
        self._lacks_policy = False

    def _counts(self) -> tuple[int, int, int]:
        return self.progress.frames, self.progress.steps, self.progress.updates

    def _seconds(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return seconds per scope of this thread and of the actor thread."""
        return self.timer.snapshot(), self.actor_timer.snapshot() if self.actor_timer else {}

    def record(self, source: Source, metrics: dict[str, Tensor]) -> None:
        """Record one iteration. Report and save if due, and decide whether the run is finished."""
        self._source = source
        if self.on_iteration is not None:
            self.on_iteration(source)
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._iterations_since += 1
        frames_before = self.progress.frames
        report, checkpoint = self._synchronise(source)
        if report or self.finished:
            self._report()
        if self._is_policy_due(frames_before) or (
            checkpoint and self._lacks_policy
        ):  # first: a resume from the checkpoint does not keep it again
            self._keep_policy()
        if checkpoint or self.finished:
            self._checkpoint()

    def _is_policy_due(self, frames_before: int) -> bool:
        """Whether the iteration passed a multiple of ``keep_policy_frames``, or ended the run as planned."""
        every = self.config.run.keep_policy_frames
        if not every:
            return False
        passed = self.progress.frames // every > frames_before // every
        return passed or self.finished not in (None, "stopped")

    def _keep_policy(self) -> None:
        """Keep the policy for good, on the first rank; if that fails, again with the next checkpoint.

        Errors: UsageError if weights are not finite.
        """
        self.exchange.check_finite()
        if self.exchange.rank == 0:
            with self.timer.scope("checkpoint"):
                failure = self.keep_policy()
            self._lacks_policy = bool(failure)
            if failure:
                self.say(
                    f"warning: the policy at {self.progress.frames:,} frames could not be kept ({failure}); "
                    "the next checkpoint tries again"
                )

    def _synchronise(self, source: Source) -> tuple[bool, bool]:
        """Sum counters over ranks and agree on whether a report and a checkpoint are due."""
        p, now = self.progress, time.perf_counter()
        is_first, limit = self.exchange.rank == 0, self.config.run.time_limit_seconds
        due = np.zeros(NUM_FLAGS)
        due[REPORT] = is_first and now - self._last_report >= self.config.run.report_seconds
        due[CHECKPOINT] = is_first and now - self._last_checkpoint >= self.config.run.checkpoint_seconds
        due[STOP] = self.stop_requested() or self.callbacks.stops
        due[TIME_UP] = is_first and limit is not None and p.wall_seconds >= limit
        due[HAS_CALLBACKS] = self.callbacks.are_any
        counts = [source.frames, source.reset_frames, source.steps, source.cut_games]
        sums = np.array([*due, *counts, self._cpu_seconds(source)], np.float64)
        rows = np.concatenate([log.take_new() for log in source.episode_logs])
        sums, rows = self.exchange.sum_and_gather(sums, rows)
        due, counts = sums[:NUM_FLAGS], sums[NUM_FLAGS:-1]
        p.frames, p.reset_frames, p.steps, p.cut_games = (int(x) for x in counts)
        p.cpu_seconds = p.cpu_seconds_before + float(sums[-1])
        p.updates = self.exchange.updates
        p.iterations += 1
        p.board.add(rows)
        self._new_scores += rows[:, 0].tolist()
        if is_first:
            self.callbacks.episodes(rows)
        if due[HAS_CALLBACKS] and len(rows):  # the callback of an episode may have ended the run
            due[STOP] += self.exchange.maximum(np.array([float(self.callbacks.stops)]))[0]
        for score in p.mark_milestones():
            self.say(f"mean score {score:g} reached after {p.wall_seconds:.0f} s and {p.frames:,} frames")
        self.finished = self._reason_to_finish(due)
        return bool(due[REPORT]), bool(due[CHECKPOINT])

    def _cpu_seconds(self, source: Source) -> float:
        """Return the CPU time of this rank's process since the run's start, and of actors elsewhere."""
        own = process_cpu_seconds() - self.progress.since.cpu_seconds
        return own + getattr(source, "cpu_seconds", 0.0)

    def _reason_to_finish(self, due: np.ndarray) -> str | None:
        p, target = self.progress, self.config.run.target_score
        if target is not None and p.board.is_full and p.board.score_mean >= target:
            return "target_score"
        if p.frames >= self.config.run.total_frames:
            return "total_frames"
        if due[TIME_UP]:
            return "time_limit"
        return "stopped" if due[STOP] else None

    def _report(self) -> None:
        self.exchange.check_parameters()
        means, shares = self._mean_metrics(), self._time_shares()
        p, now = self.progress, time.perf_counter()
        elapsed = max(now - self._last_report, 1e-9)
        new = zip(self._counts(), self._last_counts, strict=True)
        frames, steps, updates = (count - last for count, last in new)
        metrics: dict[str, Any] = {
            **{name: getattr(p, name) for name in COUNTERS if name != "cut_games"},
            "episodes": p.board.episodes,
            "wall_seconds": round(p.wall_seconds, 3),
            "cpu_seconds": round(p.cpu_seconds, 3),
            "frames_per_second": frames / elapsed,
            "steps_per_second": steps / elapsed,
            # A learner that died has fewer updates: it continues from its last snapshot.
            "updates_per_second": max(updates, 0) / elapsed,
            "score_mean": p.board.score_mean,
            "score_last": float(np.mean(self._new_scores)) if self._new_scores else None,
            "episode_steps_mean": p.board.steps_mean,
            "communicated_bytes": self.exchange.bytes_moved,
            **means,
            **shares,
            **self._device_shares(elapsed),
            **getattr(self._source, "gauges", {}),
        }
        if self.view is not None:
            self.view.update(metrics)
            self.writer.write(metrics)
            self.callbacks.report(metrics)
        self._last_report, self._last_counts = now, self._counts()
        self._sums, self._iterations_since, self._new_scores = {}, 0, []

    def _mean_metrics(self) -> dict[str, float]:
        """Return means of the algorithm's metrics over iterations and ranks.

        This is the only place that fetches them from the device.
        """
        names = sorted(self._sums)
        if not names:
            return {}
        stacked = torch.stack([torch.as_tensor(self._sums[name]).double().cpu() for name in names])
        total = self.exchange.sum(stacked) / (self._iterations_since * self.exchange.world_size)
        return dict(zip(names, total.tolist(), strict=True))

    def _time_shares(self) -> dict[str, float]:
        """Return the share of wall clock per scope since the last report, mean over ranks."""
        shares: dict[str, float] = {}
        snapshots = self._seconds()
        for prefix, now, last in zip(("time/", "actor_time/"), snapshots, self._last_seconds, strict=True):
            if now:
                spent = torch.tensor([now[s] - last[s] for s in SCOPES], dtype=torch.float64)
                spent = self.exchange.sum(spent)
                for scope, share in zip(SCOPES, (spent / spent.sum()).tolist(), strict=True):
                    shares[prefix + scope] = round(share, 5)
        self._last_seconds = snapshots
        return shares

    def _device_shares(self, elapsed: float) -> dict[str, float]:
        """Return the share of wall clock per kind of GPU work since the last report, mean over ranks.

        The result is empty without a GPU. Call this after ``_mean_metrics``, which waits until the work
        queued by the learner has finished.
        """
        if self.timer.device_clock is None:
            return {}
        now = self.timer.device_clock.snapshot()
        spent = device_seconds(self._last_device, now, elapsed)
        self._last_device = now
        total = self.exchange.sum(torch.tensor(list(spent.values()), dtype=torch.float64))
        shares = total / (elapsed * self.exchange.world_size)
        return {f"gpu/{name}": round(share, 5) for name, share in zip(spent, shares.tolist(), strict=True)}

    def _checkpoint(self) -> None:
        """Save. A run that cannot save its end plays one more iteration, which restarts lost learners.

        Errors: UsageError if weights are not finite, or the end cannot be saved then either.
        """
        self.exchange.check_finite()
        with self.timer.scope("checkpoint"):
            failure = self.save()
        self._last_checkpoint = time.perf_counter()
        if not failure:
            if self.exchange.rank == 0:
                self.callbacks.checkpoint(checkpoint_directory(self.run, self.progress.frames))
            return
        if self.finished and self._has_failed_to_end:
            there = complete_checkpoints(self.run)
            again = (
                f"continue with: parcade train --resume {self.run}"
                if there
                else f"start it again with another --run-dir than {self.run}"
            )
            is_deleted = os.strerror(errno.ENOENT) in failure  # the run's directory
            room = "" if is_deleted else "free some space, then "
            raise UsageError(f"the end of this run could not be saved ({failure}); {room}{again}")
        self.say(f"warning: no checkpoint could be written ({failure}); training continues")
        if self.finished:
            self._has_failed_to_end, self.finished = True, None

    def say(self, line: str) -> None:
        """Show the user one line of text. Only the first rank does."""
        if self.view is not None:
            self.view.say(line)
