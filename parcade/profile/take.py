"""Running a command under the recorder, for a bounded time, and gathering what its ranks wrote."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from parcade.cluster.launch import STOP_GRACE_SECONDS
from parcade.cluster.mpi import end_process_group
from parcade.cluster.processes import kill_processes_here, read_records
from parcade.errors import UsageError
from parcade.machine import available_cores, commit, machine
from parcade.profile.data import Profile, read_ranks, to_json

STOP_SECONDS = 60
"""How long a command that was interrupted gets to write its checkpoint."""
END_SECONDS = STOP_GRACE_SECONDS + 30
"""How long a command that is to end gets for it: a launcher gives its ranks a grace time first, then ends them. Were it
killed before, its ranks, which are in no group of its own, would live on."""


@dataclass(frozen=True)
class Recording:
    """What to run and how: ``command`` as words and its environment, the window in seconds, and when to give up."""

    command: list[str]
    shown: str
    seconds: float
    barrier: bool
    limit_seconds: float
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))


def train_command(arguments: list[str], run: Path) -> list[str]:
    """``parcade train`` of this very Python, with a run directory of our own."""
    return [sys.executable, "-m", "parcade", "train", *arguments, "--run-dir", str(run)]


@contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A new directory in ``folder``, which is made if need be, for what a recording leaves; deleted in the end.

    Under a name of its own: ``folder`` is the user's, and anything may stand in it already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".profile-", dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def take(recording: Recording, folder: Path, made: Path) -> Profile:
    """Run it and read what it recorded.

    Args:
        folder: where ``output.log``, the command's output, and ``profile.json`` go; an earlier profile's are replaced.
        made: an empty directory of its own. The ranks' files go into it, and a training has its run directory,
            whose ``config.json`` belongs into the profile, in ``made/run``.

    Errors: UsageError when the command refuses its flags or records nothing; RuntimeError when it fails.
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
    with open(log, "w") as output:
        process = subprocess.Popen(
            recording.command,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = _wait(process, recording.limit_seconds, log, run)
    if code == 2:
        raise UsageError(_last_line(log).removeprefix("parcade: "))
    if code:
        raise RuntimeError(
            f"the command ended with code {code}: {_last_line(log)} (all of its output is in {log})"
        )
    config = json.loads((run / "config.json").read_text()) if (run / "config.json").exists() else {}
    profile = Profile(
        command=recording.shown,
        config=config,
        barrier=recording.barrier,
        cores=available_cores(),
        machine=machine(),
        commit=commit(),
        load=load,
        ranks=read_ranks(ranks),
    )
    (folder / "profile.json").write_text(json.dumps(to_json(profile)) + "\n")
    return profile


def _wait(process: subprocess.Popen, limit_seconds: float, log: Path, run: Path) -> int:
    """The command's exit code; nothing of it is left. Ctrl-C asks it to stop. Errors: RuntimeError when it overruns its
    limit."""
    deadline = time.monotonic() + limit_seconds
    try:
        while True:
            try:
                return process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"the command did not end within {limit_seconds:.0f} s (--limit); last it said: {_last_line(log)}"
                )
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        raise
    finally:
        try:
            end_process_group(process, seconds=END_SECONDS)
        finally:  # a Ctrl-C while waiting leaves nothing behind either
            kill_processes_here(read_records(run))


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("parcade: ")]
    return (errors or lines or ["it said nothing"])[0 if errors else -1]
