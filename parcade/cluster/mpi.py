"""Starting ranks with ``mpiexec``, and knowing when somebody else has started us.

Open MPI refuses root, refuses more ranks than cores, pins each rank to one core when they fit and spins while it waits;
every one of these is right on a cluster and wrong on a laptop or in a container. The environment below says so once.
MPICH needs none of it and ignores it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from parcade.cluster.signals import STOP_FILE
from parcade.errors import UsageError, missing_extra

# Set by Open MPI, by PMI launchers (MPICH's hydra, srun --mpi=pmi2) and by PMIx launchers (srun --mpi=pmix, prterun).
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")

# How long ranks get to finish their iteration and write a checkpoint once a stop was asked for.
STOP_GRACE_SECONDS = 60
# How far past its own time limit a job may run before it is ended from outside.
LIMIT_GRACE_SECONDS = 120


def launched_by_mpi() -> bool:
    """Whether this process is a rank that a launcher started."""
    return any(name in os.environ for name in _RANK_VARIABLES)


def find_mpiexec() -> str:
    """The mpiexec that belongs to this Python, or the first on the PATH. Errors: UsageError naming the extra."""
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        raise missing_extra("mpi4py", "mpi", "--engine mpi") from None
    beside_python = Path(sys.executable).parent / "mpiexec"
    found = str(beside_python) if beside_python.exists() else shutil.which("mpiexec")
    if found is None:
        raise missing_extra("an MPI with mpiexec", "mpi", "--engine mpi")
    return found


def rank_environment(threads_per_rank: int) -> dict[str, str]:
    """The environment of every rank: one pool of threads a rank, and an MPI that shares the machine.

    Below 1, the pools of threads are left to the libraries.
    """
    threads = str(threads_per_rank)
    pools = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        # Without this a rank that waits burns the core that the rank it waits for would need.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        **(pools if threads_per_rank > 0 else {}),
        # Launchers give ranks a terminal of their own even where the job's output goes to a file.
        "PARCADE_PLAIN": "" if sys.stdout.isatty() else "1",
    }


def run_ranks(
    arguments: list[str], ranks: int, run: Path, *, threads_per_rank: int, time_limit_seconds: float | None
) -> int:
    """Run ``python -m parcade ARGUMENTS`` on so many ranks of this host; returns the launcher's exit code.

    Ctrl-C and SIGTERM ask the ranks, through the stop file, to finish their iteration and save; what has not ended
    after a grace time, or overruns its time limit by far, is ended.
    """
    command = [find_mpiexec(), "-n", str(ranks), sys.executable, "-m", "parcade", *arguments]
    # A session of its own: Ctrl-C must not kill ranks that could still save.
    process = subprocess.Popen(command, env=rank_environment(threads_per_rank), start_new_session=True)
    asked: list[int] = []

    def ask_to_stop(number: int, frame: object) -> None:
        asked.append(number)
        (run / STOP_FILE).touch()

    previous = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    started, stop_by = time.monotonic(), None
    try:
        while True:
            try:
                return process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                pass
            now = time.monotonic()
            if asked and stop_by is None:
                stop_by = now + STOP_GRACE_SECONDS
            overrun = time_limit_seconds is not None and now - started > time_limit_seconds + LIMIT_GRACE_SECONDS
            if overrun or len(asked) > 1 or (stop_by is not None and now > stop_by):
                reason = "overran its time limit" if overrun else "did not stop"
                print(f"parcade: the job {reason} and is ended; go on with: parcade train --resume {run}", file=sys.stderr)
                return 1
    finally:
        end_process_group(process)
        for number, handler in previous.items():
            signal.signal(number, handler)
        (run / STOP_FILE).unlink(missing_ok=True)


def end_process_group(process: subprocess.Popen) -> None:
    """End a launcher and all it started: ask first, then insist."""
    for number, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            continue


def share_run_directory(run: Path | None) -> Path:
    """Tell every rank the run directory that rank 0 made; rank 0 passes None when it could not make one.

    Errors: UsageError on every rank but the first when there is none (rank 0 raises its own).
    """
    import numpy as np
    from mpi4py import MPI

    text = np.zeros(4096, np.uint8)
    if MPI.COMM_WORLD.Get_rank() == 0 and run is not None:
        raw = str(run.resolve()).encode()
        text[: len(raw)] = np.frombuffer(raw, np.uint8)
    MPI.COMM_WORLD.Bcast(text, root=0)
    path = bytes(text).rstrip(b"\0").decode()
    if not path:
        raise UsageError("rank 0 could not make the run directory")
    return Path(path)


def mpi_rank() -> int:
    """This process's rank in MPI's world."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.Get_rank()


def abort(code: int) -> None:
    """End every rank at once: one that has failed would leave the others waiting in their next Allreduce for ever."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(code)
