"""Named, nested timing scopes that are cheap enough to stay on.

A scope's time is its own: entering ``communicate`` inside ``learn`` stops the clock of ``learn`` until it is left. One
timer belongs to one thread; a second thread brings its own and its sums are shown apart, since they overlap.

A GPU's work is only queued when the call for it returns. With a device clock (``device_timing.py``) the scopes whose work is a
GPU's are also timed there, by events on its streams, and nest in the same way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any, Protocol

SCOPES = ("emulate", "preprocess", "infer", "learn", "communicate", "wait", "evaluate", "checkpoint", "other")
DEVICE_KINDS = ("copies", "emulate", "infer", "learn")
"""What spans of a device are told apart by."""

OnSpan = Callable[[str, float, float], None]

NOT_TIMED = nullcontext()

_IMPORTED_AT = perf_counter()


def process_seconds() -> float:
    """Wall-clock seconds since this process began: imports and start-up count towards a time to score."""
    try:
        with open("/proc/self/stat") as file:
            start_ticks = int(file.read().rsplit(")", 1)[1].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux: since the first import
        return perf_counter() - _IMPORTED_AT


def process_cpu_seconds() -> float:
    """CPU seconds of this process, its threads and its ended children."""
    return sum(os.times()[:4])


class SpanClock(Protocol):
    """What a timer needs of a device's clock, ``device_timing.DeviceClock``."""

    scopes: frozenset[str]
    """The scopes that are also timed on the device."""

    def open(self, kind: str, stream: Any = None) -> Any:
        """Begin a span, which knows its ``kind`` and ``stream``; None where it cannot be recorded."""

    def close(self, span: Any) -> None:
        """End a span."""


class Timer:
    """Seconds of wall clock per scope since it began; ``outside`` names what is not in any scope.

    ``on_span(scope, start, end)``, when set, hears of every stretch of time that belonged to one scope; the stretches
    of a timer follow one another without gaps. Unset it costs one comparison a switch.

    ``device_clock``, when set, gets a span of every scope among its ``scopes``, and of what is inside ``on_device``. A span is
    closed where a scope or another span begins inside it, and opened again, on the same stream, where that ends.
    """

    def __init__(self, outside: str = "other") -> None:
        self.seconds: dict[str, float] = dict.fromkeys(SCOPES, 0.0)
        self.on_span: OnSpan | None = None
        self.device_clock: SpanClock | None = None
        # Of the open scopes, innermost last; None where the device has no part.
        self._spans: list[Any] = []
        self._scopes = {name: _Scope(self, name) for name in SCOPES}
        self._device_scopes = {kind: _DeviceScope(self, kind) for kind in DEVICE_KINDS}
        self._open = [outside]
        self._since = perf_counter()

    def scope(self, name: str) -> _Scope:
        """Count the time inside a ``with`` block towards ``name`` (one of SCOPES; KeyError otherwise)."""
        return self._scopes[name]

    def on_device(self, kind: str) -> AbstractContextManager[None]:
        """Count the device's work that is queued inside a ``with`` block towards ``kind`` (one of DEVICE_KINDS; KeyError otherwise).

        The host's time stays in the scope that is open. Without a device clock this does nothing.
        """
        scope = self._device_scopes[kind]
        return NOT_TIMED if self.device_clock is None else scope

    def _enter_on_device(self, kind: str | None) -> None:
        """Close the span that is open, and open one of a kind; None for a scope in which the device has no part."""
        clock = self.device_clock
        if self._spans:
            clock.close(self._spans[-1])
        self._spans.append(None if kind is None else clock.open(kind))

    def _leave_on_device(self) -> None:
        """Close the innermost span and go on with the one around it."""
        if not self._spans:  # the clock was attached inside a scope
            return
        clock = self.device_clock
        clock.close(self._spans.pop())
        if self._spans and (outer := self._spans[-1]) is not None:
            self._spans[-1] = clock.open(outer.kind, outer.stream)

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
        timer = self._timer
        timer._switch()
        timer._open.append(self._name)
        if timer.device_clock is not None:
            timer._enter_on_device(self._name if self._name in timer.device_clock.scopes else None)

    def __exit__(self, *exception: object) -> None:
        timer = self._timer
        if timer.device_clock is not None:
            timer._leave_on_device()
        timer._switch()
        timer._open.pop()


class _DeviceScope:
    """What ``with timer.on_device(kind)`` enters; it too keeps nothing of its own."""

    __slots__ = ("_kind", "_timer")

    def __init__(self, timer: Timer, kind: str) -> None:
        self._timer = timer
        self._kind = kind

    def __enter__(self) -> None:
        self._timer._enter_on_device(self._kind)

    def __exit__(self, *exception: object) -> None:
        self._timer._leave_on_device()
