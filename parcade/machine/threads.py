"""Number of threads per process.

By default, BLAS and OpenMP start one thread per core in every process. With one process per core, that is
cores squared threads, which compete for the cores. A run therefore sizes its thread pools itself, unless
``threads_per_rank`` is ``UNMANAGED``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from parcade.errors import UsageError
from parcade.machine.facts import available_cores, within_quota

MOST_THREADS_A_CORE = 16
"""More threads than this never help, and some libraries crash when set to tens of thousands."""

UNMANAGED = -1
"""Value of ``threads_per_rank`` that keeps every library's default."""


def check_threads(name: str, threads: int) -> None:
    """Reject more threads than ``MOST_THREADS_A_CORE`` per core. Errors: UsageError."""
    most = MOST_THREADS_A_CORE * available_cores()
    if threads > most:
        raise UsageError(
            f"{name}={threads:,} is more than {MOST_THREADS_A_CORE} threads for each of the "
            f"{available_cores()} core(s) here; use {most:,} or fewer"
        )


def rank_threads(threads_per_rank: int, local_size: int, local_cores: int = 0) -> int:
    """Return the threads per rank for ``local_size`` ranks on this machine.

    For 0, this is an even portion of ``local_cores``, the cores that these ranks may use together (0: the
    cores of this process), and no more than this process may use: a launcher may pin each rank to other
    cores, and a container may have a quota of CPU time.
    """
    own = available_cores()
    together = within_quota(local_cores or own)
    return threads_per_rank or max(1, min(own, together // local_size))


def threads_asked_for() -> int:
    """Return ``OMP_NUM_THREADS``, the setting of launchers and users of other programs; 0 if not set."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdecimal() else 0


def set_threads(
    threads_per_rank: int, local_size: int, local_cores: int = 0, *, serial: bool, overlap: bool
) -> int:
    """Size torch's thread pool in this process; return the number of threads, which emulation also uses.

    ``local_size`` and ``local_cores`` are those of ``rank_threads``.
    """
    import torch

    if threads_per_rank == UNMANAGED:
        return available_cores()
    threads = 1 if serial else rank_threads(threads_per_rank, local_size, local_cores)
    # With overlap the actor's thread and the learner's share the cores.
    threads = max(1, threads // 2) if overlap else threads
    torch.set_num_threads(threads)
    return threads


def learner_threads(threads_per_rank: int, reserved_cpus: float) -> int:
    """Return the threads of a learner on a cluster; for 0, the whole CPUs that it reserves, at least one."""
    return threads_per_rank or max(1, int(reserved_cpus))


def set_part_threads(threads: int) -> None:
    """Size torch's thread pool in the process of one part; ``UNMANAGED`` changes nothing."""
    import torch

    if threads != UNMANAGED:
        torch.set_num_threads(threads)


def one_thread(threads_per_rank: int) -> int:
    """Return the threads of a part that does not learn: one, unless threads are not managed."""
    return UNMANAGED if threads_per_rank == UNMANAGED else 1


@dataclass(frozen=True)
class Pool:
    """The thread pool of one library in one process."""

    library: str
    threads: int


def pools_here() -> tuple[Pool, ...]:
    """Return this process's pools: OpenMP and BLAS from threadpoolctl, and torch's, which it does not see."""
    import torch
    from threadpoolctl import threadpool_info

    pools = [
        Pool(f"{row['internal_api']} ({Path(row['filepath']).name})", row["num_threads"])
        for row in threadpool_info()
    ]
    return (*pools, Pool("torch", torch.get_num_threads()))
