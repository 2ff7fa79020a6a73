"""The recorder, which runs inside every rank while a profile is recorded.

A run under any launcher records itself if these environment variables are set:

- ``PARCADE_PROFILE``: a folder that every rank can write to.
- ``PARCADE_PROFILE_SECONDS``: the length of the recording.
- ``PARCADE_PROFILE_BARRIER=1``: ranks wait at a barrier before every collective call, which separates waiting
  from communicating.

Recording starts after the first iterations, which allocate and compile, and the run ends with the recording.
On a GPU, the timer's device clock is read at both ends of the window: work queued before the window counts if
it finishes inside, and work that finishes after the window does not count.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from parcade.doctor.running import BUSY_SHARE, thread_seconds
from parcade.errors import UsageError
from parcade.exchange.base import Exchange
from parcade.files.outputs import why_not_writable
from parcade.machine.device_timing import DeviceClock, device_seconds
from parcade.machine.facts import usable_cores, within_quota
from parcade.machine.threads import pools_here
from parcade.machine.timing import SCOPES, Timer
from parcade.profile.data import WAITING, RankProfile, empty_split, write_rank

WARM_UP_ITERATIONS = 2
TIMELINE_ITERATIONS = 3
TIMELINE_BINS = 480
KEPT_SEGMENT_ITERATIONS = 40
CEILING_REPEATS = 15
THREADS_SECONDS = 1.0
"""Time between two readings of the CPU time of all threads, which cost too much for every iteration."""
COST_SAMPLES = 2000
SPAN_COST_SAMPLES = 200

CALL = "call"
"""Marks a collective call among the spans. Its number of bytes replaces the start time."""


class Counts(Protocol):
    """Counters of a rank so far. Every experience source has them."""

    steps: int
    frames: int


Span = tuple[str, float, float]
Segments = tuple[list[float], list[int], list[float]]
"""Own work between collective calls by wall clock, the calls' bytes, and the same work by CPU clock."""


