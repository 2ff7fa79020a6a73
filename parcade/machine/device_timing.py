"""GPU timing: spans between events on the GPU's streams, which complement the host's scopes in ``timing.py``.

A call to a GPU returns when its work is queued, so a scope on the host's clock only measures the queueing. A
*span* is a pair of events on the stream that the work is queued on. It measures when the stream reached the
start and the end of that work. The loop never waits for events: they are read once per report, and a span
that has not finished by then is read at the next report.

A span includes the gaps between its kernels and the time its stream waits for another stream. The time of a
kind is therefore an upper bound on its work. Work queued outside all spans counts as idle: communication with
other ranks, evaluation, and small operations between scopes.

| kind | spans |
|---|---|
| copies | copies from the host that no recorded work includes: ``Timer.on_device("copies")`` |
| emulate | the scope ``emulate``, if the environments are on the device |
| infer, learn | the scopes of the same name |
"""

from __future__ import annotations

import math
import threading
from collections import deque
from time import perf_counter
from typing import Any, Protocol

import torch

from parcade.machine.devices import is_stand_in
from parcade.machine.timing import DEVICE_KINDS, Timer

STAND_IN_NAME = "CPU in place of a GPU"
MOST_PENDING = 1024
"""Maximum number of unread spans.

When it is reached between two reports, the finished spans are read early.
"""


class Event(Protocol):
    """A mark on a stream, like ``torch.cuda.Event``.

    ``elapsed_time`` returns milliseconds from this event to another.
    """

    def record(self, stream: Any) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: Any) -> float: ...


class Events(Protocol):
    """Creates events of the device ``name`` and returns its current stream."""

    name: str

    def make(self) -> Event: ...
    def current_stream(self) -> Any: ...
    def is_capturing(self) -> bool:
        """Whether this thread captures a graph.

        An event recorded during capture becomes part of the graph and has no time.
        """
        ...


class CudaEvents:
    """Events of one GPU. Its current stream is that of the calling thread."""

    def __init__(self, device: torch.device) -> None:
        # Store the index: the current GPU is per thread, so another thread may see a different one.
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
    """Events on the host's clock.

    They are exact if the CPU replaces a GPU: its work is done when the call returns.
    """

    name = STAND_IN_NAME

    def make(self) -> HostEvent:
        return HostEvent()

    def current_stream(self) -> None:
        return None

    def is_capturing(self) -> bool:
        return False


