"""What the processes of a run write down about themselves: who they are, where they run and how far they have come.

One JSON file a process, ``RUN/processes/ROLE-NUMBER.json``, written anew with every heartbeat. The run directory is the one
place that every host of a job, every launcher and a user at another terminal can see; nothing here opens a port.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

DIRECTORY = "processes"


@dataclass(frozen=True)
class ProcessRecord:
    """One process of a run, as it last wrote itself down."""

    role: str
    """rank, or what else takes part in a run (an actor, a server)."""
    number: int
    """Counted from 0 within its role."""
    pid: int
    start_ticks: int
    """When the process began, in the kernel's clock ticks: tells it from a later one with the same pid."""
    host: str
    beat: int = 0
    """Counts heartbeats: one that stands still is a process that is stopped, dead or cut off."""
    scope: str = ""
    """The timing scope it is in."""
    progress: float = 0.0
    """Differs from the last beat's wherever the process has entered or left a scope since."""
    begun: bool = False
    """Whether it is past its start: consoles built, kernels compiled, the first update under way."""
    ended: bool = False
    """Whether it has done its work; what fails stays without it."""

    @property
    def name(self) -> str:
        """``rank 3``."""
        return f"{self.role} {self.number}"

    @property
    def place(self) -> str:
        """``pid 42 on host node1``."""
        return f"pid {self.pid} on host {self.host}"

    @property
    def is_on_this_host(self) -> bool:
        """Whether its pid means something here."""
        return self.host == socket.gethostname()

    def is_running_here(self) -> bool:
        """Whether this very process, and no later one with its pid, is there and not just an entry to be collected."""
        return (
            self.is_on_this_host
            and start_ticks(self.pid) == self.start_ticks
            and self.state_letter() not in "ZX"
        )

    def state_letter(self) -> str:
        """The kernel's letter for what a process of this host does: R runs, S sleeps, T stopped, Z dead; X if gone."""
        stat = _stat(self.pid) if self.is_on_this_host else None
        return stat[0] if stat else "X"


def still_running(run: Path, seconds: float) -> ProcessRecord | None:
    """A process of the run that is at work: here, or on another host by its progress within ``seconds``; else None.

    One elsewhere that beats and does not get on is what a cut link has left: its own watchdog ends it.
    """
    unended = [record for record in read_records(run) if not record.ended]
    for record in unended:
        if record.is_running_here():
            return record
    before = {record.name: record.progress for record in unended if not record.is_on_this_host}
    if before:
        time.sleep(seconds)
    return next(
        (now for now in read_records(run) if before.get(now.name, now.progress) != now.progress), None
    )


def own_record(role: str, number: int) -> ProcessRecord:
    """The record of the process that calls."""
    return ProcessRecord(role, number, os.getpid(), start_ticks(os.getpid()) or 0, socket.gethostname())


def write_record(run: Path, record: ProcessRecord) -> None:
    """Write a record so that its name never shows half of one. Errors: OSError."""
    path = run / DIRECTORY / f"{record.role}-{record.number}.json"
    temporary = path.with_suffix(f".{record.pid}.tmp")
    temporary.write_text(json.dumps(asdict(record)))
    os.replace(temporary, path)


def read_records(run: Path) -> list[ProcessRecord]:
    """The records of a run by role and number. Files that are damaged or of another version are left out."""
    names = {field.name for field in fields(ProcessRecord)}
    found = []
    for path in (run / DIRECTORY).glob("*-*.json"):
        try:
            data = json.loads(path.read_text())
            if names <= data.keys():
                found.append(ProcessRecord(**{name: data[name] for name in names}))
        except (OSError, ValueError, AttributeError):
            continue
    return sorted(found, key=lambda record: (record.role, record.number))


def clear_records(run: Path) -> None:
    """Forget the processes of an earlier start of this run."""
    shutil.rmtree(run / DIRECTORY, ignore_errors=True)
    (run / DIRECTORY).mkdir(parents=True, exist_ok=True)


def kill_processes_here(records: list[ProcessRecord]) -> None:
    """End, without asking, those of the recorded processes that still run on this host."""
    for record in records:
        if record.pid != os.getpid() and record.is_running_here():
            try:
                os.kill(record.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def kill_session(session: int) -> None:
    """End every process of a session: what a launcher put into process groups of its own, such as its remote shells."""
    for entry in Path("/proc").glob("[0-9]*"):
        stat = _stat(int(entry.name))
        if stat and int(stat[3]) == session and int(entry.name) != os.getpid():
            try:
                os.kill(int(entry.name), signal.SIGKILL)
            except ProcessLookupError:
                continue


def start_ticks(pid: int) -> int | None:
    """When a process of this host began, in clock ticks since boot; None when it is not there or this is not Linux."""
    stat = _stat(pid)
    return int(stat[19]) if stat else None


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on: the name before it may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return re.split(r"\s+", text.rsplit(")", 1)[1].strip())
