"""The spans of a rank: seconds per scope, a timeline, and its own work between collective calls."""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from parcade.machine.timing import SCOPES, Timer
from parcade.profile.data import WAITING, empty_split

TIMELINE_ITERATIONS = 3
TIMELINE_BINS = 480
KEPT_SEGMENT_ITERATIONS = 40

CALL = "call"
"""Marks a collective call among the spans. Its number of bytes replaces the start time."""

Span = tuple[str, float, float]
"""A scope's name, and its start and end by the timer's clock, in seconds."""
Segments = tuple[list[float], list[int], list[float]]
"""Own work between collective calls by wall clock, the calls' bytes, and the same work by CPU clock."""


class SpanLog:
    """The spans of the recorded iterations of a rank.

    ``add`` is a hook of the timer, ``mark_call`` one of the exchange.

    Args:
        timer: the timer of the rank's main thread.
        barrier: whether the ranks wait for one another before collective calls.

    Attributes: ``seconds`` by scope; ``count`` of spans; ``barrier_seconds`` of waiting at those barriers;
    ``timeline`` and ``segments`` of the newest iterations.
    """

    def __init__(self, timer: Timer, *, barrier: bool) -> None:
        self.seconds = empty_split()
        self.count = 0
        self.barrier_seconds = 0.0
        self.timeline: deque[list[Span]] = deque(maxlen=TIMELINE_ITERATIONS)
        self.segments: deque[Segments] = deque(maxlen=KEPT_SEGMENT_ITERATIONS)
        self._timer, self._barrier = timer, barrier
        self._new: list[Span] = []  # of the iteration that has not ended
        self._cpu_work: list[float] = []  # before each of its collective calls
        self.restart_cpu_clock()

    def restart_cpu_clock(self) -> None:
        """Leave out the CPU time since the last span: it is none of an iteration's own work."""
        self._cpu_mark = time.process_time()

    def add(self, name: str, start: float, end: float) -> None:
        """Add a span that has ended."""
        self._new.append((name, start, end))

    def mark_call(self, num_bytes: int, over: bool) -> None:
        """Mark the start of a collective call, or its end (``over``)."""
        if over:
            self.restart_cpu_clock()
            return
        self._timer.snapshot()  # closes the span of the work before the call, so that it precedes the mark
        self._new.append((CALL, num_bytes, 0.0))
        self._cpu_work.append(time.process_time() - self._cpu_mark)

    def end_iteration(self) -> None:
        """Sum the spans of an iteration, and split its own work at the collective calls."""
        work, segments, calls, at_barrier = 0.0, [], [], False
        for name, start, end in self._new:
            if name == CALL:
                segments.append(work)
                calls.append(start)
                work, at_barrier = 0.0, self._barrier
                continue
            if at_barrier and name == "wait":
                self.barrier_seconds += end - start
            at_barrier &= name != "communicate"
            self.seconds[name] += end - start
            if name not in WAITING:
                work += end - start
        segments.append(work)
        cpu_segments = [*self._cpu_work, time.process_time() - self._cpu_mark]
        self.segments.append((segments, calls, cpu_segments))
        self.timeline.append([span for span in self._new if span[0] != CALL])
        self.count += len(self.timeline[-1])
        self._new, self._cpu_work = [], []
        self.restart_cpu_clock()


def binned(iterations: list[list[Span]]) -> tuple[list[list[float]], float]:
    """Return the share of each scope in equal time bins ``[b][scope]``, and the seconds per bin."""
    spans = [span for iteration in iterations for span in iteration]
    if not spans:
        return [], 0.0
    names, starts, ends = (np.array(column) for column in zip(*spans, strict=True))
    edges = np.linspace(starts[0], ends[-1], TIMELINE_BINS + 1)
    shares = np.zeros((TIMELINE_BINS, len(SCOPES)))
    for i, scope in enumerate(SCOPES):
        own = names == scope
        # Seconds of this scope before each edge: complete spans, and part of the span that contains the edge.
        passed = np.clip(edges[:, None] - starts[own], 0, ends[own] - starts[own]).sum(1)
        shares[:, i] = np.diff(passed)
    width = edges[1] - edges[0]
    return np.round(shares / width, 3).tolist(), float(width)


def usual_segments(iterations: list[Segments]) -> tuple[list[list[float]], list[int], list[list[float]]]:
    """Return iterations as rows of equal length.

    The result is the own work before each collective call and after the last ``[i][k + 1]``, the bytes of the
    calls ``[k]``, and the same work by CPU clock ``[i][k + 1]``.

    k is the number of calls that most iterations make. An iteration that starts with a report or an
    evaluation makes more calls; its work before the last k calls counts as work before the first of them.
    Iterations with fewer calls are dropped.
    """
    if not iterations:
        return [], [], []
    lengths = [len(calls) for _, calls, _ in iterations]
    usual = max(set(lengths), key=lengths.count)
    kept = [row for row in iterations if len(row[1]) >= usual]
    folded = [[_fold(row[i], len(row[1]) - usual) for row in kept] for i in (0, 2)]
    return folded[0], next(calls for _, calls, _ in kept if len(calls) == usual), folded[1]


def _fold(work: list[float], surplus: int) -> list[float]:
    """Merge the first ``surplus`` + 1 segments of work into one."""
    return [round(seconds, 6) for seconds in (sum(work[: surplus + 1]), *work[surplus + 1 :])]
