"""Named, nested timing scopes that are cheap enough to stay on.

A scope's time is its own: entering ``communicate`` inside ``learn`` stops the clock of ``learn`` until it is left. One
timer belongs to one thread; a second thread brings its own and its sums are shown apart, since they overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

SCOPES = ("emulate", "preprocess", "infer", "learn", "communicate", "wait", "evaluate", "checkpoint", "other")

OnSpan = Callable[[str, float, float], None]


class Timer:
    """Seconds of wall clock per scope since it began; ``outside`` names what is not in any scope.

    ``on_span(scope, start, end)``, when set, hears of every stretch of time that belonged to one scope; the stretches
    of a timer follow one another without gaps. Unset it costs one comparison a switch.
    """

    def __init__(self, outside: str = "other") -> None:
        self.seconds: dict[str, float] = dict.fromkeys(SCOPES, 0.0)
        self.on_span: OnSpan | None = None
        self._scopes = {name: _Scope(self, name) for name in SCOPES}
        self._open = [outside]
        self._since = perf_counter()

    def scope(self, name: str) -> _Scope:
        """Count the time inside a ``with`` block towards ``name`` (one of SCOPES; KeyError otherwise)."""
        return self._scopes[name]

    def _switch(self) -> None:
        """Book the time since the last switch to the innermost open scope."""
        now = perf_counter()
        name, since = self._open[-1], self._since
        self.seconds[name] += now - since
        if self.on_span is not None:
            self.on_span(name, since, now)
        self._since = now

    @property
    def standing(self) -> tuple[str, float]:
        """The scope that is open, and when a scope was last entered or left (perf_counter). For other threads to
        read."""
        return self._open[-1], self._since

    def snapshot(self) -> dict[str, float]:
        """Seconds per scope so far, those of the open scope up to now included."""
        self._switch()
        return dict(self.seconds)


class _Scope:
    """What ``with timer.scope(name)`` enters. It keeps nothing of its own, so one object a name serves any nesting."""

    __slots__ = ("_name", "_timer")

    def __init__(self, timer: Timer, name: str) -> None:
        self._timer = timer
        self._name = name

    def __enter__(self) -> None:
        self._timer._switch()
        self._timer._open.append(self._name)

    def __exit__(self, *exception: object) -> None:
        self._timer._switch()
        self._timer._open.pop()
