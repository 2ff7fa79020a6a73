"""Run a command under the recorder for a bounded time, and collect the files of its ranks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parcade.cluster.launch import STOP_GRACE_SECONDS
from parcade.cluster.mpi import end_process_group
from parcade.cluster.processes import kill_processes_here, read_records
from parcade.cluster.signals import StopRequest
from parcade.errors import UsageError
from parcade.machine.facts import commit, cores_at_once, machine
from parcade.profile.data import Profile, read_ranks

POLL_SECONDS = 0.2
STOP_SECONDS = 60
"""Time for an interrupted command to write its checkpoint."""
END_SECONDS = STOP_GRACE_SECONDS + 30
"""Time for a command to end.

A launcher first gives its ranks a grace period, then ends them. If it were killed before that, its ranks
would survive, because they are not in its process group. A launcher whose ranks write a checkpoint waits
longer, but the recording does not: it deletes the run directory anyway, and ends the ranks itself.
"""


@dataclass(frozen=True)
class RecordedCommand:
    """A command to record.

    ``command`` holds its arguments, ``shown`` is its text in the report, ``seconds`` is the length of the
    window.
    """

    command: list[str]
    shown: str
    seconds: float
    barrier: bool
    limit_seconds: float
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))


def train_command(arguments: list[str], run: Path) -> list[str]:
    """Return the command ``parcade train`` for this Python interpreter, with its own run directory."""
    return [sys.executable, "-m", "parcade", "train", *arguments, "--run-dir", str(run)]


@contextlib.contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """Create a temporary directory in ``folder`` for the files of a recording, and delete it on exit.

    ``folder`` is created if it does not exist. The name is unique, because ``folder`` belongs to the user and
    may contain other files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".profile-", dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def record(recording: RecordedCommand, folder: Path, made: Path) -> Profile:
    """Run a command and read its recording.

    Args:
        folder: folder for ``output.log``, the command's output. An existing one is replaced.
        made: an empty directory for the files of the ranks. A training has its run directory in ``made/run``;
            the profile includes its ``config.json``.

    Errors: UsageError if the command rejects its flags or records nothing; RuntimeError if it fails;
    KeyboardInterrupt when it has ended after a signal of ``stop_signals``.
    """
    ranks, run = made / "ranks", made / "run"
    ranks.mkdir()
    environment = {
        **recording.environment,
        "PARCADE_PROFILE": str(ranks.resolve()),
        "PARCADE_PROFILE_SECONDS": str(recording.seconds),
        "PARCADE_PROFILE_BARRIER": "1" if recording.barrier else "0",
        "PARCADE_PLAIN": "1",
    }
    environment.pop("PARCADE_RUN_DIR", None)
    load = os.getloadavg()[0]
    log = folder / "output.log"
    # A signal that raised inside a wait of Popen could leave its lock held: then no later wait would end.
    with open(log, "w") as output, StopRequest(None) as stop:
        process = subprocess.Popen(
            recording.command,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = _wait(process, recording.limit_seconds, log, run, stop)
    if stop.requested():
        raise KeyboardInterrupt
    if code:
        _check_log(log)
    reason = _last_line(log)
    if str(run) in recording.command:  # the user chose the folder around the training's run directory
        reason = reason.replace("another --run-dir", "another --out")
    if code == 2:
        raise UsageError(reason.removeprefix("parcade: "))
    if code:
        raise RuntimeError(f"the command exited with code {code}: {reason} (full output in {log})")
    if not any(ranks.iterdir()):
        raise UsageError(
            f"the command recorded nothing (last output: {reason}); expected a program that uses "
            "parcade.data_parallel or a Recorder, see docs/performance.md"
        )
    config = json.loads((run / "config.json").read_text()) if (run / "config.json").exists() else {}
    return Profile(
        command=recording.shown,
        config=config,
        barrier=recording.barrier,
        cores=cores_at_once(),
        machine=machine(),
        commit=commit(),
        load=load,
        ranks=read_ranks(ranks),
    )


def _wait(
    process: subprocess.Popen, limit_seconds: float, log: Path, run: Path, stop: StopRequest
) -> int | None:
    """Wait for the command and return its exit code. All its processes are gone afterwards.

    A requested stop ends the command by SIGTERM: SIGINT is ignored by what a script started in the
    background. Errors: RuntimeError if the command exceeds its limit.
    """
    deadline = time.monotonic() + limit_seconds
    try:
        while not stop.requested():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=POLL_SECONDS)
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"the command did not end within {limit_seconds:.0f} s (--limit); last output: "
                    f"{_last_line(log)}"
                )
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=STOP_SECONDS)
        return None
    finally:
        try:
            end_process_group(process, seconds=END_SECONDS)
        finally:  # even if Ctrl-C interrupts the wait
            kill_processes_here(read_records(run))


def _check_log(log: Path) -> None:
    """Check that a command that failed could write why. Errors: UsageError, e.g. on a full disk."""
    try:
        with open(log, "a") as output:
            output.write("\n")
    except OSError as error:
        raise UsageError(
            f"the command failed, and its output could not be written to {log} ({error.strerror}); "
            "free some space, or use another --out"
        ) from None


def _last_line(log: Path) -> str:
    """Return the first error line of parcade in the log, or else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("parcade: ")]
    return (errors or lines or ["no output"])[0 if errors else -1]
