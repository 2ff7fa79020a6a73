"""The facts about a machine that determine the speed of a run, without judgement.

Facts that cannot be read are None. ``quick_facts`` takes milliseconds and runs at the start of every
training; ``all_facts`` also starts a process to count its thread pools, and queries the launchers' versions.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from parcade.doctor.pools import PlannedRun, Processes, planned_processes
from parcade.machine.cgroup import cgroup_cores, cgroup_memory_bytes, read_fact
from parcade.machine.facts import cpu_model, program_path, usable_cores

# CPU features, by the kernel's names, that affect the speed of networks or the emulator.
SIMD_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")
SLURM_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_CPUS_PER_TASK",
    "SLURM_NTASKS",
    "SLURM_JOB_NUM_NODES",
    "SLURM_CPUS_ON_NODE",
)
ASK_SECONDS = 20
# The last file of a compilation; kernel_cache.py, which writes it, imports Numba, which takes a second.
KERNELS_STAMP = "kernels.sha256"


@dataclass(frozen=True)
class Facts:
    """Facts about a machine, in bytes and counts; None if unknown.

    ``usable_cores`` are those of the examined processes together.
    """

    cpu: str
    cores: int
    usable_cores: tuple[int, ...]
    cgroup_cores: float | None
    load: float | None
    numa_nodes: tuple[tuple[int, ...], ...]
    simd: tuple[str, ...] | None
    memory_bytes: int | None
    cgroup_memory_bytes: int | None
    shared_memory_bytes: int | None
    shared_memory_free_bytes: int | None
    processes: tuple[Processes, ...] = ()
    wait_policy: str = ""
    mpi_library: str | None = None
    mpi_launcher: str | None = None
    mpi_launcher_version: str | None = None
    ray: str | None = None
    slurm: str | None = None
    slurm_job: dict[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    gpu_driver: str | None = None
    torch_cuda: str | None = None
    torch_sees_gpu: bool = False
    games: int | None = None
    numba: str | None = None
    numba_cache: str | None = None
    numba_cache_writable: bool = False
    numba_kernels_cached: int = 0

    @property
    def widest_threads(self) -> int:
        """Threads of the largest pool of the planned processes."""
        return max((group.widest.threads for group in self.processes), default=1)

    @property
    def core_budget(self) -> float:
        """Cores that the processes may use: the minimum of CPU affinity and cgroup quota."""
        return min(len(self.usable_cores), self.cgroup_cores or float("inf"))


def quick_facts(processes: tuple[Processes, ...] = ()) -> Facts:
    """Collect the facts that can be read in milliseconds."""
    shared = _shared_memory()
    return Facts(
        cpu=cpu_model(),
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        cgroup_cores=cgroup_cores(),
        load=_load(),
        numa_nodes=numa_nodes(),
        simd=simd_flags(),
        memory_bytes=_memory_bytes(),
        cgroup_memory_bytes=cgroup_memory_bytes(),
        shared_memory_bytes=shared[0],
        shared_memory_free_bytes=shared[1],
        processes=processes,
        wait_policy=os.environ.get("OMP_WAIT_POLICY", ""),
        slurm_job={name: os.environ[name] for name in SLURM_VARIABLES if name in os.environ},
        **_numba_facts(),
    )


def all_facts(plan: PlannedRun) -> Facts:
    """Collect all facts. This takes seconds, mostly to start one process like the plan's."""
    facts = quick_facts(planned_processes(plan))
    return replace(facts, **_mpi_facts(), **_gpu_facts(), ray=_version("ray"), slurm=_slurm(), games=_games())


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parse the kernel's format, e.g. ``0-3,8`` to ``(0, 1, 2, 3, 8)``."""
    cores: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return tuple(cores)


def numa_nodes() -> tuple[tuple[int, ...], ...]:
    """Return the cores of each NUMA node."""
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    return tuple(parse_cpu_list(read_fact(node / "cpulist") or "") for node in nodes)


def simd_flags() -> tuple[str, ...] | None:
    """Return the SIMD_FLAGS that this CPU has; None where the kernel does not list its features."""
    for line in (read_fact("/proc/cpuinfo") or "").splitlines():
        if line.startswith(("flags", "Features")):
            flags = line.split(":", 1)[1].split()
            return tuple(flag for flag in SIMD_FLAGS if flag in flags)
    return None


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # not on this system, or without /proc
        return None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _shared_memory() -> tuple[int | None, int | None]:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None, None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _numba_facts() -> dict:
    """Return the facts about the cache of compiled kernels, without importing Numba, which takes a second."""
    name, cache = kernel_cache()
    # os.path and os.walk, because a Path raises below a directory of another user, e.g. that of $HOME.
    nearest = next(path for path in (cache, *cache.parents) if os.path.exists(path))
    files = [name for _, _, names in os.walk(cache) for name in names]
    # The stamp is written last. A cache that other projects share may have kernels of theirs without it.
    is_complete = KERNELS_STAMP in files
    return {
        "numba": _version("numba"),
        "numba_cache": name,
        "numba_cache_writable": os.access(nearest, os.W_OK),
        "numba_kernels_cached": sum(name.endswith(".nbc") for name in files) if is_complete else 0,
    }


def kernel_cache() -> tuple[str, Path]:
    """Return the name and the directory of the cache of compiled kernels, in the order of Numba's choice."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return "NUMBA_CACHE_DIR", Path(given)
    package = Path(__file__).resolve().parents[1] / "atari"
    if os.access(package, os.W_OK):
        return "in the package directory", package
    home = os.path.expanduser("~")  # Path.home raises where a user has none
    caches = os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    if sys.platform == "darwin":
        caches = f"{home}/Library/Caches"
    return "in the user's cache directory", Path(caches) / "numba"


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def ask(*command: str) -> str | None:
    """Return the output of a command; None if it does not exist, fails or times out."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _first_line(text: str | None) -> str | None:
    return text.splitlines()[0].strip() if text else None


def _mpi_facts() -> dict[str, str | None]:
    """Return the MPI that mpi4py loads and the launcher that parcade calls."""
    library = None
    if importlib.util.find_spec("mpi4py") is not None:
        # Use a separate process: the import of mpi4py.MPI loads MPI.
        load = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        library = ask(sys.executable, "-c", load + "print(MPI.Get_library_version())")
    launcher = program_path("mpiexec")
    return {
        "mpi_library": _first_line(library.replace("\0", "").split(",")[0]) if library else None,
        "mpi_launcher": launcher,
        "mpi_launcher_version": _first_line(ask(launcher, "--version")) if launcher else None,
    }


def _gpu_facts() -> dict:
    import torch

    query = ask("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    lines = [line for line in (query or "").splitlines() if line.count(",") == 2]
    rows = [[word.strip() for word in line.split(",")] for line in lines]
    return {
        "gpus": tuple(f"{name} ({memory})" for name, memory, _ in rows),
        "gpu_driver": rows[0][2] if rows else None,
        "torch_cuda": torch.version.cuda,
        "torch_sees_gpu": torch.cuda.is_available(),
    }


def _slurm() -> str | None:
    """Return Slurm's version, or that it does not answer, as without a configuration; None without Slurm."""
    if shutil.which("sinfo") is None:
        return None
    return _first_line(ask("sinfo", "--version")) or "installed, but sinfo --version fails"


def _games() -> int | None:
    try:
        from parcade.envs.games import game_names

        return len(game_names())
    except Exception:  # ale-py is missing or broken in some way; the rule ``roms`` reports it
        return None
