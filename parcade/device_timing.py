"""Where a GPU's time goes: spans between events on its streams, next to the host's scopes of ``timing.py``.

A call to a GPU returns when its work is queued, so a scope on the host's clock says how long the queueing took. A *span* is a
pair of events on the stream that the work is queued on, and says when the stream reached the first and the last of that work.
Nothing waits for events while the loop runs: they are read once a report. What has not finished by then is read at the next one.

A span includes the gaps between its kernels and the time that its stream waits for another, so a kind takes at most as long as its
spans. Work queued outside of all spans counts as idle: exchanging with other ranks, evaluation, and the small operations between
scopes.

| kind | what its spans hold |
|---|---|
| copies | copies from the host to the device: ``Timer.on_device("copies")`` |
| emulate | the scope ``emulate``, of environments that live on the device |
| infer, learn | the scopes of these names |
"""

from __future__ import annotations

import math
import threading
from collections import deque
from time import perf_counter
from typing import Any, Protocol

import torch

from parcade.devices import is_stand_in
from parcade.timing import DEVICE_KINDS, Timer

STAND_IN_NAME = "CPU in place of a GPU"
MOST_PENDING = 1024
"""Spans that wait to be read. Where there are more between two reports, those that have finished are read when this is reached."""


class Event(Protocol):
    """A mark on a stream, as ``torch.cuda.Event``: ``elapsed_time`` gives milliseconds from this event to another."""

    def record(self, stream: Any) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: Any) -> float: ...


class Events(Protocol):
    """Makes the events of the device ``name``, and knows its streams."""

    name: str

    def make(self) -> Event: ...
    def current_stream(self) -> Any: ...
    def is_capturing(self) -> bool:
        """Whether this thread records a graph. An event recorded then would be a part of the graph and have no time."""
        ...


class CudaEvents:
    """Events of one GPU, recorded on its current stream in the calling thread."""

    def __init__(self, device: torch.device) -> None:
        # With its number: "the current GPU" is another one in a thread that has not chosen its own.
        self.device = (
            device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
        )
        self.name = torch.cuda.get_device_name(self.device)

    def make(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    def current_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()


class HostEvents:
    """Events on the host's clock: exact where the CPU stands in for a GPU, since there work is done when its call returns."""

    name = STAND_IN_NAME

    def make(self) -> HostEvent:
        return HostEvent()

    def current_stream(self) -> None:
        return None

    def is_capturing(self) -> bool:
        return False


class HostEvent:
    """``torch.cuda.Event`` for the host, reached when it is recorded."""

    def record(self, stream: Any) -> None:
        self.time = perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end_event: HostEvent) -> float:
        return 1e3 * (end_event.time - self.time)


class DeviceSpan:
    """Work on one stream. ``end`` is None while it is open; ``is_void`` when it was closed where no event can be recorded."""

    __slots__ = ("end", "is_void", "kind", "start", "stream")

    def __init__(self, kind: str, stream: Any, start: Event) -> None:
        self.kind, self.stream, self.start = kind, stream, start
        self.end: Event | None = None
        self.is_void = False


class Covered:
    """Seconds that intervals cover, each counted once however many of them overlap there."""

    def __init__(self) -> None:
        self._intervals: list[tuple[float, float]] = []  # disjoint, by time

    def add(self, intervals: list[tuple[float, float]]) -> float:
        """Take in intervals (start, end) in any order; returns the seconds that were not covered before."""
        before = sum(end - start for start, end in self._intervals)
        merged: list[tuple[float, float]] = []
        for start, end in sorted(self._intervals + intervals):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((start, end))
        self._intervals = merged
        return sum(end - start for start, end in merged) - before

    def forget(self, before: float) -> None:
        """Drop the intervals that ended before a time; none may be added there later."""
        self._intervals = [interval for interval in self._intervals if interval[1] >= before]


