"""Random players, and comparisons of what they see; shared by the comparisons with ale-py."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

STICKY = (0.0, 0.25, 1.0)
PLAYERS = ("uniform", "held", "firing", "still")


class Difference(AssertionError):
    """What differs, and where."""


class Compared(NamedTuple):
    """What a comparison has compared."""

    settings: dict[str, Any]
    frames: int
    episodes: int
    notes: dict[str, int] | None = None


class Player:
    """A player of indices into `actions`, ale-py's ids, who plays each episode in one of four manners."""

    def __init__(self, random: np.random.Generator, actions: list[int]) -> None:
        self.random, self.num_actions = random, len(actions)
        self.fire = actions.index(1) if 1 in actions else 0
        self.begin()

    def begin(self) -> None:
        """Choose how to play the next episode."""
        self.manner = str(self.random.choice(PLAYERS, p=(0.35, 0.35, 0.2, 0.1)))
        self.action, self.frames_left = 0, 0

    def act(self) -> int:
        """Return the next action."""
        if self.manner == "still":
            return 0
        if self.manner == "firing" and self.random.random() < 0.6:
            return self.fire
        if self.frames_left <= 0:
            self.action = int(self.random.integers(self.num_actions))
            self.frames_left = int(self.random.integers(2, 120)) if self.manner == "held" else 1
        self.frames_left -= 1
        return self.action


def chosen(random: np.random.Generator, *values: Any) -> Any:
    """Return one of the values."""
    return values[random.integers(len(values))]


def check(name: str, ours: Any, theirs: Any) -> None:
    """Compare values or arrays. Errors: Difference."""
    if not np.array_equal(ours, theirs):
        where = ""
        if np.ndim(theirs) and np.shape(ours) == np.shape(theirs):
            where = f" at {np.argwhere(np.asarray(ours) != theirs)[:4].tolist()}"
        elif not np.ndim(theirs):
            where = f" is {ours}, ale-py's {theirs}"
        raise Difference(f"{name}{where}")


def check_outcome(ours: Any, theirs: Any) -> None:
    """Compare rewards and ends, each `[n]`, of a step. Errors: Difference."""
    for name, got, want in zip(("rewards", "terminated", "truncated"), ours, theirs, strict=True):
        check(name, got, want)
