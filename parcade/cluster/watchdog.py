"""The watchdog: it decides whether a job hangs, and which process is the likely cause.

MPI cannot distinguish a stopped rank, a dead link and ranks that wait for one another: no message arrives. So
every rank writes heartbeats (``heartbeat``) with a progress value of its main thread. Clocks of different
hosts are never compared: a watcher measures with its own clock when a beat or a progress value last changed.
A job hangs when none of its processes makes progress for the given time; a rank that waits while another one
works does not hang.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from parcade.cluster.processes import ProcessRecord, read_records, records_lost

# Minimum time limit during start-up, which builds consoles and compiles kernels, and while a checkpoint is
# written, which may hold a replay of gigabytes.
START_SECONDS = 600.0
# Minimum time limit for MPI to shut down after every rank has finished.
END_SECONDS = 60.0
# A process that has sent no heartbeat for this long is not known to make progress. Its record may be late by
# much more than a beat on a disk that takes a large checkpoint.
SILENT_SECONDS = 30.0
# A time limit that means never, where a number is required.
NEVER_SECONDS = 86_400.0


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

    def is_saving(self) -> bool:
        """Return whether a process that still sends heartbeats is writing a checkpoint."""
        return any(
            sight.record.scope == "checkpoint"
            and sight.record.is_at_work
            and sight.silent_seconds < SILENT_SECONDS
            for sight in self.look()
        )

    def hang(self) -> str | None:
        """Return one line that says who hangs, where and for how long; None if the job makes progress."""
        sights = self.look()
        if self.hang_seconds <= 0:
            return None
        still = min([s.still_seconds for s in sights], default=time.monotonic() - self._began)
        all_begun = len(sights) >= self.world_size and all(s.record.begun for s in sights)
        is_slow = not all_begun or any(s.record.scope == "checkpoint" for s in sights)
        allowed = max(self.hang_seconds, START_SECONDS) if is_slow else self.hang_seconds
        if all_begun and all(s.record.ended for s in sights):
            allowed = max(self.hang_seconds, END_SECONDS)
        # A record changes once per beat, so it may lag behind its process by one beat.
        if still < allowed + beat_seconds(self.hang_seconds):
            return None
        cause = records_lost(self.run) or diagnose(sights, self.world_size, allowed)
        return f"no rank has made progress for {still:.0f} s (--hang-timeout): {cause}"


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
