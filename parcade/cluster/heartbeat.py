"""Heartbeats: the thread of every process of a run that reports its progress and ends it when the job hangs.

Two kinds of watchers exist (``watchdog``). The launcher, if parcade started the ranks, collects stacks, names
the hanging process and ends the job. Every rank also watches, and exits a little later if it still runs:
under a user's own launcher, or on a host that was cut off.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from parcade.cluster.processes import DIRECTORY, is_gone, kill_processes_here, own_record, write_record
from parcade.cluster.signals import STOP_FILE
from parcade.cluster.watchdog import Watch
from parcade.machine.timing import Timer

# How much longer than the launcher a rank waits before it ends itself: time to collect stacks.
LAUNCHER_GRACE_SECONDS = 15.0
EXIT_CODE_HUNG = 75
"""Exit code of a rank that its own watchdog ends (EX_TEMPFAIL of sysexits: try again)."""
# Touching this file requests the stacks of every process of a run.
ASK_FILE = "ask-stacks"
# The parcade process that started the ranks, as of `own_identity`; its death ends the run.
LAUNCHER_VARIABLE = "PARCADE_LAUNCHER"
# Made by the first rank that its watchdog ends.
ENDED_FILE = "ended"


class Activity(NamedTuple):
    """A process's report: its scope, a value that changes with progress, and whether start-up is over.

    ``seconds`` has the time per scope so far of every thread with a timer, by the thread's name.
    """

    scope: str
    progress: float
    begun: bool
    seconds: Mapping[str, dict[str, float]] = MappingProxyType({})


def activity_of(timers: Sequence[Timer]) -> Activity:
    """Return the report of a process with these timers, whose first one is the main thread's.

    A scope entered or left by any thread counts as progress.
    """
    # The first update has started. From now on, no step takes minutes.
    begun = timers[0].seconds["learn"] > 0
    seconds = {
        name: {scope: round(spent, 3) for scope, spent in timer.seconds.items()}
        for name, timer in zip(("main", "actor"), timers, strict=False)
    }
    return Activity(timers[0].standing[0], max(timer.standing[1] for timer in timers), begun, seconds)


class Heartbeat:
    """A context with a thread that writes this process's record, answers ``ASK_FILE`` and ends a hung rank.

    When the process that started the ranks is killed, the thread requests a stop: nobody watches them.

    Args:
        activity: called from the thread at every beat; must not block.
        watch: detects that the job hangs, so that this rank ends itself; None only writes records.
        grace_seconds: how long the rank waits before it ends itself.
    """

    def __init__(
        self,
        run: Path,
        role: str,
        number: int,
        activity: Callable[[], Activity],
        *,
        interval_seconds: float = 2.0,
        watch: Watch | None = None,
        grace_seconds: float = 0.0,
    ) -> None:
        self.run = run
        self.record = own_record(role, number)
        self.activity = activity
        self.interval_seconds = interval_seconds
        self.watch = watch
        self.grace_seconds = grace_seconds
        self.advice = f"resume with: parcade train --resume {run}"
        self._leave = threading.Event()
        self._answered: float | None = None
        self._launcher = os.environ.get(LAUNCHER_VARIABLE, "")
        self._thread = threading.Thread(target=self._beat_until_left, name="parcade-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        (self.run / DIRECTORY).mkdir(parents=True, exist_ok=True)
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._leave.set()
        self._thread.join(timeout=2 * self.interval_seconds + 5)
        self.record = replace(self.record, ended=kind is None, left=True)
        self._beat()

    def _beat(self) -> None:
        activity = self.activity()
        self.record = replace(
            self.record,
            beat=self.record.beat + 1,
            scope=activity.scope,
            progress=activity.progress,
            begun=activity.begun,
            seconds=dict(activity.seconds),
        )
        try:
            write_record(self.run, self.record)
        except OSError:
            pass  # an unreachable disk must not end a run; the next beat tries again

    def _beat_until_left(self) -> None:
        hung_since: float | None = None
        own, own_since = self.activity().progress, time.monotonic()
        while not self._leave.wait(self.interval_seconds):
            self._beat()
            self._answer()
            self._stop_without_launcher()
            if self.record.progress != own:
                own, own_since, hung_since = self.record.progress, time.monotonic(), None
            if self.watch is None or self.watch.hang_seconds <= 0:
                continue
            # Reading all records takes one read per rank: do it only if this rank makes no progress.
            if time.monotonic() - own_since < self.watch.hang_seconds / 2:
                continue
            reason = self.watch.hang()
            hung_since = None if reason is None else hung_since or time.monotonic()
            if reason and time.monotonic() - hung_since >= self.grace_seconds and not self._leave.is_set():
                self._end(reason)

    def _stop_without_launcher(self) -> None:
        """Request a stop, once, if the process that started the ranks is gone."""
        if self._launcher and is_gone(self._launcher):
            self._launcher = ""
            with contextlib.suppress(OSError):
                (self.run / STOP_FILE).touch()

    def _answer(self) -> None:
        """Write this process's stacks if there is a new request."""
        try:
            asked = (self.run / DIRECTORY / ASK_FILE).stat().st_mtime
        except OSError:
            return
        if asked != self._answered:
            self._answered = asked
            self.write_stack()

    def write_stack(self) -> None:
        """Write the Python stacks of all threads to ``processes/ROLE-NUMBER.stack``."""
        path = self.run / DIRECTORY / f"{self.record.role}-{self.record.number}.stack"
        temporary = path.with_suffix(".stack.tmp")
        try:
            with open(temporary, "w") as file:
                faulthandler.dump_traceback(file, all_threads=True)
            os.replace(temporary, path)
        except OSError:
            pass

    def _end(self, reason: str) -> None:
        """Exit: the main thread is in an MPI call that will not return. The first rank prints the reason."""
        self.write_stack()
        sights = self.watch.look()
        try:
            (self.run / DIRECTORY / ENDED_FILE).touch(exist_ok=False)
            is_first = True
        except FileExistsError:
            is_first = False
        except OSError:  # the first rank is unknown: rather print the reason twice than not at all
            is_first = True
        if is_first:
            # Use the original stderr, because the live view replaces sys.stderr.
            sys.__stderr__.write(
                f"parcade: {reason}\n"
                f"parcade: ending the job; stacks are in {self.run / DIRECTORY}; {self.advice}\n"
            )
            sys.__stderr__.flush()
        # The launcher ends all ranks when one exits: give the others time to write their stacks.
        time.sleep(3 * self.interval_seconds)
        # The launcher may leave silent processes behind.
        kill_processes_here([s.record for s in sights if s.silent_seconds > self.watch.hang_seconds / 2])
        os._exit(EXIT_CODE_HUNG)
