"""Records of the processes of a run: their identity, location and progress.

Each process rewrites its file ``RUN/processes/ROLE-NUMBER.json`` with every heartbeat. All hosts of a job,
its launcher and other terminals can read the run directory, so no network port is needed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from parcade.files.reading import read_object

DIRECTORY = "processes"
RECORD_BYTES = 4096
"""Size of a record's file: one block of a disk, so that a full disk still takes the next record in place."""
BEATS_SECONDS = 4.5
"""More than two periods of the slowest heartbeat, of 2 s."""


@dataclass(frozen=True)
class ProcessRecord:
    """The last written record of one process of a run."""

    role: str
    """``rank``, or another role such as actor or server."""
    number: int
    """Index within the role, from 0."""
    pid: int
    start_ticks: int
    """Start time in the kernel's clock ticks; tells the process from a later one with the same pid."""
    host: str
    beat: int = 0
    """Number of heartbeats. If it stops increasing, the process is stopped, dead or cut off."""
    scope: str = ""
    """Current timing scope."""
    progress: float = 0.0
    """Changes between heartbeats if the process entered or left a scope."""
    begun: bool = False
    """Whether start-up is over: consoles are built, kernels are compiled, the first update has started."""
    ended: bool = False
    """Whether the process has finished its work; stays False if it fails."""
    left: bool = False
    """Whether the process works on this run no more, even if it lives on, as a notebook does."""
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    """Seconds per scope so far, by thread: ``main``, and ``actor`` with overlap."""

    @property
    def name(self) -> str:
        """Role and number, e.g. ``rank 3``."""
        return f"{self.role} {self.number}"

    @property
    def place(self) -> str:
        """Process id and host, e.g. ``pid 42 on host node1``."""
        return f"pid {self.pid} on host {self.host}"

    @property
    def is_on_this_host(self) -> bool:
        """Whether the process belongs to this host, so that its pid is valid here."""
        return self.host == socket.gethostname()

    @property
    def is_at_work(self) -> bool:
        """Whether the process has neither finished its work on this run nor left it. It may be dead."""
        return not (self.ended or self.left)

    def is_running_here(self) -> bool:
        """Return whether this process, not a later one with its pid, runs on this host and is no zombie."""
        return (
            self.is_on_this_host
            and start_ticks(self.pid) == self.start_ticks
            and self.state_letter() not in "ZX"
        )

    def state_letter(self) -> str:
        """Return the kernel's state letter: R running, S sleeping, T stopped, Z zombie; X if not here."""
        stat = _stat(self.pid) if self.is_on_this_host else None
        return stat[0] if stat else "X"


def still_running(run: Path, seconds: float = BEATS_SECONDS) -> ProcessRecord | None:
    """Return a process of the run that is still working, or None.

    A process on another host counts if it makes progress within ``seconds``. If it only sends heartbeats, its
    link was cut, and its own watchdog ends it.
    """
    unended = [record for record in read_records(run) if record.is_at_work]
    for record in unended:
        if record.is_running_here():
            return record
    before = {record.name: record.progress for record in unended if not record.is_on_this_host}
    if before:
        time.sleep(seconds)
    return next(
        (now for now in read_records(run) if before.get(now.name, now.progress) != now.progress), None
    )


def wait_for_end(run: Path, seconds: float, poll_seconds: float = 0.1) -> bool:
    """Wait until no process of the run is working any more; return whether that is so within ``seconds``."""
    end = time.monotonic() + seconds
    while run.is_dir() and still_running(run):
        if time.monotonic() > end:
            return False
        time.sleep(poll_seconds)
    return True


def own_record(role: str, number: int) -> ProcessRecord:
    """Return a record of the calling process."""
    return ProcessRecord(
        role, number, pid=os.getpid(), start_ticks=start_ticks(os.getpid()) or 0, host=socket.gethostname()
    )


def own_identity() -> str:
    """Return this process's id, start time, host and (on Linux) namespace of ids, for ``is_gone``."""
    own = own_record("", 0)
    return f"{own.pid} {own.start_ticks} {own.host} {_pid_namespace()}"


def is_gone(identity: str) -> bool:
    """Return whether the process of an ``own_identity`` has ended; False if it cannot be seen from here."""
    pid, ticks, host, namespace = (identity.split(" ") + [""] * 4)[:4]
    if not (pid.isdecimal() and ticks.isdecimal() and namespace and namespace == _pid_namespace()):
        return False
    process = ProcessRecord("", 0, pid=int(pid), start_ticks=int(ticks), host=host)
    return process.is_on_this_host and not process.is_running_here()


def _pid_namespace() -> str:
    """Return the namespace in which process ids are valid; "" on other systems than Linux."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def write_record(run: Path, record: ProcessRecord) -> None:
    """Write a record, atomically unless the disk is full. Errors: OSError."""
    path = run / DIRECTORY / f"{record.role}-{record.number}.json"
    temporary = path.with_suffix(f".{record.pid}.tmp")
    text = json.dumps(asdict(record)).ljust(RECORD_BYTES)
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        # Into the space of the last record: without heartbeats, a healthy job would count as hanging.
        with open(path, "r+") as file:
            file.write(text)


def read_records(run: Path) -> list[ProcessRecord]:
    """Return the records of a run by role and number. Skip files that are damaged or of another version."""
    found = []
    for path in (run / DIRECTORY).glob("*-*.json"):
        record = _record_from(read_object(path))
        if record is not None and path.name == f"{record.role}-{record.number}.json":
            found.append(record)  # so a role cannot name another directory
    return sorted(found, key=lambda record: (record.role, record.number))


def records_lost(run: Path) -> str:
    """Return a line if the records of a started run are gone, with the run's directory; "" if they exist."""
    if (run / DIRECTORY).is_dir():
        return ""
    return f"{run / DIRECTORY} is gone: the run's directory was deleted or moved while its ranks trained"


def _record_from(data: dict[str, Any]) -> ProcessRecord | None:
    """Return the record of a JSON object, or None if a field has another type. New fields may be missing."""
    types = {"str": str, "int": int, "float": (int, float), "bool": bool}
    values = {each.name: data.get(each.name) for each in fields(ProcessRecord)}
    values["left"], values["seconds"] = data.get("left", False), data.get("seconds", {})
    if all(isinstance(values[each.name], types.get(str(each.type), dict)) for each in fields(ProcessRecord)):
        return ProcessRecord(**values)
    return None


def clear_records(run: Path) -> None:
    """Delete the records of an earlier start of this run."""
    shutil.rmtree(run / DIRECTORY, ignore_errors=True)
    (run / DIRECTORY).mkdir(parents=True, exist_ok=True)


def kill_processes_here(records: list[ProcessRecord]) -> None:
    """Kill the recorded processes that still run on this host, except the calling one."""
    for record in records:
        if record.pid != os.getpid() and record.is_running_here():
            try:
                os.kill(record.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def kill_session(session: int) -> None:
    """Kill every process of a session, also in other process groups, such as a launcher's remote shells."""
    for entry in Path("/proc").glob("[0-9]*"):
        stat = _stat(int(entry.name))
        if stat and int(stat[3]) == session and int(entry.name) != os.getpid():
            try:
                os.kill(int(entry.name), signal.SIGKILL)
            except ProcessLookupError:
                continue


def start_ticks(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot; None if it is gone or this is not Linux."""
    stat = _stat(pid)
    return int(stat[19]) if stat else None


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name, which may contain spaces and parentheses."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return re.split(r"\s+", text.rsplit(")", 1)[1].strip())
