"""Callbacks: functions of the user's that a run calls when it reports, saves, or ends an episode."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parcade.errors import UsageError
from parcade.experience.episodes import ENV, FRAMES, SCORE, STEPS


class Report(NamedTuple):
    """One report of a run. Counters are totals since its start."""

    frames: int
    updates: int
    episodes: int
    score_mean: float | None
    """Mean raw score of the last 100 episodes; None before the first one ends."""
    metrics: dict[str, Any]
    """Everything that a line of ``metrics.jsonl`` holds."""


class Episode(NamedTuple):
    """A finished episode: its raw score, its length, and the index of its environment."""

    score: float
    steps: int
    frames: int
    env: int


class Callback:
    """Base of callbacks with state: override any of the methods. A method that returns True ends the run."""

    def on_report(self, report: Report) -> bool | None:
        """Called every ``report_seconds`` and at the end of the run."""

    def on_episode(self, episode: Episode) -> bool | None:
        """Called for every finished episode, after the iteration in which it ended."""

    def on_checkpoint(self, directory: Path) -> bool | None:
        """Called after a checkpoint has been written to this directory."""


class Callbacks:
    """Calls the user's callbacks, on the first rank only. ``stops`` is true once one of them ends the run.

    An exception of a callback ends the run as well, with a checkpoint. It is kept in ``failure``, and no
    callback is called after it.
    """

    def __init__(self, callbacks: Iterable[Callback | Callable[[Report], bool | None]] = ()) -> None:
        self._callbacks = [_as_callback(each) for each in callbacks]
        self.are_any = bool(self._callbacks)
        self.stops = False
        self.failure: Exception | None = None

    def report(self, metrics: dict[str, Any]) -> None:
        """Pass on the metrics of a report."""
        named = {name: metrics[name] for name in Report._fields if name != "metrics"}
        self._call("on_report", Report(**named, metrics=metrics))

    def episodes(self, rows: np.ndarray) -> None:
        """Pass on the rows ``[k, 5]`` of finished episodes (``EpisodeLog``)."""
        for row in rows if self._callbacks else ():
            episode = Episode(float(row[SCORE]), *(int(row[column]) for column in (STEPS, FRAMES, ENV)))
            self._call("on_episode", episode)

    def checkpoint(self, directory: Path) -> None:
        """Pass on the directory of a new checkpoint."""
        self._call("on_checkpoint", directory)

    def _call(self, method: str, argument: Report | Episode | Path) -> None:
        for callback in self._callbacks:
            if self.failure is not None:
                return
            try:
                answer = getattr(callback, method)(argument)
                self.stops |= isinstance(answer, bool | np.bool_) and bool(answer)
            except Exception as error:  # raised again when the run has ended
                self.failure, self.stops = error, True


def _as_callback(callback: Callback | Callable[[Report], bool | None]) -> Callback:
    """Return a callback; a function is called with reports. Errors: UsageError for anything else."""
    if isinstance(callback, Callback):
        return callback
    if not callable(callback) or isinstance(callback, type):
        raise UsageError(
            f"callback {callback!r}: expected a function of a Report, or an object of a Callback class"
        )
    called = Callback()
    called.on_report = callback
    return called
