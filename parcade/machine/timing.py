"""Named, nested timing scopes that are cheap enough to be always on.

Scope times are exclusive: entering ``communicate`` inside ``learn`` stops the clock of ``learn`` until
``communicate`` exits. Each thread has its own timer. Times of different threads overlap, so they are reported
separately.

When a call to a GPU returns, its work is only queued. With a device clock (``device_timing.py``), scopes with
GPU work are also timed on the GPU by events on its streams. These spans nest in the same way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any, NamedTuple, Protocol

SCOPES = ("emulate", "preprocess", "infer", "learn", "communicate", "wait", "evaluate", "checkpoint", "other")
DEVICE_KINDS = ("copies", "emulate", "infer", "learn")
"""Kinds of spans on a device."""

OnSpan = Callable[[str, float, float], None]

NOT_TIMED = nullcontext()

_IMPORTED_AT = perf_counter()


def process_seconds() -> float:
    """Return wall-clock seconds since this process started.

    Imports and start-up count towards a time to score.
    """
    try:
        with open("/proc/self/stat") as file:
            start_ticks = int(file.read().rsplit(")", 1)[1].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux: count from the import of this module
        return perf_counter() - _IMPORTED_AT


def process_cpu_seconds() -> float:
    """Return CPU seconds of this process, its threads and its terminated children."""
    return sum(os.times()[:4])


def process_note() -> dict[str, Any]:
    """Return this process's CPU seconds and id, for a sum over processes that counts each of them once."""
    return {"cpu_seconds": process_cpu_seconds(), "pid": os.getpid()}


class Moment(NamedTuple):
    """Seconds and CPU seconds of this process at which the time of a run begins to count."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @classmethod
    def now(cls) -> Moment:
        """Return this moment."""
        return cls(process_seconds(), process_cpu_seconds())


START_OF_PROCESS = Moment()


class SpanClock(Protocol):
    """The interface of ``device_timing.DeviceClock`` that a timer uses."""

    scopes: frozenset[str]
    """Scopes that are also timed on the device."""

    def open(self, kind: str, stream: Any = None) -> Any:
        """Start a span with attributes ``kind`` and ``stream``. Return None if it cannot be recorded."""

    def close(self, span: Any) -> None:
        """End a span."""


class Timer:
    """Wall-clock seconds per scope since creation. Time outside all scopes counts towards ``outside``.

    If set, ``on_span(scope, start, end)`` is called for every interval that belongs to one scope. The
    intervals of a timer are consecutive, without gaps. If unset, it costs one comparison per switch.

    If set, ``device_clock`` records a span for each scope in its ``scopes`` and for each ``on_device`` block.
    A span is closed when a scope or another span starts inside it, and reopened on the same stream when that
    one ends.
    """

    def __init__(self, outside: str = "other") -> None:
        self.seconds: dict[str, float] = dict.fromkeys(SCOPES, 0.0)
        self.on_span: OnSpan | None = None
        self.device_clock: SpanClock | None = None
        # One entry per open scope, innermost last; None for a scope without device work.
        self._spans: list[Any] = []
        self._scopes = {name: _Scope(self, name) for name in SCOPES}
        self._device_scopes = {kind: _DeviceScope(self, kind) for kind in DEVICE_KINDS}
        self._open = [outside]
        self._since = perf_counter()

    def scope(self, name: str) -> _Scope:
        """Count the time inside a ``with`` block towards scope ``name``.

        Errors: KeyError if not one of SCOPES.
        """
        return self._scopes[name]

    def on_device(self, kind: str) -> AbstractContextManager[None]:
        """Count the device work queued inside a ``with`` block towards ``kind``.

        The host's time still counts towards the open scope. Without a device clock this does nothing.

        Errors: KeyError if ``kind`` is not one of DEVICE_KINDS.
        """
        scope = self._device_scopes[kind]
        return NOT_TIMED if self.device_clock is None else scope

    def _enter_on_device(self, kind: str | None) -> None:
        """Close the open span and open one of this kind; None is a scope without device work."""
        clock = self.device_clock
        if self._spans:
            clock.close(self._spans[-1])
        self._spans.append(None if kind is None else clock.open(kind))

    def _leave_on_device(self) -> None:
        """Close the innermost span and reopen the enclosing one."""
        if not self._spans:  # the clock was attached inside a scope
            return
        clock = self.device_clock
        clock.close(self._spans.pop())
        if self._spans and (outer := self._spans[-1]) is not None:
            self._spans[-1] = clock.open(outer.kind, outer.stream)

    def _switch(self) -> None:
        """Add the time since the last switch to the innermost open scope."""
        now = perf_counter()
        name, since = self._open[-1], self._since
        self.seconds[name] += now - since
        if self.on_span is not None:
            self.on_span(name, since, now)
        self._since = now

    @property
    def standing(self) -> tuple[str, float]:
        """The open scope and the time (perf_counter) of the last entry or exit of a scope.

        Other threads may read it.
        """
        return self._open[-1], self._since

    def snapshot(self) -> dict[str, float]:
        """Return seconds per scope so far, including the open scope up to now."""
        self._switch()
        return dict(self.seconds)


class _Scope:
    """Context manager of ``Timer.scope``. It is stateless, so one object per name supports any nesting."""

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
    """Context manager of ``Timer.on_device``. It is stateless as well."""

    __slots__ = ("_kind", "_timer")

    def __init__(self, timer: Timer, kind: str) -> None:
        self._timer = timer
        self._kind = kind

    def __enter__(self) -> None:
        self._timer._enter_on_device(self._kind)

    def __exit__(self, *exception: object) -> None:
        self._timer._leave_on_device()