@dataclass(eq=False)
class Recorder:
    """Records one rank after ``WARM_UP_ITERATIONS`` iterations.

    Every rank calls ``end_iteration`` once per iteration, and ``write`` at the end of the run. ``is_full``
    says that the window is over; the caller must make all ranks stop together. ``outside_window`` is for the
    collective call that this takes, unless the program makes it in every iteration anyway.

    Args:
        folder: folder of the rank's file.
        seconds: length of the window, which is at least one iteration long.
        barrier: whether ranks wait for one another before collective calls.
    """

    folder: Path
    seconds: float
    exchange: Exchange
    timer: Timer
    actor_timer: Timer | None
    barrier: bool = field(kw_only=True)

    def __post_init__(self) -> None:
        self.iteration_seconds: list[float] = []
        self.iteration_cpu_seconds: list[float] = []
        self.scopes = 0
        self.split = empty_split()
        self._iterations_before = WARM_UP_ITERATIONS
        self._spans: list[Span] = []
        self._timeline: deque[list[Span]] = deque(maxlen=TIMELINE_ITERATIONS)
        self._segments: deque[Segments] = deque(maxlen=KEPT_SEGMENT_ITERATIONS)
        self._cpu_work: list[float] = []
        self._cpu_mark = 0.0
        self._end: dict | None = None
        self._elapsed = 0.0
        self._own_seconds = 0.0
        self._barrier_seconds = 0.0

    @property
    def is_full(self) -> bool:
        """Whether the window is over."""
        return self._elapsed >= self.seconds

    @property
    def seconds_left(self) -> float:
        """Length of the rest of the window."""
        return max(self.seconds - self._elapsed, 0.0)

    @contextlib.contextmanager
    def outside_window(self) -> Iterator[None]:
        """Context manager for what a program does only because it is recorded, between two iterations.

        Its time, its spans and its collective calls are not recorded.
        """
        on_collective, on_span = self.exchange.on_collective, self.timer.on_span
        barrier_first = self.exchange.barrier_first
        self.exchange.on_collective, self.exchange.barrier_first, self.timer.on_span = None, False, None
        yield
        self.timer.snapshot()  # ends the span from outside the window
        self.exchange.on_collective, self.exchange.barrier_first = on_collective, barrier_first
        self.timer.on_span = on_span
        self._since = time.perf_counter()
        self._cpu_since = self._cpu_mark = time.process_time()

    def end_iteration(self, source: Counts) -> None:
        """Mark the end of an iteration. This is a collective call once, when recording starts."""
        steps, frames = source.steps, source.frames
        if self._iterations_before > 0:
            self._iterations_before -= 1
            if self._iterations_before == 0:
                self._begin(steps, frames)
            return
        started = time.thread_time()
        self.timer.snapshot()  # closes the current span, so that the spans reach up to now
        now, cpu = time.perf_counter(), time.process_time()
        self._elapsed += now - self._since
        self.iteration_seconds.append(now - self._since)
        self.iteration_cpu_seconds.append(cpu - self._cpu_since)
        self._since, self._cpu_since = now, cpu
        self._take_spans()
        self._end = self._counters(steps, frames)
        # Now and then, because another rank may end the window.
        if self.is_full or now - self._threads_at >= THREADS_SECONDS or not self._threads_end:
            self._threads_at, self._threads_end = now, self._thread_seconds()
        self._own_seconds += time.thread_time() - started

    def _begin(self, steps: int, frames: int) -> None:
        grad = self.exchange.parameters.grad
        self._ceiling = self.exchange.time_allreduce(grad.numel(), CEILING_REPEATS, grad.device)
        self._gradient_bytes = grad.numel() * grad.element_size()
        self._scope_cost = scope_cost_seconds()
        self._span_cost = span_cost_seconds(self.timer.device_clock)
        self.exchange.barrier_first = self.barrier
        # Ranks start together and agree on the start time, which identifies the recording.
        self._recording = f"{self.exchange.maximum(np.array([time.time()]))[0]:017.6f}"
        self.exchange.on_collective = self._mark_call
        self._start = self._counters(steps, frames)
        self._threads_start, self._threads_end = self._thread_seconds(), {}
        self.timer.snapshot()  # ends the span from before the window, which is not recorded
        self.timer.on_span = lambda *span: self._spans.append(span)
        self._origin = self._since = self._threads_at = time.perf_counter()
        self._cpu_since = self._cpu_mark = time.process_time()
        self._cpu_work.clear()

    def _mark_call(self, num_bytes: int, over: bool) -> None:
        if over:
            self._cpu_mark = time.process_time()
            return
        self.timer.snapshot()  # closes the span of the work before the call, so that it precedes the mark
        self._spans.append((CALL, num_bytes, 0.0))
        self._cpu_work.append(time.process_time() - self._cpu_mark)

    def _take_spans(self) -> None:
        """Sum the spans of an iteration, and split its own work at the collective calls."""
        work, segments, calls, at_barrier = 0.0, [], [], False
        for name, start, end in self._spans:
            if name == CALL:
                segments.append(work)
                calls.append(start)
                work, at_barrier = 0.0, self.barrier
                continue
            if at_barrier and name == "wait":
                self._barrier_seconds += end - start
            at_barrier &= name != "communicate"
            self.split[name] += end - start
            if name not in WAITING:
                work += end - start
        segments.append(work)
        now = time.process_time()
        self._segments.append((segments, calls, [*self._cpu_work, now - self._cpu_mark]))
        self._cpu_work, self._cpu_mark = [], now
        self._timeline.append([span for span in self._spans if span[0] != CALL])
        self.scopes += len(self._timeline[-1])
        self._spans.clear()

    def _counters(self, steps: int, frames: int) -> dict:
        """Return the counters that are read at both ends of the window, and so after every iteration."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        clock = self.timer.device_clock
        return {
            "device": clock.snapshot() if clock else None,
            "device_spans": clock.num_spans if clock else 0,
            "steps": steps,
            "frames": frames,
            "updates": self.exchange.updates,
            "bytes": self.exchange.bytes_moved,
            "allreduce": self.exchange.allreduce_seconds,
            "voluntary": usage.ru_nvcsw,
            "involuntary": usage.ru_nivcsw,
            "actor": dict(self.actor_timer.seconds) if self.actor_timer else {},
            "checkpoint": self.timer.seconds["checkpoint"],
        }

    def _thread_seconds(self) -> dict[int, float]:
        """Return the CPU seconds of every thread so far."""
        import psutil

        return thread_seconds(psutil.Process())

    def write(self) -> None:
        """Write this rank's file. Errors: UsageError if the run ended before one iteration was recorded."""
        self.timer.on_span = None
        self.exchange.on_collective = None
        if self._end is None:
            raise UsageError(
                f"the run ended before iteration {WARM_UP_ITERATIONS + 1}, where recording starts; record a "
                "longer one: raise --total-frames, or the epochs of a fit"
            )
        write_rank(self._result(), self.folder)

    def _result(self) -> RankProfile:
        import psutil

        start, end = self._start, self._end
        spent = {name: end[name] - n for name, n in start.items() if isinstance(n, int | float)}
        used = [cpu - self._threads_start.get(thread, 0.0) for thread, cpu in self._threads_end.items()]
        watched = self._threads_at - self._origin
        bins, bin_seconds = binned(list(self._timeline))
        segments, segment_bytes, cpu_segments = usual_segments(list(self._segments))
        return RankProfile(
            rank=self.exchange.rank,
            local_size=self.exchange.local_size,
            seconds=self.split,
            actor_seconds={name: seconds - start["actor"][name] for name, seconds in end["actor"].items()},
            iteration_seconds=self.iteration_seconds,
            iteration_cpu_seconds=self.iteration_cpu_seconds,
            steps=spent["steps"],
            frames=spent["frames"],
            updates=spent["updates"],
            scopes=self.scopes,
            scope_cost_seconds=self._scope_cost,
            own_seconds=self._own_seconds,
            barrier=self.barrier,
            barrier_seconds=self._barrier_seconds,
            threads=len(used),
            busy_threads=sum(cpu / watched > BUSY_SHARE for cpu in used),
            pools=[[pool.library, pool.threads] for pool in pools_here()],
            affinity=list(usable_cores()),
            local_cores=list(self.exchange.local_cores),
            cores_at_once=within_quota(len(self.exchange.local_cores)),
            memory_bytes=psutil.Process().memory_info().rss,
            voluntary_switches=spent["voluntary"],
            involuntary_switches=spent["involuntary"],
            gradient_bytes=self._gradient_bytes,
            bytes_moved=spent["bytes"],
            allreduce_seconds=spent["allreduce"],
            ceiling_seconds=self._ceiling.tolist(),
            # The final save of the run is after the window, so there is always one save to time.
            checkpoint_save_seconds=self.timer.seconds["checkpoint"] - end["checkpoint"],
            segments=segments,
            segment_bytes=segment_bytes,
            cpu_segments=cpu_segments,
            timeline=bins,
            timeline_bin_seconds=bin_seconds,
            timeline_start_seconds=self._timeline[0][0][1] - self._origin,
            world_size=self.exchange.world_size,
            recording=self._recording,
            device_name=self.timer.device_clock.events.name if end["device"] else "",
            device_seconds=device_seconds(start["device"], end["device"], self._elapsed)
            if end["device"]
            else {},
            device_spans=spent["device_spans"],
            device_span_cost_seconds=self._span_cost,
        )


