"""Synthetic sizes beyond this machine's cores: ranks sleep instead of working, and the Allreduce is real.

A sleeping rank needs no core, so 16 of them run on two cores. This measures how communication, and waiting
for the last rank, grow with the number of ranks. The report labels these points as synthetic.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from parcade.scale.on_ranks import run_on_ranks
from parcade.scale.rank_work import RankWork

SLEEP_OVERSHOOT_SECONDS = 6e-5
"""Time that Linux adds to a sleep: 50 us of timer slack, and the wake-up."""


def run_synthetic(
    work: RankWork, ranks: int, envs_per_rank: float, seconds: float, seed: int
) -> tuple[float, float]:
    """Return steps per second and the share of communication for ranks that sleep instead of computing.

    Errors: RuntimeError if the job fails.
    """
    firsts, others = (work.segments(envs_per_rank, first=first) for first in (True, False))
    job = {
        "firsts": firsts.tolist(),
        "others": others.tolist(),
        "bytes": work.call_bytes.tolist(),
        "iterations": max(3, round(seconds / float(firsts.sum(1).mean()))),
        "seed": seed,
    }
    measured = run_on_ranks("parcade.scale.synthetic", ranks, job, 60 + 20 * seconds)
    rate = work.steps_per_env * envs_per_rank * ranks / measured["iteration_seconds"]
    return rate, measured["communicate_share"]


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
        measured = {"iteration_seconds": elapsed / job["iterations"], "communicate_share": share}
        result.write_text(json.dumps(measured))


if __name__ == "__main__":
    _rank(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
