"""Run a module of this package on MPI ranks of this host, and read the JSON that its first rank writes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from parcade.cluster import mpi
from parcade.cluster.signals import StopRequest

POLL_SECONDS = 0.2


def run_on_ranks(module: str, ranks: int, job: Any, limit_seconds: float) -> Any:
    """Run ``python -m MODULE JOB RESULT`` on every rank; ``JOB`` and ``RESULT`` are JSON files.

    Errors: RuntimeError if a rank fails or the limit is exceeded.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "job.json", Path(folder) / "result.json"
        given.write_text(json.dumps(job))
        program = [sys.executable, "-m", module, str(given), str(result)]
        _run([mpi.find_mpiexec(), "-n", str(ranks), *program], limit_seconds)
        return json.loads(result.read_text())


def _run(command: list[str], limit_seconds: float) -> None:
    shown = " ".join(command[:3])
    # A signal that raised inside a wait of Popen could leave its lock held: then no later wait would end.
    with (
        StopRequest(None) as stop,
        subprocess.Popen(
            command,
            env=mpi.rank_environment(1),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            output = _output(process, limit_seconds, stop)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{shown} did not end within {limit_seconds:.0f} s") from None
        finally:
            mpi.end_process_group(process)
    if stop.requested():
        raise KeyboardInterrupt
    if process.returncode:
        raise RuntimeError(f"{shown} exited with code {process.returncode}: {output.strip()[-400:]}")


def _output(process: subprocess.Popen, limit_seconds: float, stop: StopRequest) -> str:
    """Return a process's output at its end, and nothing at a stop. Errors: TimeoutExpired."""
    deadline = time.monotonic() + limit_seconds
    while not stop.requested():
        try:
            return process.communicate(timeout=POLL_SECONDS)[0]
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise
    return ""
