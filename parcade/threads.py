"""How many threads a process may use.

BLAS and OpenMP start a thread a core in every process; with a process a core that is cores squared, and all of them
wait for one another. So a run sizes its pools itself unless told not to.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from parcade.errors import UsageError
from parcade.machine import available_cores

MOST_THREADS_A_CORE = 16
"""More than this helps nobody, and libraries that are told tens of thousands end the process."""

UNMANAGED = -1
"""``threads_per_rank`` that leaves every library its own default."""


def check_threads(name: str, threads: int) -> None:
    """Refuse more threads than this machine's cores have any use for. Errors: UsageError."""
    most = MOST_THREADS_A_CORE * available_cores()
    if threads > most:
        raise UsageError(
            f"{name}={threads:,} is more than {MOST_THREADS_A_CORE} threads for each of the {available_cores()} core(s) here; "
            f"use {most:,} or fewer"
        )


def rank_threads(threads_per_rank: int, local_size: int) -> int:
    """Threads of each of ``local_size`` ranks that share this machine: an even share of its cores unless one is
    given."""
    return threads_per_rank or max(1, available_cores() // local_size)


def threads_asked_for() -> int:
    """What ``OMP_NUM_THREADS`` says, 0 where it says nothing: launchers and users of a program have no other flag."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdigit() else 0


def set_threads(threads_per_rank: int, local_size: int, *, serial: bool, overlap: bool) -> int:
    """Size torch's pool in this process; returns the threads that emulation may use too."""
    if threads_per_rank == UNMANAGED:
        return available_cores()
    threads = 1 if serial else rank_threads(threads_per_rank, local_size)
    # With overlap the actor's thread and the learner's share the cores.
    threads = max(1, threads // 2) if overlap else threads
    torch.set_num_threads(threads)
    return threads


def set_part_threads(threads_per_rank: int, *, learns: bool) -> None:
    """Size torch's pool in a part of a system of actors and learners: one thread, and more for one that learns if they
    are asked for. ``UNMANAGED`` leaves the pool as it is."""
    if threads_per_rank != UNMANAGED:
        torch.set_num_threads((threads_per_rank or 1) if learns else 1)


@dataclass(frozen=True)
class Pool:
    """One library's threads in one process."""

    library: str
    threads: int


def pools_here() -> tuple[Pool, ...]:
    """The pools of this process: OpenMP and BLAS as threadpoolctl finds them, and torch's own, which it cannot see."""
    from threadpoolctl import threadpool_info

    pools = [
        Pool(f"{row['internal_api']} ({Path(row['filepath']).name})", row["num_threads"])
        for row in threadpool_info()
    ]
    return (*pools, Pool("torch", torch.get_num_threads()))
