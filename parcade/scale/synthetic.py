"""Synthetic sizes beyond this machine's cores: ranks sleep instead of working, and the Allreduce is real.

A sleeping rank needs no core, so 16 of them run on two cores. This measures how communication, and waiting
for the last rank, grow with the number of ranks. The report labels these points as synthetic.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from parcade.cluster import mpi
from parcade.scale.rank_work import RankWork

SLEEP_OVERSHOOT_SECONDS = 6e-5
"""Time that Linux adds to a sleep: 50 us of timer slack, and the wake-up."""


def run_synthetic(
    parts: RankWork, ranks: int, envs_per_rank: float, seconds: float, seed: int
) -> dict[str, float]:
    """Return steps per second and the share of communication for ranks that sleep instead of computing.

    Errors: RuntimeError if the job fails.
    """
    firsts, others = (parts.segments(envs_per_rank, first=first) for first in (True, False))
    iteration = float(firsts.sum(1).mean())
    job = {
        "firsts": firsts.tolist(),
        "others": others.tolist(),
        "bytes": parts.call_bytes.tolist(),
        "iterations": max(3, round(seconds / iteration)),
        "seed": seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "job.json", Path(folder) / "result.json"
        given.write_text(json.dumps(job))
        command = [
            mpi.find_mpiexec(),
            "-n",
            str(ranks),
            sys.executable,
            "-m",
            "parcade.scale.synthetic",
            str(given),
            str(result),
        ]
        _run(command, 60 + 20 * seconds)
        measured = json.loads(result.read_text())
    rate = parts.steps_per_env * envs_per_rank * ranks / measured["iteration_seconds"]
    return {"steps_per_second": rate, "communicate_share": measured["communicate_share"]}


def _run(command: list[str], limit_seconds: float) -> None:
    process = subprocess.Popen(
        command,
        env=mpi.rank_environment(1),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(command[:3])} did not end within {limit_seconds:.0f} s") from None
    finally:
        mpi.end_process_group(process)
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(command[:3])} exited with code {process.returncode}: {output.strip()[-400:]}"
        )


def _rank(job: dict, result: Path) -> None:
    """Run one rank of the job."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    segments = np.array(job["others" if comm.Get_rank() else "firsts"])
    buffers = [np.zeros(max(1, int(size) // 4), np.float32) for size in job["bytes"]]
    generator = np.random.default_rng([job["seed"], comm.Get_rank()])
    communicating = 0.0
    for iteration in range(job["iterations"] + 1):
        if iteration == 1:  # iteration 0 is a warm-up
            comm.Barrier()
            communicating, started = 0.0, time.perf_counter()
        row = segments[generator.integers(len(segments))]
        for seconds, buffer in zip(row, buffers, strict=False):
            time.sleep(max(0.0, seconds - SLEEP_OVERSHOOT_SECONDS))
            before = time.perf_counter()
            comm.Allreduce(MPI.IN_PLACE, buffer)
            communicating += time.perf_counter() - before
        time.sleep(max(0.0, row[-1] - SLEEP_OVERSHOOT_SECONDS))
    comm.Barrier()
    elapsed = time.perf_counter() - started
    total = np.array([communicating])
    comm.Allreduce(MPI.IN_PLACE, total)
    if comm.Get_rank() == 0:
        share = total[0] / comm.Get_size() / elapsed
        result.write_text(
            json.dumps({"iteration_seconds": elapsed / job["iterations"], "communicate_share": share})
        )


if __name__ == "__main__":
    _rank(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
