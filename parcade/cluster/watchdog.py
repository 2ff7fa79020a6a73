"""The watchdog: says which process of a job hangs, and ends what MPI would leave hanging for ever.

A rank that is stopped, a link that goes silent and ranks that wait for one another look the same to MPI: nothing comes.
So every rank has a thread that writes a heartbeat (``processes``) with a mark of its main thread's progress. Nobody's clock
is compared with anybody's: a watcher notes, by its own clock, when it last saw a beat or a mark change. A job hangs when
no process of it has made progress for the stated time; one rank that waits while another still plays does not.

Two watch. The launcher, where parcade started the ranks: it collects stacks, names who hangs and ends the job. And every
rank itself, which leaves a little later if it is still there: under a user's own launcher, on a host that was cut off.
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

# How much longer than the hang time a start may take: consoles are built and kernels compiled in it.
START_SECONDS = 600.0
# How long MPI may take to come down once every rank has done its work.
END_SECONDS = 60.0
# What stands for ever where a number is wanted.
NEVER_SECONDS = 86_400.0
# How long after the stated time a rank ends itself when its launcher has not: time to collect stacks.
LAUNCHER_GRACE_SECONDS = 15.0
EXIT_CODE_HUNG = 75
"""What a rank that its own watchdog ends exits with (sysexits' EX_TEMPFAIL: try again)."""
# The file that asks every process of a run for its stack, and where the answers stand.
ASK_FILE = "ask-stacks"
# Made by the first rank that its watchdog ends.
ENDED_FILE = "ended"


class Signs(NamedTuple):
    """What a process shows of itself: the scope it is in, a mark that changes with progress, whether it is past its start."""

    scope: str
    progress: float
    begun: bool


@dataclass(frozen=True)
class Sight:
    """A process as a watcher sees it."""

    record: ProcessRecord
    silent_seconds: float
    """Since its beat last changed."""
    still_seconds: float
    """Since its progress last changed."""


def beat_seconds(hang_seconds: float) -> float:
    """Time between heartbeats: often enough to tell a stopped process within the hang time."""
    return min(2.0, hang_seconds / 8) if hang_seconds > 0 else 2.0


def patience_seconds(hang_seconds: float) -> float:
    """How long a rank may wait for the others in a call that has a time limit of its own: as long as a start may take, at least."""
    return max(hang_seconds, START_SECONDS) if hang_seconds > 0 else NEVER_SECONDS


class Watch:
    """Follows the records of a run, by the clock of whoever watches.

    Args:
        world_size: how many ranks there should be.
        hang_seconds: how long nobody may make progress; 0 means for ever.
    """

    def __init__(self, run: Path, world_size: int, hang_seconds: float) -> None:
        self.run = run
        self.world_size = world_size
        self.hang_seconds = hang_seconds
        self._seen: dict[str, tuple[ProcessRecord, float, float]] = {}
        self._last_look = self._began = time.monotonic()

    def look(self) -> list[Sight]:
        """Read all records; returns how long each has been silent and still."""
        now = time.monotonic()
        if now - self._last_look > max(5 * beat_seconds(self.hang_seconds), 5.0):
            # We were stopped ourselves, with the whole job perhaps (a suspended allocation): count from now.
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
        """Look; None while somebody gets on, otherwise one line that says who hangs, where and for how long."""
        sights = self.look()
        if self.hang_seconds <= 0:
            return None
        still = min([s.still_seconds for s in sights], default=time.monotonic() - self._began)
        all_begun = len(sights) >= self.world_size and all(s.record.begun for s in sights)
        allowed = self.hang_seconds if all_begun else max(self.hang_seconds, START_SECONDS)
        if all_begun and all(s.record.ended for s in sights):
            allowed = max(self.hang_seconds, END_SECONDS)
        # A record stands still for one beat even when its process does not.
        if still < allowed + beat_seconds(self.hang_seconds):
            return None
        return f"no rank has got on for {still:.0f} s (--hang-timeout): {diagnose(sights, self.world_size, allowed)}"


def diagnose(sights: list[Sight], world_size: int, hang_seconds: float) -> str:
    """Whose fault it most likely is that nobody gets on: the missing, the ended, the silent, the slow, else the link."""
    ranks = {s.record.number: s for s in sights if s.record.role == "rank"}
    missing = [number for number in range(world_size) if number not in ranks]
    if missing:
        return f"{_named(missing)} never came up"
    ended = [n for n, s in ranks.items() if s.record.ended]
    if ended and len(ended) < world_size:
        return f"{_named(ended)} ended while the others wait"
    if ended:
        return "every rank has done its work, but MPI does not come down"
    silent = [s for s in ranks.values() if s.silent_seconds > max(hang_seconds / 2, 2.0)]
    hosts = {s.record.host for s in ranks.values()}
    if silent:
        dead_hosts = hosts - {s.record.host for s in ranks.values() if s not in silent}
        if dead_hosts and len(hosts) > 1:
            lost = [n for n, s in ranks.items() if s.record.host in dead_hosts]
            return f"host {', '.join(sorted(dead_hosts))} ({_named(lost)}) is dead or cut off: no heartbeat comes from it"
        return "; ".join(
            f"{s.record.name} ({s.record.place}) {_STATES.get(s.record.state_letter(), 'gives no heartbeat')}"
            for s in silent
        )
    slow = [s for s in ranks.values() if s.record.scope != "communicate"]
    if slow and len(slow) < world_size:
        where = "; ".join(f"{s.record.name} ({s.record.place}) is in '{s.record.scope}'" for s in slow)
        return f"{where} while the others wait for it"
    if slow:
        return "every rank is alive but none gets on; their stacks say where they are"
    if len(hosts) > 1:
        return f"every rank is alive and waits for the others: the link between hosts {', '.join(sorted(hosts))} is silent"
    return "every rank is alive and waits for the others: they do not agree on what to exchange"


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
    """While entered, a thread writes this process's record, answers to ``ASK_FILE`` and, if told to, ends a hung rank.

    Args:
        signs: asked every beat, from the thread; must not block.
        watch: what a rank needs to end itself when the job hangs; None only records.
        grace_seconds: how long after the watch says so.
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
        self.advice = f"go on with: parcade train --resume {run}"
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
            pass  # a disk that is full or away must not end a run; the next beat tries again

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
            # Reading every rank's record costs as many reads as ranks: only worth it for one that itself stands still.
            if time.monotonic() - own_since < self.watch.hang_seconds / 2:
                continue
            reason = self.watch.hang()
            hung_since = None if reason is None else hung_since or time.monotonic()
            if reason and time.monotonic() - hung_since >= self.grace_seconds and not self._leave.is_set():
                self._end(reason)

    def _answer(self) -> None:
        """Write this process's stack if somebody asks for it anew."""
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
        """Leave: the main thread is inside a call to MPI that will not return. The first rank to leave says why."""
        self.write_stack()
        sights = self.watch.look()
        try:
            (self.run / DIRECTORY / ENDED_FILE).touch(exist_ok=False)
            is_first = True
        except FileExistsError:
            is_first = False
        except OSError:  # nobody can tell who is first: better said twice than not at all
            is_first = True
        if is_first:
            # The process's own: the live view has put itself in the place of sys.stderr.
            sys.__stderr__.write(
                f"parcade: {reason}\nparcade: the job is ended; stacks stand in {self.run / DIRECTORY}; {self.advice}\n"
            )
            sys.__stderr__.flush()
        # The launcher ends everybody once one is gone: the others, too, need a moment to write down where they stand.
        time.sleep(3 * self.interval_seconds)
        # It may leave behind who cannot hear it.
        kill_processes_here([s.record for s in sights if s.silent_seconds > self.watch.hang_seconds / 2])
        os._exit(EXIT_CODE_HUNG)
