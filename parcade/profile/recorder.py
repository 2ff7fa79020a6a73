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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from parcade.doctor.running import BUSY_SHARE, thread_seconds
from parcade.errors import UsageError
from parcade.exchange.base import Exchange
from parcade.files.outputs import make_directory, why_not_writable
from parcade.machine.device_timing import DeviceClock, device_seconds
from parcade.machine.facts import usable_cores, within_quota
from parcade.machine.threads import pools_here
from parcade.machine.timing import Timer
from parcade.profile.data import RankProfile, write_rank
from parcade.profile.spans import SpanLog, binned, usual_segments

WARM_UP_ITERATIONS = 2
CEILING_REPEATS = 15
THREADS_SECONDS = 1.0
"""Time between two readings of the CPU time of all threads, which cost too much for every iteration."""
COST_SAMPLES = 2000
SPAN_COST_SAMPLES = 200


class Counts(Protocol):
    """Counters of a rank so far. Every experience source has them."""

    steps: int
    frames: int


class Window:
    """The iterations of the window, ``seconds`` and ``cpu_seconds`` of each, without what is between them."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.elapsed = 0.0
        self.begin_iteration()
        self.origin = self._since

    def begin_iteration(self) -> None:
        """Count from now."""
        self._since, self._cpu_since = time.perf_counter(), time.process_time()

    def end_iteration(self) -> None:
        """Add the iteration that ends now; the next one begins."""
        since, cpu_since = self._since, self._cpu_since
        self.begin_iteration()
        self.seconds.append(self._since - since)
        self.cpu_seconds.append(self._cpu_since - cpu_since)
        self.elapsed += self._since - since


class ThreadTimes:
    """CPU time of this process's threads, from its making to the newest reading."""

    def __init__(self) -> None:
        self._first, self._newest = _thread_seconds(), {}
        self._began = self._at = time.perf_counter()

    @property
    def is_due(self) -> bool:
        """Whether to read again: now and then, because another rank may end the window."""
        return time.perf_counter() - self._at >= THREADS_SECONDS or not self._newest

    def read(self) -> None:
        """Read again."""
        self._at, self._newest = time.perf_counter(), _thread_seconds()

    def shares(self) -> list[float]:
        """Return the share of the time that each of the threads of the newest reading has used."""
        elapsed = self._at - self._began
        return [(cpu - self._first.get(thread, 0.0)) / elapsed for thread, cpu in self._newest.items()]


def _thread_seconds() -> dict[int, float]:
    """Return the CPU seconds of every thread so far."""
    import psutil

    return thread_seconds(psutil.Process())


@dataclass(frozen=True)
class _Start:
    """What a rank measures before its window, and its counters there."""

    ceiling_seconds: list[float]
    """Of Allreduces of one gradient."""
    gradient_bytes: int
    scope_cost_seconds: float
    span_cost_seconds: float
    recording: str
    """Names the recording on all ranks."""
    counters: dict[str, Any]


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
        self._iterations_before = WARM_UP_ITERATIONS
        self._spans = SpanLog(self.timer, barrier=self.barrier)
        self._window: Window | None = None
        self._threads: ThreadTimes | None = None
        self._start: _Start | None = None
        self._end: dict[str, Any] | None = None
        """The counters after the newest iteration."""
        self._own_seconds = 0.0

    @property
    def _elapsed(self) -> float:
        return self._window.elapsed if self._window else 0.0

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
        if self._window is not None:
            self._window.begin_iteration()
        self._spans.restart_cpu_clock()

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
        self._window.end_iteration()
        self._spans.end_iteration()
        self._end = self._counters(steps, frames)
        if self.is_full or self._threads.is_due:
            self._threads.read()
        self._own_seconds += time.thread_time() - started

    def _begin(self, steps: int, frames: int) -> None:
        exchange, grad = self.exchange, self.exchange.parameters.grad
        ceiling = exchange.time_allreduce(grad.numel(), CEILING_REPEATS, grad.device)
        costs = scope_cost_seconds(), span_cost_seconds(self.timer.device_clock)
        exchange.barrier_first = self.barrier
        # Ranks start together and agree on the start time, which identifies the recording.
        recording = f"{exchange.maximum(np.array([time.time()]))[0]:017.6f}"
        exchange.on_collective = self._spans.mark_call
        self._start = _Start(
            ceiling_seconds=ceiling.tolist(),
            gradient_bytes=grad.numel() * grad.element_size(),
            scope_cost_seconds=costs[0],
            span_cost_seconds=costs[1],
            recording=recording,
            counters=self._counters(steps, frames),
        )
        self._threads = ThreadTimes()
        self.timer.snapshot()  # ends the span from before the window, which is not recorded
        self.timer.on_span = self._spans.add
        self._window = Window()
        self._spans.restart_cpu_clock()

    def _counters(self, steps: int, frames: int) -> dict[str, Any]:
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

        start, end, spans, window = self._start, self._end, self._spans, self._window
        spent = {name: end[name] - n for name, n in start.counters.items() if isinstance(n, int | float)}
        shares = self._threads.shares()
        bins, bin_seconds = binned(list(spans.timeline))
        segments, segment_bytes, cpu_segments = usual_segments(list(spans.segments))
        actor_before = start.counters["actor"]
        on_device = (
            device_seconds(start.counters["device"], end["device"], window.elapsed) if end["device"] else {}
        )
        return RankProfile(
            rank=self.exchange.rank,
            local_size=self.exchange.local_size,
            seconds=spans.seconds,
            actor_seconds={name: seconds - actor_before[name] for name, seconds in end["actor"].items()},
            iteration_seconds=window.seconds,
            iteration_cpu_seconds=window.cpu_seconds,
            steps=spent["steps"],
            frames=spent["frames"],
            updates=spent["updates"],
            scopes=spans.count,
            scope_cost_seconds=start.scope_cost_seconds,
            own_seconds=self._own_seconds,
            barrier=self.barrier,
            barrier_seconds=spans.barrier_seconds,
            threads=len(shares),
            busy_threads=sum(share > BUSY_SHARE for share in shares),
            pools=[[pool.library, pool.threads] for pool in pools_here()],
            affinity=list(usable_cores()),
            local_cores=list(self.exchange.local_cores),
            cores_at_once=within_quota(len(self.exchange.local_cores)),
            memory_bytes=psutil.Process().memory_info().rss,
            voluntary_switches=spent["voluntary"],
            involuntary_switches=spent["involuntary"],
            gradient_bytes=start.gradient_bytes,
            bytes_moved=spent["bytes"],
            allreduce_seconds=spent["allreduce"],
            ceiling_seconds=start.ceiling_seconds,
            # The final save of the run is after the window, so there is always one save to time.
            checkpoint_save_seconds=self.timer.seconds["checkpoint"] - end["checkpoint"],
            segments=segments,
            segment_bytes=segment_bytes,
            cpu_segments=cpu_segments,
            timeline=bins,
            timeline_bin_seconds=bin_seconds,
            timeline_start_seconds=spans.timeline[0][0][1] - window.origin,
            world_size=self.exchange.world_size,
            recording=start.recording,
            device_name=self.timer.device_clock.events.name if end["device"] else "",
            device_seconds=on_device,
            device_spans=spent["device_spans"],
            device_span_cost_seconds=start.span_cost_seconds,
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
        make_directory(Path(folder))
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
