"""Named, nested timing scopes that are cheap enough to stay on.

A scope's time is its own: entering ``communicate`` inside ``learn`` stops the clock of ``learn`` until it is left. One
timer belongs to one thread; a second thread brings its own and its sums are shown apart, since they overlap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from time import perf_counter

SCOPES = ("emulate", "infer", "learn", "communicate", "wait", "evaluate", "checkpoint", "other")


class Timer:
    """Seconds of wall clock per scope since it began; ``outside`` names what is not in any scope."""

    def __init__(self, outside: str = "other") -> None:
        self.seconds: dict[str, float] = dict.fromkeys(SCOPES, 0.0)
        self._open = [outside]
        self._since = perf_counter()

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Count the time inside towards ``name`` (one of SCOPES; KeyError otherwise)."""
        now = perf_counter()
        self.seconds[self._open[-1]] += now - self._since
        self.seconds[name] += 0.0
        self._open.append(name)
        self._since = now
        try:
            yield
        finally:
            now = perf_counter()
            self.seconds[self._open.pop()] += now - self._since
            self._since = now

    def snapshot(self) -> dict[str, float]:
        """Seconds per scope so far, those of the open scope up to now included."""
        now = perf_counter()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now
        return dict(self.seconds)
