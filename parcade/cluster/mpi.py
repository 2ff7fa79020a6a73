"""MPI as a launcher: finding ``mpiexec``, setting up its ranks' environment, and detecting an MPI launch.

By default, Open MPI refuses to run as root, refuses more ranks than cores, pins each rank to one core if they
fit, and busy-waits. These defaults suit a cluster, but not a laptop or a container; ``rank_environment``
overrides them. MPICH ignores these settings and does not need them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from parcade.cluster.heartbeat import LAUNCHER_GRACE_SECONDS, Activity, Heartbeat
from parcade.cluster.torchrun import launched_by_torchrun
from parcade.cluster.watchdog import START_SECONDS, Watch, beat_seconds
from parcade.errors import UsageError, missing_extra
from parcade.machine.facts import available_memory_bytes, program_path

# Set by Open MPI, PMI (MPICH's hydra, srun --mpi=pmi2) and PMIx launchers (srun --mpi=pmix, prterun).
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# Ranks that fail within this time of each other are assumed to fail for the same reason.
AGREE_SECONDS = 5.0
# Least memory that a rank has for itself: of Python with NumPy and MPI, and of a training, with torch.
BARE_RANK_BYTES, TRAINING_RANK_BYTES = 16 << 20, 100 << 20
# MPI tag of the messages that tell other ranks of a failure.
FAILING_TAG = 4242
# A launcher drops output that it has not yet read when a rank aborts.
FORWARD_SECONDS = 0.3


def launched_by_mpi() -> bool:
    """Return whether an MPI launcher started this process as a rank; torchrun under srun does not count."""
    return not launched_by_torchrun() and bool(rank_variables())


def world_size_told() -> int:
    """Return the number of ranks without initialising MPI, from the launcher's environment; 1 by default."""
    told = [os.environ[name] for name in _SIZE_VARIABLES if os.environ.get(name, "").isdecimal()]
    if not told and os.environ.get("PMIX_NAMESPACE", "").startswith("slurm."):
        told = [os.environ.get("SLURM_STEP_NUM_TASKS", "1")]  # PMIx has no variable for the size
    return max(map(int, told), default=1)


def find_mpiexec() -> str:
    """Return the mpiexec next to this Python, or the first on PATH. Errors: UsageError naming the extra."""
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        raise missing_extra("mpi4py", "mpi", "--engine mpi") from None
    found = program_path("mpiexec")
    if found is None:
        raise missing_extra("an MPI with mpiexec", "mpi", "--engine mpi")
    return found


def implementation(mpiexec: str) -> str:
    """Return ``openmpi`` or ``mpich``: their launchers' flags differ. Errors: UsageError for any other."""
    try:
        done = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{mpiexec} --version does not answer ({error}); reinstall it") from None
    said = done.stdout
    if done.returncode:  # Open MPI needs a HOME, for one
        reason = next(iter(f"{done.stderr}{said}".splitlines()), f"code {done.returncode}")
        raise UsageError(f"{mpiexec} --version fails ({reason[:200]}); repair what it names, or reinstall it")
    if "Open MPI" in said or "OpenRTE" in said:
        return "openmpi"
    if "HYDRA" in said:
        return "mpich"
    raise UsageError(
        f"{mpiexec} belongs to neither Open MPI nor MPICH; start the ranks with your own launcher instead"
    )


def may_have_other_hosts() -> bool:
    """Return whether a batch system may have given this job several hosts, which mpiexec learns from it."""
    given = ("PBS_NODEFILE", "LSB_HOSTS", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE")
    return int(os.environ.get("SLURM_JOB_NUM_NODES") or 1) > 1 or any(os.environ.get(name) for name in given)


def check_ranks_fit(name: str, ranks: int, bytes_each: int) -> None:
    """Reject more ranks than the free memory of this host holds: starting them makes it unusable.

    ``bytes_each`` is a lower bound, so that no job that might fit is rejected. Errors: UsageError.
    """
    free_bytes = available_memory_bytes()
    if ranks * bytes_each > free_bytes:
        raise UsageError(
            f"{name}={ranks:,}: that many ranks need {ranks * bytes_each / 2**30:,.1f} GiB or more, but only "
            f"{free_bytes / 2**30:.1f} GiB of memory are free here; use {max(1, free_bytes // bytes_each):,} "
            "or fewer"
        )


def rank_environment(threads_per_rank: int) -> dict[str, str]:
    """Return the environment of the ranks: thread pool sizes, and MPI settings for a shared machine.

    Args:
        threads_per_rank: size of each thread pool; below 1, the libraries keep their defaults.
    """
    threads = str(threads_per_rank)
    pools = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        # Without this, a waiting rank busy-waits on a core that another rank needs.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        **(pools if threads_per_rank > 0 else {}),
        # Launchers may give ranks a terminal even if the job's output goes to a file.
        "PARCADE_PLAIN": "" if sys.stdout.isatty() else "1",
    }


