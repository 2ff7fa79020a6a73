"""The base of parts: lives, and the counters of what a part played.

The process of a part may die and restart at any time. Until ``begin`` is called again, calls return the note
``{"life": None}``, from which the driver detects the loss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parcade.experience.episodes import EpisodeLog
from parcade.experience.source import AnyGroup


def needs_life(
    method: Callable[..., tuple[dict[str, Any], Any]],
) -> Callable[..., tuple[dict[str, Any], Any]]:
    """Add the part's life to the note of a method, and do not run the method before ``begin``."""

    @functools.wraps(method)
    def checked(self: Restartable, *arguments: Any) -> tuple[dict[str, Any], Any]:
        if self.life is None:
            return {"life": None}, None
        note, data = method(self, *arguments)
        return {"life": self.life, **note}, data

    return checked


class Restartable:
    """A part whose ``life`` is None from the start of its process until ``begin``."""

    life: int | None = None

    def begin(self, life: int) -> tuple[dict[str, Any], None]:
        """Start life ``life``."""
        self.life = life
        return {"life": life}, None


class PlayCounter:
    """Counts what groups of environments played since the last call; the driver sums these increments."""

    def __init__(self, groups: Sequence[AnyGroup], logs: list[EpisodeLog]) -> None:
        self.groups = groups
        self.logs = logs
        self._last = np.zeros(3, np.int64)

    def _totals(self) -> np.ndarray:
        return np.sum([[group.frames, group.reset_frames, group.steps] for group in self.groups], axis=0)

    def take(self) -> dict[str, Any]:
        """Return frames, reset frames, steps and rows of finished episodes since the last call."""
        now = self._totals()
        frames, reset_frames, steps = (now - self._last).tolist()
        self._last = now
        rows = np.concatenate([log.take_new() for log in self.logs])
        return {"frames": frames, "reset_frames": reset_frames, "steps": steps, "rows": rows}

    def get_state(self) -> np.ndarray:
        """Return the counts that were taken, int64 ``[3]``."""
        return self._last.copy()

    def restored(self, taken: np.ndarray | None = None) -> None:
        """Continue after the groups were restored. ``taken`` are the counts of ``get_state``; None: all."""
        self._last = self._totals() if taken is None else np.array(taken)
