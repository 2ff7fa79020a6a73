"""The watchdog: it reports which process of a job hangs and ends jobs that would otherwise hang forever.

MPI cannot distinguish a stopped rank, a dead link and ranks that wait for one another: no message arrives. So
every rank has a thread that writes heartbeats (``processes``) with a progress value of the main thread.
Clocks of different hosts are never compared: a watcher measures with its own clock when a beat or a progress
value last changed. A job hangs when none of its processes makes progress for the given time; a rank that
waits while another one works does not hang.

Two kinds of watchers exist. The launcher, if parcade started the ranks, collects stacks, names the hanging
process and ends the job. Every rank also watches, and exits a little later if it still runs: under a user's
own launcher, or on a host that was cut off.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from parcade.cluster.processes import (
    DIRECTORY,
    ProcessRecord,
    kill_processes_here,
    own_record,
    read_records,
    write_record,
)

# Minimum time limit during start-up, which builds consoles and compiles kernels.
START_SECONDS = 600.0
# Minimum time limit for MPI to shut down after every rank has finished.
END_SECONDS = 60.0
# A time limit that means never, where a number is required.
NEVER_SECONDS = 86_400.0
# How much longer than the launcher a rank waits before it ends itself: time to collect stacks.
LAUNCHER_GRACE_SECONDS = 15.0
EXIT_CODE_HUNG = 75
"""Exit code of a rank that its own watchdog ends (EX_TEMPFAIL of sysexits: try again)."""
# Touching this file requests the stacks of every process of a run.
ASK_FILE = "ask-stacks"
# Made by the first rank that its watchdog ends.
ENDED_FILE = "ended"


class Signs(NamedTuple):
    """A process's report: its scope, a value that changes with progress, and whether start-up is over."""

    scope: str
    progress: float
    begun: bool


@dataclass(frozen=True)
class Sight:
    """A watcher's view of a process."""

    record: ProcessRecord
    silent_seconds: float
    """Time since its beat last changed."""
    still_seconds: float
    """Time since its progress last changed."""


def beat_seconds(hang_seconds: float) -> float:
    """Return the time between heartbeats, short enough to detect a stopped process within the hang time."""
    return min(2.0, hang_seconds / 8) if hang_seconds > 0 else 2.0


def patience_seconds(hang_seconds: float) -> float:
    """Return the time limit of a call that waits for other ranks: at least the limit for start-up."""
    return max(hang_seconds, START_SECONDS) if hang_seconds > 0 else NEVER_SECONDS


class Watch:
    """Follows the records of a run with the watcher's clock.

    Args:
        world_size: the expected number of ranks.
        hang_seconds: the job hangs when no process makes progress for this long; 0 disables.
    """

    def __init__(self, run: Path, world_size: int, hang_seconds: float) -> None:
        self.run = run
        self.world_size = world_size
        self.hang_seconds = hang_seconds
        self._seen: dict[str, tuple[ProcessRecord, float, float]] = {}
        self._last_look = self._began = time.monotonic()

    def look(self) -> list[Sight]:
        """Read all records; return how long each process has sent no heartbeat and made no progress."""
        now = time.monotonic()
        if now - self._last_look > max(5 * beat_seconds(self.hang_seconds), 5.0):
            # This process was stopped, perhaps with the entire job (a suspended allocation): count from now.
            self._seen, self._began = {}, now
        self._last_look = now
        for record in read_records(self.run):
            before, beat_at, progress_at = self._seen.get(record.name, (None, now, now))
            if before is not None and before.beat != record.beat:
                beat_at = now
            if before is not None and (before.progress, before.ended) != (record.progress, record.ended):
                progress_at = now
            self._seen[record.name] = (record, beat_at, progress_at)
        return [
            Sight(record, now - beat_at, now - moved_at) for record, beat_at, moved_at in self._seen.values()
        ]

    def hang(self) -> str | None:
        """Return one line that says who hangs, where and for how long; None if the job makes progress."""
        sights = self.look()
        if self.hang_seconds <= 0:
            return None
        still = min([s.still_seconds for s in sights], default=time.monotonic() - self._began)
        all_begun = len(sights) >= self.world_size and all(s.record.begun for s in sights)
        allowed = self.hang_seconds if all_begun else max(self.hang_seconds, START_SECONDS)
        if all_begun and all(s.record.ended for s in sights):
            allowed = max(self.hang_seconds, END_SECONDS)
        # A record changes once per beat, so it may lag behind its process by one beat.
        if still < allowed + beat_seconds(self.hang_seconds):
            return None
        return (
            f"no rank has made progress for {still:.0f} s (--hang-timeout): "
            f"{diagnose(sights, self.world_size, allowed)}"
        )