def end_process_group(process: subprocess.Popen, *, seconds: float = 5.0) -> None:
    """End a launcher's process group with SIGTERM; after ``seconds`` or an interrupted wait, with SIGKILL."""
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
    """Gather every rank's ``own`` ``[n]`` uint8 into ``[ranks, n]``. Collective."""
    from mpi4py import MPI

    rows = np.empty((MPI.COMM_WORLD.Get_size(), len(own)), np.uint8)
    MPI.COMM_WORLD.Allgather(own, rows)
    return rows


def rank_variables() -> list[str]:
    """Return the names of the environment variables by which an MPI launcher tells this process its rank."""
    return [name for name in _RANK_VARIABLES if os.environ.get(name, "").isdecimal()]


def registered(
    run: Path,
    hang_seconds: float,
    activity: Callable[[], Activity],
    *,
    by_mpi: bool,
    rank: int = 0,
    advice: str = "",
) -> Heartbeat:
    """Return the heartbeat of this process, to be used as a context manager.

    Ranks that parcade launched give their parent time to collect stacks before they end a hung job
    themselves. A process that is no rank of MPI is never ended: no other rank waits for it, it may be in a
    debugger, or it has its own timeouts (gloo).

    Args:
        by_mpi: whether this process is a rank of MPI.
        rank: this process's rank, used if it is no rank of MPI.
        advice: how to continue the job; by default, how to resume a training run.
    """
    interval = beat_seconds(hang_seconds)
    if not by_mpi:
        return Heartbeat(run, "rank", rank, activity, interval_seconds=interval)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    watch = Watch(run, world.Get_size(), hang_seconds)
    grace = LAUNCHER_GRACE_SECONDS if "PARCADE_RUN_DIR" in os.environ else 0.0
    beats = Heartbeat(
        run, "rank", world.Get_rank(), activity, interval_seconds=interval, watch=watch, grace_seconds=grace
    )
    beats.advice = advice or beats.advice
    return beats


def _world() -> Any:
    """Return ``COMM_WORLD``.

    The first call initialises MPI, and ends the process if that takes longer than ``START_SECONDS``.
    """
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)
    from mpi4py import MPI

    faulthandler.cancel_dump_traceback_later()
    return MPI.COMM_WORLD


def mpi_rank() -> int:
    """Return this process's rank. The first call initialises MPI."""
    return _world().Get_rank()


def mpi_size() -> int:
    """Return the number of ranks. The first call initialises MPI."""
    return _world().Get_size()


def all_fail_alike() -> bool:
    """Return whether all ranks call this within ``AGREE_SECONDS``. If so, rank 0 alone reports the error.

    It uses point-to-point messages, so that a rank that fails alone does not disturb collective calls of the
    others.
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


def abort_on_exceptions() -> None:
    """From now on, end all ranks when an exception ends the program of this one."""
    show = sys.excepthook

    def show_and_abort(kind, error, trace) -> None:
        show(kind, error, trace)
        abort(1)

    sys.excepthook = show_and_abort


def others_may_wait() -> bool:
    """Return whether other ranks may wait for this one in a collective call."""
    return launched_by_mpi() and "mpi4py.MPI" in sys.modules


@contextlib.contextmanager
def aborting_on_exit() -> Iterator[None]:
    """End all ranks when this one leaves by ``sys.exit`` or Ctrl-C, which no ``excepthook`` sees."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        if not others_may_wait():
            raise
        code = error.code if isinstance(error, SystemExit) else 130
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
        print(f"parcade: rank {mpi_rank()} exits within a fit; terminating all ranks", file=sys.stderr)
        abort(code if isinstance(code, int) and code else 1)


def abort(code: int) -> None:
    """End all ranks at once. Otherwise the others would wait forever for a failed rank in an Allreduce."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(FORWARD_SECONDS)
    MPI.COMM_WORLD.Abort(code)
