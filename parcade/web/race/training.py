"""The training that a person races against: a child process, started or resumed with the race."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from parcade.cluster.processes import still_running
from parcade.errors import UsageError
from parcade.files.run_directory import complete_checkpoints, set_aside

NICENESS = 10
"""The training gives way to the person's console."""
END_SECONDS = 60.0
KILL_SECONDS = 5.0
FAST_PRESETS = {"pong": ("--preset", "pong_fast")}
OTHERWISE = ("--algorithm", "ppo")


def training_words(game: str, run: Path, flags: Sequence[str]) -> list[str]:
    """Return the arguments of ``parcade`` that train in ``run``: a new run, or the existing one.

    Errors: UsageError for flags with a run that exists, or that name one.
    """
    for flag in flags:
        if flag.split("=")[0].replace("_", "-") in ("--resume", "--run-dir"):
            raise UsageError(f"{flag} after --: the training of a race is in {run}; leave it out")
    if complete_checkpoints(run):
        if flags:
            raise UsageError(f"{run} is resumed with its own flags; leave those after -- out")
        return ["train", "--resume", str(run)]
    names = {flag.split("=")[0] for flag in flags}
    chosen = () if names & {"--preset", "--algorithm", "--from"} else FAST_PRESETS.get(game, OTHERWISE)
    return ["train", game, *chosen, *flags, "--run-dir", str(run)]


def make_room(run: Path) -> None:
    """Make room for a new training where an earlier one was killed before its first checkpoint.

    Errors: UsageError if that one still runs, or if its directory cannot be renamed.
    """
    if record := still_running(run):
        raise UsageError(
            f"{run} is still running ({record.name}, {record.place}); end it with: touch {run}/stop"
        )
    set_aside(run)


@contextlib.contextmanager
def training(words: Sequence[str], log: Path) -> Iterator[subprocess.Popen]:
    """Train in a process of its own until the end of the context; then it writes a checkpoint and ends.

    Its output goes to ``log``. It has a session of its own: Ctrl-C in the terminal reaches only the server,
    and the training receives one signal, not two. Errors: OSError if the log cannot be written.
    """
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "parcade", *words],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, "PARCADE_PLAIN": "1"},
        )  # fmt: skip
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)  # before it has threads, which inherit it
    try:
        yield process
    finally:
        _end(process, log)


def _end(process: subprocess.Popen, log: Path) -> None:
    """Ask a training to stop with a checkpoint, and wait for it."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"the training did not end within {END_SECONDS:.0f} s and was ended; see {log}", flush=True)
        os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel
            process.wait(KILL_SECONDS)


def last_line(log: Path) -> str:
    """Return the last line of a log, which says why a training ended; empty if it cannot be read."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:300] if lines else ""