def diagnose(sights: list[Sight], world_size: int, hang_seconds: float) -> str:
    """Return the likely cause of a hang: missing, ended, silent or slow ranks, in this order, or the link."""
    ranks = {s.record.number: s for s in sights if s.record.role == "rank"}
    missing = [number for number in range(world_size) if number not in ranks]
    if missing:
        return f"{_named(missing)} never started"
    ended = [n for n, s in ranks.items() if s.record.ended]
    if ended and len(ended) < world_size:
        return f"{_named(ended)} ended while the others wait"
    if ended:
        return "every rank has finished its work, but MPI does not shut down"
    silent = [s for s in ranks.values() if s.silent_seconds > max(hang_seconds / 2, 2.0)]
    hosts = {s.record.host for s in ranks.values()}
    if silent:
        dead_hosts = hosts - {s.record.host for s in ranks.values() if s not in silent}
        if dead_hosts and len(hosts) > 1:
            lost = [n for n, s in ranks.items() if s.record.host in dead_hosts]
            return f"host {', '.join(sorted(dead_hosts))} ({_named(lost)}) is dead or cut off: no heartbeat"
        return "; ".join(
            f"{s.record.name} ({s.record.place}) {_STATES.get(s.record.state_letter(), 'sends no heartbeat')}"
            for s in silent
        )
    slow = [s for s in ranks.values() if s.record.scope != "communicate"]
    if slow and len(slow) < world_size:
        where = "; ".join(f"{s.record.name} ({s.record.place}) is in '{s.record.scope}'" for s in slow)
        return f"{where} while the others wait for it"
    if slow:
        return "every rank is alive, but none makes progress; their stacks show where they are"
    if len(hosts) > 1:
        return (
            "every rank is alive and waits for the others: "
            f"the link between hosts {', '.join(sorted(hosts))} is silent"
        )
    return "every rank is alive and waits for the others: their collective calls do not match"


_STATES = {
    "T": "is stopped",
    "t": "is held by a debugger",
    "Z": "has died",
    "X": "has died",
    "D": "is stuck in the kernel",
}


def _named(numbers: list[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, sorted(numbers)))}"


class Heartbeat:
    """A context with a thread that writes this process's record, answers ``ASK_FILE`` and ends a hung rank.

    Args:
        signs: called from the thread at every beat; must not block.
        watch: detects that the job hangs, so that this rank ends itself; None only writes records.
        grace_seconds: how long the rank waits before it ends itself.
    """

    def __init__(
        self,
        run: Path,
        role: str,
        number: int,
        signs: Callable[[], Signs],
        *,
        interval_seconds: float = 2.0,
        watch: Watch | None = None,
        grace_seconds: float = 0.0,
    ) -> None:
        self.run = run
        self.record = own_record(role, number)
        self.signs = signs
        self.interval_seconds = interval_seconds
        self.watch = watch
        self.grace_seconds = grace_seconds
        self.advice = f"resume with: parcade train --resume {run}"
        self._leave = threading.Event()
        self._answered: float | None = None
        self._thread = threading.Thread(target=self._beat_until_left, name="parcade-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        (self.run / DIRECTORY).mkdir(parents=True, exist_ok=True)
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._leave.set()
        self._thread.join(timeout=2 * self.interval_seconds + 5)
        self.record = replace(self.record, ended=kind is None)
        self._beat()

    def _beat(self) -> None:
        scope, progress, begun = self.signs()
        self.record = replace(
            self.record, beat=self.record.beat + 1, scope=scope, progress=progress, begun=begun
        )
        try:
            write_record(self.run, self.record)
        except OSError:
            pass  # a full or unreachable disk must not end a run; the next beat tries again

    def _beat_until_left(self) -> None:
        hung_since: float | None = None
        own, own_since = self.signs().progress, time.monotonic()
        while not self._leave.wait(self.interval_seconds):
            self._beat()
            self._answer()
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