class DeviceClock:
    """Seconds that one device spent in spans of each kind, over all of its streams and all threads that queue work on it.

    ``open`` and ``close`` cost two events a span, reused later, and never wait. All times are on one line, which begins where
    the clock was made. ``lost`` counts spans that were not recorded because ``max_pending`` others had not finished.

    Args:
        events: makes the events; the device's, the host's, or a test's.
        scopes: the scopes of a Timer that are spans of the same kind here.
    """

    def __init__(
        self, events: Events, *, scopes: tuple[str, ...] = ("infer", "learn"), max_pending: int = MOST_PENDING
    ) -> None:
        self.events = events
        self.scopes = frozenset(scopes)
        self.max_pending = max_pending
        self.lost = 0
        self._pool: list[Event] = []
        self._pending: deque[DeviceSpan] = (
            deque()
        )  # open ones included; appended by any thread, taken out under the lock
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys((*DEVICE_KINDS, "busy"), 0.0)
        self._num_spans = 0
        self._covered = {name: Covered() for name in self._seconds}
        self._horizon = 0.0
        self._base, self._base_seconds = self._event(), 0.0
        self._base.record(events.current_stream())
        self._base.synchronize()

    def open(self, kind: str, stream: Any = None) -> DeviceSpan | None:
        """Begin a span of a kind on a stream, the current one unless told; None where it cannot be recorded."""
        if self.events.is_capturing():
            return None
        if len(self._pending) >= self.max_pending:
            self.snapshot()
            if len(self._pending) >= self.max_pending:
                self.lost += 1
                return None
        stream = self.events.current_stream() if stream is None else stream
        start = self._event()
        start.record(stream)
        span = DeviceSpan(kind, stream, start)
        self._pending.append(span)
        return span

    def close(self, span: DeviceSpan | None) -> None:
        """End a span on the stream it began on; nothing for None."""
        if span is None:
            return
        if self.events.is_capturing():
            span.is_void = True
            return
        end = self._event()
        end.record(span.stream)
        span.end = end  # last: from here on another thread may read it

    def snapshot(self) -> dict[str, float]:
        """Seconds so far: of each kind, and ``busy`` with any of them. Without waiting: of spans that have finished."""
        with self._lock:
            self._read_finished()
            return dict(self._seconds)

    @property
    def num_spans(self) -> int:
        """Spans counted so far."""
        return self._num_spans

    def like(self) -> DeviceClock:
        """A clock of the same device that has measured nothing."""
        return DeviceClock(self.events, scopes=tuple(self.scopes), max_pending=self.max_pending)

    def _event(self) -> Event:
        try:
            return self._pool.pop()
        except IndexError:
            return self.events.make()

    def _read_finished(self) -> None:
        """Count the spans that have finished, and leave the others pending."""
        finished: list[DeviceSpan] = []
        unfinished: list[DeviceSpan] = []
        for _ in range(len(self._pending)):
            span = self._pending.popleft()
            if span.is_void:
                self._pool.append(span.start)
            else:
                (finished if span.end is not None and span.end.query() else unfinished).append(span)
        if finished:
            # Spans still to come may reach back to where unfinished ones began: there, what is covered is kept.
            since = min(
                (self._time(span.start) for span in unfinished if span.start.query()), default=math.inf
            )
            self._count(finished, since)
        self._pending.extendleft(reversed(unfinished))

    def _count(self, spans: list[DeviceSpan], kept_since: float) -> None:
        intervals: dict[str, list[tuple[float, float]]] = {name: [] for name in self._covered}
        newest, horizon = spans[0], -math.inf
        for span in spans:
            start = self._time(span.start)
            end = start + max(span.start.elapsed_time(span.end), 0.0) / 1e3
            intervals[span.kind].append((start, end))
            intervals["busy"].append((start, end))
            if end > horizon:
                newest, horizon = span, end
        # One reading more is kept: a span may be opened by another thread while this one reads.
        kept_since = min(kept_since, self._horizon)
        for name, covered in self._covered.items():
            self._seconds[name] += covered.add(intervals[name])
            covered.forget(kept_since)
        self._num_spans += len(spans)
        self._horizon = horizon
        # Times are float32 milliseconds since the base, exact to a microsecond for a few seconds and to 0.25 ms after an hour.
        self._pool.append(self._base)
        self._base, self._base_seconds = newest.end, horizon
        self._pool += [event for span in spans for event in (span.start, span.end) if event is not self._base]

    def _time(self, event: Event) -> float:
        """Seconds at which a device reached an event."""
        milliseconds = self._base.elapsed_time(event)
        if (
            milliseconds <= 0.0
        ):  # before the base; asked the right way round, since CUDA documents no negative times
            milliseconds = -event.elapsed_time(self._base)
        return self._base_seconds + milliseconds / 1e3


def device_seconds(
    before: dict[str, float], after: dict[str, float], wall_seconds: float
) -> dict[str, float]:
    """Seconds of each kind, ``busy`` and ``idle`` between two snapshots. ``busy`` and ``idle`` add up to the wall clock.

    A span counts where it is read. One that was under way at the window's start counts whole, one at its end not at all, so a
    kind may come to a little more than was possible: it is cut there.
    """
    spent = {name: min(max(after[name] - before[name], 0.0), wall_seconds) for name in after}
    return {**spent, "idle": wall_seconds - spent["busy"]}


def attach_device_clock(
    timers: list[Timer], device: torch.device, *, consoles_on_device: bool = False
) -> DeviceClock | None:
    """Give the timers of a process one clock of their device; returns it, and None for a CPU that is nobody's stand-in.

    To be called before anything is timed. With ``consoles_on_device`` the scope ``emulate`` is the device's work too.
    """
    if device.type != "cuda" and not is_stand_in():
        return None
    scopes = ("emulate", "infer", "learn") if consoles_on_device else ("infer", "learn")
    clock = DeviceClock(CudaEvents(device) if device.type == "cuda" else HostEvents(), scopes=scopes)
    for timer in timers:
        timer.device_clock = clock
    return clock
