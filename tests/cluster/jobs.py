"""Jobs of real ranks for the cluster tests: started, waited for and always ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from parcade.cluster import mpi
from parcade.cluster.processes import kill_processes_here, read_records
from parcade.files.run_directory import complete_checkpoints

HARD_LIMIT_SECONDS = 240
HANG_SECONDS = 6
ROOT = Path(__file__).resolve().parents[2]
TRAIN = ["train", "tiny_catch", "--unroll-length", "16", "--threads-per-rank", "1", "--engine", "mpi"]
ENDLESS = ["--total-frames", "100000000", "--checkpoint-seconds", "1"]
HANGING = ["--hang-timeout", f"{HANG_SECONDS}s"]
"""For jobs that will hang: on a busy machine a shorter time would pass without progress."""


class Programs(NamedTuple):
    """The Python and the mpiexec of one MPI."""

    python: str
    mpiexec: str


def mpi_programs(implementation: str) -> Programs:
    """Open MPI next to this Python; MPICH in a separate virtual environment, set by PARCADE_MPICH."""
    if implementation == "openmpi":
        return Programs(sys.executable, mpi.find_mpiexec())
    home = os.environ.get("PARCADE_MPICH", str(ROOT / ".venv-mpich"))
    python = Path(home) / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no MPICH in {home}; tests/cluster/install.sh puts it there")
    return Programs(str(python), str(python.with_name("mpiexec")))


class TrainingJob:
    """A job of two ranks in the background; leaving the context ends the rest of it."""

    def __init__(
        self, programs: Programs, run: Path, *, launcher="parcade", flags=HANGING, program=("-m", "parcade")
    ) -> None:
        self.run, self.launcher = run, launcher
        command = [programs.python, *program, *TRAIN, *ENDLESS, *flags, "--run-dir", str(run)]
        environment = dict(os.environ)
        if launcher == "parcade":
            command += ["--ranks", "2"] if "--ranks" not in flags else []
        else:
            command = [programs.mpiexec, "-n", "2", *command]
            environment = mpi.rank_environment(1)
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=ROOT,
            env={**environment, "PARCADE_PLAIN": "1"},
        )

    def __enter__(self) -> TrainingJob:
        return self

    def __exit__(self, *exception) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        kill_processes_here(self.records())
        self.process.communicate(timeout=HARD_LIMIT_SECONDS)

    def records(self):
        return read_records(self.run)

    def wait_for_checkpoint(self, beyond=0) -> None:
        """Wait until there is a checkpoint with more frames than ``beyond``."""
        deadline = time.monotonic() + HARD_LIMIT_SECONDS
        while newest_frames(self.run) <= beyond:
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, f"no checkpoint within {HARD_LIMIT_SECONDS} s"
            time.sleep(0.1)

    def finish(self) -> tuple[str, str]:
        """Wait for the end; return stdout and stderr."""
        try:
            out, err = self.process.communicate(timeout=HARD_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        sys.stderr.write(err[-3000:])
        return out, err


def newest_frames(run: Path) -> int:
    """Frames of the newest complete checkpoint, 0 without one."""
    return max((int(p.name) for p in complete_checkpoints(run)), default=0)


def resume(programs: Programs, run: Path, *flags: str) -> dict:
    """Resume a run to its end; return its result."""
    command = [programs.python, "-m", "parcade", "train", "--resume", str(run), *flags]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PARCADE_PLAIN": "1"},
        capture_output=True,
        text=True,
        timeout=HARD_LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert "resumed" in done.stdout
    return json.loads((run / "result.json").read_text())
