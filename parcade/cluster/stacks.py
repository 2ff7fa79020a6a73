"""Python stacks of all processes of a run, read by py-spy or written by the process itself.

py-spy can read a process that is stopped or stuck in C, but only on this host. Processes on other hosts
receive a request through the run directory; their heartbeat threads write the stacks.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from parcade.cluster.heartbeat import ASK_FILE
from parcade.cluster.processes import DIRECTORY, ProcessRecord, read_records
from parcade.errors import UsageError
from parcade.files.reading import read_bytes
from parcade.machine.facts import program_path

PY_SPY_SECONDS = 15
MOST_STACK_BYTES = 1 << 20
ANSWER_SECONDS = 6.0
"""How long a process may take to answer: three of its heartbeats."""


def stacks(run: Path) -> list[tuple[ProcessRecord, str]]:
    """Return every process of a run with its stacks, or with a line that says why they are missing.

    Errors: UsageError when the run has no records of processes.
    """
    records = read_records(run)
    if not records:
        raise UsageError(
            f"{run} has no records of running processes; give the directory of a run that is training now"
        )
    texts: dict[str, str | None] = {}
    for record in records:
        if record.ended:
            texts[record.name] = "has finished"
        elif record.is_on_this_host and not record.is_running_here():
            texts[record.name] = "was killed or crashed before it finished"
        else:
            texts[record.name] = _spied(record) if record.is_on_this_host else None
    unread = [record for record in records if texts[record.name] is None]
    answers = _asked(run, unread) if unread else {}
    return [(record, texts[record.name] or answers[record.name]) for record in records]


def render(found: list[tuple[ProcessRecord, str]]) -> str:
    """Format stacks as text, with a heading for every process."""
    parts = []
    for record, text in found:
        doing = f", in '{record.scope}'" if record.scope and not record.ended else ""
        parts.append(f"== {record.name} ({record.place}{doing})\n{text.rstrip()}\n")
    return "\n".join(parts)


def py_spy() -> str | None:
    """Return the path of py-spy, or None."""
    return program_path("py-spy")


def _spied(record: ProcessRecord) -> str | None:
    """Return the stacks of a process on this host; None if py-spy is not installed or lacks permission."""
    program = py_spy()
    if program is None:
        return None
    # --nonblocking: pausing a rank would delay all others, and a stopped process cannot be paused.
    command = [program, "dump", "--nonblocking", "--pid", str(record.pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PY_SPY_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 and done.stdout.strip() else None


def _asked(run: Path, records: list[ProcessRecord]) -> dict[str, str]:
    """Request stacks through the run directory.

    Return them by process name; for a process that does not answer, return a line of advice.
    """
    files = {record.name: run / DIRECTORY / f"{record.role}-{record.number}.stack" for record in records}
    try:
        for file in files.values():
            file.unlink(missing_ok=True)
        ask = run / DIRECTORY / ASK_FILE
        ask.touch()
        os.utime(ask)
    except OSError as error:
        return dict.fromkeys(
            files, f"cannot be asked: {run / DIRECTORY} cannot be written ({error.strerror})"
        )
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline and not all(file.exists() for file in files.values()):
        time.sleep(0.1)
    return {record.name: _answer(files[record.name]) or _advice(record) for record in records}


def _answer(file: Path) -> str:
    """Return the stacks that a process has written; empty if it has not."""
    try:
        return read_bytes(file, MOST_STACK_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _advice(record: ProcessRecord) -> str:
    if record.is_on_this_host and py_spy() is None:
        return "does not answer, and py-spy is not installed; run: pip install 'parcade[mpi]'"
    where = (
        ""
        if record.is_on_this_host
        else f"; on host {record.host}, run: py-spy dump --nonblocking --pid {record.pid}"
    )
    return f"does not answer within {ANSWER_SECONDS:.0f} s{where or '; py-spy cannot read it (try as root)'}"