def recorder_from_environment(
    exchange: Exchange, timer: Timer, actor_timer: Timer | None = None
) -> Recorder | None:
    """Return the recorder that ``PARCADE_PROFILE`` requests, or None if it is not set.

    Errors: UsageError for invalid values.
    """
    folder = os.environ.get("PARCADE_PROFILE")
    if not folder:
        return None
    text = os.environ.get("PARCADE_PROFILE_SECONDS", "30")
    try:
        seconds = float(text)
    except ValueError:
        raise UsageError(f"PARCADE_PROFILE_SECONDS={text!r} is not a number; use seconds, e.g. 30") from None
    if not 0 < seconds < math.inf:
        raise UsageError(f"PARCADE_PROFILE_SECONDS={text} is not above 0 and finite; use seconds, e.g. 30")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"PARCADE_PROFILE={folder} cannot be a directory ({error.strerror}); use another path"
        ) from None
    if reason := why_not_writable(Path(folder)):
        raise UsageError(f"PARCADE_PROFILE={folder} cannot be written ({reason}); use another path")
    barrier = os.environ.get("PARCADE_PROFILE_BARRIER", "1") == "1"
    return Recorder(Path(folder), seconds, exchange, timer, actor_timer, barrier=barrier)


def scope_cost_seconds() -> float:
    """Measure the CPU seconds to record one span (one switch of scopes)."""
    timer, spans = Timer(), []
    timer.on_span = lambda *span: spans.append(span)
    started = time.process_time()
    for _ in range(COST_SAMPLES):
        with timer.scope("learn"):
            pass
    return (time.process_time() - started) / len(spans)


def span_cost_seconds(clock: DeviceClock | None) -> float:
    """Measure the CPU seconds to record one device span; 0 without a device clock."""
    if clock is None:
        return 0.0
    fresh, spent = clock.like(), 0.0
    for _ in range(2):  # the first round creates the events that the second takes from the pool
        started = time.process_time()
        for _ in range(SPAN_COST_SAMPLES):
            fresh.close(fresh.open("learn"))
        spent = time.process_time() - started
        fresh.snapshot()
    return spent / SPAN_COST_SAMPLES


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
