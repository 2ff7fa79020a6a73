"""The thread pools of the processes that a run would start.

Libraries size their pools when they are loaded, from the environment and the usable cores. The sizes are
therefore read in a process that is started like a run's, after a matrix product has started the pools.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from parcade.machine.threads import Pool, pools_here

PROBE_SECONDS = 60


@dataclass(frozen=True)
class PlannedRun:
    """The run to examine: its number and kind of processes on this machine.

    ``parts`` are those of a run on Ray: for each kind its name, its number and the threads of one.
    ``possible_ranks`` are the numbers of ranks, up to ``ranks``, that divide the run's work evenly; empty if
    that is not known.
    """

    engine: str = "local"
    ranks: int = 1
    threads_per_rank: int = 0
    backend: str = "native"
    device: str = "cpu"
    precision: str = "float32"
    parts: tuple[tuple[str, int, int], ...] = ()
    possible_ranks: tuple[int, ...] = ()

    @property
    def num_processes(self) -> int:
        """Number of processes that compute."""
        return sum(count for _, count, _ in self.parts) or self.ranks


@dataclass(frozen=True)
class Processes:
    """``count`` processes of one kind on this machine with equal thread pools."""

    what: str
    count: int
    pools: tuple[Pool, ...]

    @property
    def widest(self) -> Pool:
        """The pool with the most threads: a process uses one pool at a time, so it bounds running threads."""
        return max(self.pools, key=lambda pool: pool.threads, default=Pool("none", 1))


def planned_processes(plan: PlannedRun) -> tuple[Processes, ...]:
    """Return the processes that the plan would start here. Errors: RuntimeError if the probe fails."""
    from parcade.cluster.mpi import rank_environment
    from parcade.machine.threads import rank_threads

    if plan.parts:
        pools = {
            threads: _pools_of_process(threads, 1, plan.engine, rank_environment(max(1, threads)))
            for _, _, threads in plan.parts
        }
        return tuple(
            Processes(f"{kind} on Ray", count, pools[threads]) for kind, count, threads in plan.parts
        )
    count, environment = 1, None
    if plan.engine == "mpi":
        count, environment = plan.ranks, rank_environment(rank_threads(plan.threads_per_rank, plan.ranks))
    found = _pools_of_process(plan.threads_per_rank, count, plan.engine, environment)
    return (Processes(f"rank of --engine {plan.engine}", count, found),)


def _pools_of_process(
    threads: int, local_size: int, engine: str, environment: dict[str, str] | None
) -> tuple[Pool, ...]:
    """Return the pools of a process that is started like one of a run. Errors: RuntimeError."""
    command = [sys.executable, "-m", "parcade.doctor.pools", str(threads), str(local_size), engine]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"the process that counts thread pools did not finish within {PROBE_SECONDS} s: "
            "the machine is busy or low on memory; end other programs, or try again later"
        ) from None
    if done.returncode:
        said = (done.stderr.strip() or "no message").splitlines()[-1]
        raise RuntimeError(f"the process that counts thread pools failed: {said}")
    return tuple(Pool(**row) for row in json.loads(done.stdout.splitlines()[-1]))


def _probe(threads_per_rank: int, local_size: int, engine: str) -> None:
    """Load the libraries and size the pools as training does, and print the pools."""
    import numpy as np
    import torch

    from parcade.machine.threads import set_part_threads, set_threads

    if engine == "ray":
        set_part_threads(threads_per_rank)
    else:
        set_threads(threads_per_rank, local_size, serial=engine == "serial", overlap=False)
    np.ones((64, 64)) @ np.ones((64, 64))
    torch.ones(64, 64) @ torch.ones(64, 64)
    print(json.dumps([vars(pool) for pool in pools_here()]))


if __name__ == "__main__":
    _probe(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