class HostEvent:
    """``torch.cuda.Event`` for the host. It is complete as soon as it is recorded."""

    def record(self, stream: Any) -> None:
        self.time = perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Return at once: the event is already complete."""

    def elapsed_time(self, end_event: HostEvent) -> float:
        return 1e3 * (end_event.time - self.time)


class DeviceSpan:
    """Work on one stream. ``end`` is None while the span is open.

    ``is_void`` marks a span closed during graph capture, where no event can be recorded.
    """

    __slots__ = ("end", "is_void", "kind", "start", "stream")

    def __init__(self, kind: str, stream: Any, start: Event) -> None:
        self.kind, self.stream, self.start = kind, stream, start
        self.end: Event | None = None
        self.is_void = False


class Covered:
    """The union of time intervals. Time covered by several intervals counts once."""

    def __init__(self) -> None:
        self._intervals: list[tuple[float, float]] = []  # disjoint, sorted by time

    def add(self, intervals: list[tuple[float, float]]) -> float:
        """Add intervals (start, end) in any order, and return the number of newly covered seconds."""
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
        """Drop the intervals that ended before a time. No later interval may start before it."""
        self._intervals = [interval for interval in self._intervals if interval[1] >= before]


class DeviceClock:
    """Seconds one device spends in spans of each kind, over all its streams and all threads that queue work.

    ``open`` and ``close`` record two events per span and never wait; events are reused. All times are
    relative to the creation of the clock. ``lost`` counts spans that were not recorded because
    ``max_pending`` others had not finished.

    Args:
        events: creates the events: the device's, the host's, or a test's.
        scopes: scopes of a Timer that are also spans of the same kind.
    """

    def __init__(
        self, events: Events, *, scopes: tuple[str, ...] = ("infer", "learn"), max_pending: int = MOST_PENDING
    ) -> None:
        self.events = events
        self.scopes = frozenset(scopes)
        self.max_pending = max_pending
        self.lost = 0
        self._pool: list[Event] = []
        # Includes open spans. Any thread appends; spans are removed under the lock.
        self._pending: deque[DeviceSpan] = deque()
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys((*DEVICE_KINDS, "busy"), 0.0)
        self._num_spans = 0
        self._covered = {name: Covered() for name in self._seconds}
        self._horizon = 0.0
        self._base, self._base_seconds = self._event(), 0.0
        self._base.record(events.current_stream())
        self._base.synchronize()

    def open(self, kind: str, stream: Any = None) -> DeviceSpan | None:
        """Start a span on a stream (default: the current one). Return None if it cannot be recorded."""
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
        """End a span on the stream it started on. Do nothing for None."""
        if span is None:
            return
        if self.events.is_capturing():
            span.is_void = True
            return
        end = self._event()
        end.record(span.stream)
        span.end = end  # set last: another thread may read the span from now on

    def snapshot(self) -> dict[str, float]:
        """Return the seconds so far of each kind, and of ``busy`` (any kind).

        Do not wait: count finished spans only.
        """
        with self._lock:
            self._read_finished()
            return dict(self._seconds)

    @property
    def num_spans(self) -> int:
        """Spans counted so far."""
        return self._num_spans

    def like(self) -> DeviceClock:
        """Return a new clock of the same device."""
        return DeviceClock(self.events, scopes=tuple(self.scopes), max_pending=self.max_pending)

    def _event(self) -> Event:
        try:
            return self._pool.pop()
        except IndexError:
            return self.events.make()

    def _read_finished(self) -> None:
        """Count the finished spans and leave the others pending."""
        finished: list[DeviceSpan] = []
        unfinished: list[DeviceSpan] = []
        for _ in range(len(self._pending)):
            span = self._pending.popleft()
            if span.is_void:
                self._pool.append(span.start)
            else:
                (finished if span.end is not None and span.end.query() else unfinished).append(span)
        if finished:
            # Keep intervals back to the earliest start of an unfinished span: later spans may overlap them.
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
        # Keep the intervals of one more reading: another thread may open a span during this one.
        kept_since = min(kept_since, self._horizon)
        for name, covered in self._covered.items():
            self._seconds[name] += covered.add(intervals[name])
            covered.forget(kept_since)
        self._num_spans += len(spans)
        self._horizon = horizon
        # Move the base forward: times are float32 milliseconds since the base, exact to a microsecond for a
        # few seconds but only to 0.25 ms after an hour.
        self._pool.append(self._base)
        self._base, self._base_seconds = newest.end, horizon
        self._pool += [event for span in spans for event in (span.start, span.end) if event is not self._base]

    def _time(self, event: Event) -> float:
        """Return the time in seconds at which the device reached an event."""
        milliseconds = self._base.elapsed_time(event)
        if milliseconds <= 0.0:  # the event is before the base; CUDA does not document negative times
            milliseconds = -event.elapsed_time(self._base)
        return self._base_seconds + milliseconds / 1e3


def device_seconds(
    before: dict[str, float], after: dict[str, float], wall_seconds: float
) -> dict[str, float]:
    """Return seconds of each kind, ``busy`` and ``idle`` between two snapshots.

    ``busy`` and ``idle`` add up to the wall clock. A span counts in the window in which it is read: a span in
    progress at the start of the window counts in full, one in progress at its end not at all. The time of a
    kind may therefore slightly exceed the wall clock, and is clipped to it.
    """
    spent = {name: min(max(after[name] - before[name], 0.0), wall_seconds) for name in after}
    return {**spent, "idle": wall_seconds - spent["busy"]}


def attach_device_clock(
    timers: list[Timer], device: torch.device, *, consoles_on_device: bool = False
) -> DeviceClock | None:
    """Attach one device clock to all timers of a process and return it.

    Return None for a CPU, unless it replaces a GPU. Call this before anything is timed. With
    ``consoles_on_device``, the scope ``emulate`` is also device work.
    """
    if device.type != "cuda" and not is_stand_in():
        return None
    scopes = ("emulate", "infer", "learn") if consoles_on_device else ("infer", "learn")
    clock = DeviceClock(CudaEvents(device) if device.type == "cuda" else HostEvents(), scopes=scopes)
    for timer in timers:
        timer.device_clock = clock
    return clock
