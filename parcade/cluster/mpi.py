"""MPI as a launcher: finding ``mpiexec``, the environment of its ranks, and knowing when it has started us.

Open MPI refuses root, refuses more ranks than cores, pins each rank to one core when they fit and spins while it waits;
every one of these is right on a cluster and wrong on a laptop or in a container. The environment below says so once.
MPICH needs none of it and ignores it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from parcade.cluster.torchrun import launched_by_torchrun
from parcade.cluster.watchdog import (
    LAUNCHER_GRACE_SECONDS,
    START_SECONDS,
    Heartbeat,
    Signs,
    Watch,
    beat_seconds,
)
from parcade.errors import UsageError, missing_extra

# Set by Open MPI, by PMI launchers (MPICH's hydra, srun --mpi=pmi2) and by PMIx launchers (srun --mpi=pmix, prterun).
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# How long after one rank's error the others' may come for it to be the same, and what tells of it.
AGREE_SECONDS = 5.0
FAILING_TAG = 4242


def launched_by_mpi() -> bool:
    """Whether this process is a rank that an MPI launcher started; a torchrun that srun started is not one."""
    return not launched_by_torchrun() and any(name in os.environ for name in _RANK_VARIABLES)


def world_size_told() -> int:
    """How many ranks the launcher says there are, without bringing MPI up; 1 where nobody says."""
    return max(int(os.environ.get(name, "1")) for name in _SIZE_VARIABLES)


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


def implementation(mpiexec: str) -> str:
    """``openmpi`` or ``mpich``: their launchers share a name and hardly a flag. Errors: UsageError for any other."""
    try:
        said = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{mpiexec} --version does not answer ({error}); reinstall it") from None
    if "Open MPI" in said or "OpenRTE" in said:
        return "openmpi"
    if "HYDRA" in said:
        return "mpich"
    raise UsageError(
        f"{mpiexec} is neither Open MPI's nor MPICH's; start the ranks with your own launcher instead"
    )


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


def end_process_group(process: subprocess.Popen, *, seconds: float = 5.0) -> None:
    """End a launcher and all it started: ask, wait so many seconds, then insist, even where the waiting is interrupted."""
    try:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=seconds)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel
                process.wait(timeout=5)


def gather_bytes(own: np.ndarray) -> np.ndarray:
    """The rows ``[ranks, n]`` of all ranks' ``own`` ``[n]`` uint8. Collective."""
    from mpi4py import MPI

    rows = np.empty((MPI.COMM_WORLD.Get_size(), len(own)), np.uint8)
    MPI.COMM_WORLD.Allgather(own, rows)
    return rows


def registered(
    run: Path, hang_seconds: float, signs: Callable[[], Signs], *, rank: int = 0, advice: str = ""
) -> Heartbeat:
    """The heartbeat of this process, one rank of many or the only one of its run; enter it.

    Ranks that parcade launched leave the ending of a hung job to their parent at first: it collects stacks. A process
    that MPI has not started is never ended: nobody waits for it, it may be in a debugger, or has timeouts of its own (gloo).

    Args:
        rank: this process's, where MPI cannot tell.
        advice: how the job can be taken up again; by default, as a training run.
    """
    interval = beat_seconds(hang_seconds)
    if not launched_by_mpi():
        return Heartbeat(run, "rank", rank, signs, interval_seconds=interval)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    watch = Watch(run, world.Get_size(), hang_seconds)
    grace = LAUNCHER_GRACE_SECONDS if "PARCADE_RUN_DIR" in os.environ else 0.0
    beats = Heartbeat(
        run, "rank", world.Get_rank(), signs, interval_seconds=interval, watch=watch, grace_seconds=grace
    )
    beats.advice = advice or beats.advice
    return beats


def mpi_rank() -> int:
    """This process's rank in MPI's world. Its first call brings MPI up and ends the process if that takes for ever."""
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)
    from mpi4py import MPI

    faulthandler.cancel_dump_traceback_later()
    return MPI.COMM_WORLD.Get_rank()


def all_fail_alike() -> bool:
    """Whether every rank calls this within ``AGREE_SECONDS``: an error that all come to can be left to rank 0 to say.

    Point to point, so that a rank that fails alone disturbs no collective call the others are in.
    """
    from mpi4py import MPI

    world, deadline = MPI.COMM_WORLD, time.monotonic() + AGREE_SECONDS
    mark, others = np.zeros(1, np.uint8), range(1, world.Get_size())
    if world.Get_rank() == 0:
        waiting = [world.Irecv(np.zeros(1, np.uint8), source=other, tag=FAILING_TAG) for other in others]
    else:
        world.Isend(mark, dest=0, tag=FAILING_TAG)
        waiting = [world.Irecv(mark, source=0, tag=FAILING_TAG)]
    while not all(request.Test() for request in waiting):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    if world.Get_rank() == 0:
        MPI.Request.Waitall([world.Isend(mark, dest=other, tag=FAILING_TAG) for other in others])
    return True


def abort(code: int) -> None:
    """End every rank at once: one that has failed would leave the others waiting in their next Allreduce for ever."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(code)
