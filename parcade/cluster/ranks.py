"""Ranks under any launcher: the rank of this process, and the checks that all ranks make before training."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from pathlib import Path

import numpy as np

from parcade.cluster import mpi, torchrun
from parcade.cluster.versions import compare, versions
from parcade.errors import UsageError

_TEXT_BYTES = 4096
# How long a new file may take to appear on another host.
SHARED_SECONDS = 10.0


def launched_as_rank() -> bool:
    """Return whether a launcher started this process as a rank."""
    return torchrun.launched_by_torchrun() or mpi.launched_by_mpi()


def is_rank_of(engine: str) -> bool:
    """Return whether this process is a rank of a run of this engine: all others train in one process.

    A step of a Slurm job may have a rank although its program does not use MPI.
    """
    return engine == "mpi" and launched_as_rank()


def rank() -> int:
    """Return this process's rank. Under MPI, the first call initialises MPI."""
    return torchrun.rank() if torchrun.launched_by_torchrun() else mpi.mpi_rank()


def world_size() -> int:
    """Return the number of ranks. Under MPI, the first call initialises MPI."""
    return torchrun.world_size() if torchrun.launched_by_torchrun() else mpi.mpi_size()


def refuse_many(engine: str) -> None:
    """Errors: UsageError if a launcher started several processes of an engine that uses one process."""
    count = torchrun.world_size() if torchrun.launched_by_torchrun() else mpi.world_size_told()
    if count > 1:
        raise UsageError(
            f"{count} ranks were started, but engine {engine} is one process; use --engine mpi, or start one"
        )


def refuse_lone_tasks() -> None:
    """Errors: UsageError if srun started several tasks that MPI does not connect: each would train alone."""
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1)
    if tasks > 1:
        raise UsageError(
            f"srun started {tasks} tasks without MPI, so each would start a run of its own; add --mpi=pmix "
            "or --mpi=pmi2 (srun --mpi=list shows which there are), or start one task"
        )


def check_world_size(wanted: int) -> None:
    """Check that the launcher's ranks are one job, of ``wanted`` ranks unless that is 1, the default.

    Errors: UsageError.
    """
    by_torchrun, count = torchrun.launched_by_torchrun(), world_size()
    told = count if by_torchrun else mpi.world_size_told()
    if told > 1 and told != count:
        raise UsageError(
            f"the launcher started {told} ranks, but MPI connects {count}: they belong to different MPIs; "
            "use the mpiexec of the MPI that mpi4py loads, or let parcade start the ranks: --ranks"
        )
    if wanted > 1 and wanted != count:
        variables = ["TORCHELASTIC_RUN_ID"] if by_torchrun else mpi.rank_variables()
        raise UsageError(
            f"ranks={wanted}, but a launcher started {count} ({', '.join(variables)} is set); start {wanted} "
            "with it, or unset its variables to let parcade start the ranks"
        )


def gather_texts(own: str) -> list[str]:
    """Gather a text of up to 4,096 bytes from every rank, in rank order. Collective."""
    row = np.zeros(_TEXT_BYTES, np.uint8)
    raw = own.encode()
    row[: len(raw)] = np.frombuffer(raw, np.uint8)
    rows = torchrun.gather_bytes(row) if torchrun.launched_by_torchrun() else mpi.gather_bytes(row)
    return [bytes(row).rstrip(b"\0").decode() for row in rows]


def share_run_directory(run: Path | None) -> Path:
    """Return on every rank the run directory that rank 0 made. Collective.

    Rank 0 passes None if it could not make one. Errors: UsageError on all other ranks if there is none (rank
    0 raises its own error), and on every rank if some ranks do not see the directory, in which each rank
    writes its part of a checkpoint.
    """
    path = gather_texts(str(run.resolve()) if rank() == 0 and run is not None else "")[0]
    if not path:
        if rank() != 0:
            raise UsageError("rank 0 could not make the run directory")
        return Path(path)
    mark = Path(path) / f".seen-by-{gather_texts(uuid.uuid4().hex)[0]}"
    if rank() == 0:
        with contextlib.suppress(OSError):
            mark.touch()
    blind = [host for host in gather_texts("" if _appears(mark) else socket.gethostname()) if host]
    if rank() == 0:
        mark.unlink(missing_ok=True)
    if blind:
        raise UsageError(
            f"run directory {path} is not visible on host {', '.join(sorted(set(blind)))}; "
            "use a --run-dir that all hosts share"
        )
    return Path(path)


def _appears(path: Path) -> bool:
    """Return whether a file made by rank 0 appears here; network file systems show it with a delay."""
    deadline = time.monotonic() + SHARED_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # makes NFS refresh its cache
        time.sleep(0.05)
    return True


def check_versions() -> None:
    """Compare the versions of all ranks. Collective. Errors: UsageError on all ranks, naming a mismatch."""
    found = [json.loads(text) for text in gather_texts(json.dumps(versions()))]
    for number, theirs in enumerate(found):
        compare(theirs, f"rank {number}", found[0], "rank 0")
