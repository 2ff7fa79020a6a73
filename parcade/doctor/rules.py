"""What follows from the facts for a run: pure functions, one a rule, each giving findings with their evidence and a
fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from parcade.doctor.facts import Facts
from parcade.doctor.pools import Plan
from parcade.report.findings import Finding, by_gravity

Rule = Callable[[Facts, Plan], Iterator[Finding]]

BUSY_LOAD_SHARE = 0.5
"""A load average above this share of the cores makes wall clock unrepeatable."""
RANK_MEMORY_BYTES = 700 * 2**20
"""Resident memory of a rank with torch, ale-py and a few games: 500 to 700 MiB measured."""
RANK_SHARED_MEMORY_BYTES = 32 * 2**20
"""What Open MPI and MPICH map of /dev/shm for a rank, rounded up."""


def threads_against_cores(facts: Facts, plan: Plan) -> Iterator[Finding]:
    """More threads that compute at once than cores: what Karpathy's learner on many MPI ranks was held up by until one thread each was set."""
    cores = facts.core_budget
    threads = sum(group.count * group.widest.threads for group in facts.processes)
    if threads > max(cores, 1) and any(group.widest.threads > 1 for group in facts.processes):
        shown = ", ".join(
            f"{group.count} x {group.what} with {group.widest.threads} threads of {group.widest.library}"
            for group in facts.processes
        )
        best = max(1, int(cores // max(1, sum(group.count for group in facts.processes))))
        yield Finding(
            "threads-oversubscribed",
            "problem" if threads >= 2 * cores else "warning",
            f"{threads} threads would compute on {cores:g} core(s)",
            shown,
            f"use --threads-per-rank {best}; under your own launcher export OMP_NUM_THREADS={best} "
            f"OPENBLAS_NUM_THREADS={best}",
        )


def waiting_threads_spin(facts: Facts, plan: Plan) -> Iterator[Finding]:
    """OpenMP threads that burn a core while they wait."""
    several = any(group.widest.threads > 1 for group in facts.processes)
    if several and facts.wait_policy.upper() != "PASSIVE":
        yield Finding(
            "waiting-threads-spin",
            "warning",
            "OpenMP threads spin while they wait and take cores from emulation",
            f"OMP_WAIT_POLICY={facts.wait_policy or 'not set'}, pools of more than one thread",
            "export OMP_WAIT_POLICY=PASSIVE (parcade does unless it is set)",
        )


def ranks_against_cores(facts: Facts, plan: Plan) -> Iterator[Finding]:
    """More ranks than cores."""
    if plan.ranks > facts.core_budget:
        yield Finding(
            "more-ranks-than-cores",
            "warning",
            "ranks take turns on the cores; each Allreduce waits for the one that sleeps",
            f"{plan.ranks} ranks on {facts.core_budget:g} core(s)",
            f"use --ranks {max(1, int(facts.core_budget))} here, or more hosts",
        )


def affinity(facts: Facts, plan: Plan) -> Iterator[Finding]:
    """A launcher or a batch system that pinned us to fewer cores than the machine has."""
    if len(facts.usable_cores) < facts.cores:
        shown = ",".join(map(str, facts.usable_cores[:8])) + (",..." if len(facts.usable_cores) > 8 else "")
        yield Finding(
            "pinned-to-few-cores",
            "warning" if len(facts.usable_cores) < max(plan.ranks, 2) else "note",
            "this process and all it starts may use only some of the cores",
            f"cores {shown} of {facts.cores}",
            "start with mpiexec --bind-to none, srun --cpus-per-task, or taskset, if the others are yours too",
        )


def cgroup(facts: Facts, plan: Plan) -> Iterator[Finding]:
    """Limits of a container that libraries do not see when they size themselves."""
    if facts.cgroup_cores is not None and facts.cgroup_cores < len(facts.usable_cores):
        threads = max(1, int(facts.cgroup_cores / max(1, plan.ranks)))
        yield Finding(
            "cgroup-cpu-limit",
            "warning",
            "the container allows less CPU time than the cores it shows; threads are throttled in the middle of their "
            "work",
            f"{facts.cgroup_cores:g} cores' worth of CPU time, {len(facts.usable_cores)} cores visible",
            f"use --threads-per-rank {threads} or raise the limit (docker --cpus)",
        )
    limit = min((b for b in (facts.memory_bytes, facts.cgroup_memory_bytes) if b is not None), default=None)
    needed = plan.ranks * RANK_MEMORY_BYTES
    if limit is not None and needed > limit:
        yield Finding(
            "memory",
            "problem",
            "the ranks may not fit into memory",
            f"{plan.ranks} ranks of about {RANK_MEMORY_BYTES >> 20} MiB, {limit / 2**30:.1f} GiB allowed",
            f"use --ranks {max(1, limit // RANK_MEMORY_BYTES)} or raise the limit",
        )


def numa(facts: Facts, plan: Plan) -> Iterator[Finding]:
    """Memory that is near to some cores and far from others."""
    nodes = len([node for node in facts.numa_nodes if node])
    if nodes > 1 and plan.engine != "mpi":
        yield Finding(
            "numa",
            "note",
            "one process spreads its threads over memory nodes; half of its reads go to the far one",
            f"{nodes} memory nodes",
            f"use --engine mpi --ranks {nodes} (or a multiple), or numactl --cpunodebind=0 --membind=0",
        )


def simd(facts: Facts, plan: Plan) -> Iterator[Finding]:
    """Number formats the CPU computes in natively."""
    native_bfloat16 = {"avx512_bf16", "amx_bf16", "bf16"} & set(facts.simd)
    if plan.precision == "bfloat16" and plan.device == "cpu" and not native_bfloat16:
        yield Finding(
            "bfloat16-is-slow-here",
            "warning",
            "this CPU has no native bfloat16; float32 is faster here",
            f"vector instructions: {' '.join(facts.simd) or 'unknown'}",
            "use --precision float32",
        )
    if plan.precision == "float32" and plan.device == "cpu" and native_bfloat16:
        yield Finding(
            "bfloat16-available",
            "note",
            "this CPU computes in bfloat16 natively, which may be faster for large networks",
            ", ".join(sorted(native_bfloat16)),
            "compare: parcade profile GAME --precision bfloat16",
        )


def mpi(facts: Facts, plan: Plan) -> Iterator[Finding]:
    """An MPI that is missing, or a launcher that belongs to another one."""
    if plan.engine != "mpi":
        return
    if facts.mpi_library is None:
        yield Finding(
            "mpi-missing",
            "problem",
            "mpi4py finds no MPI library",
            "import failed",
            "pip install 'parcade[mpi]'",
        )
    if facts.mpi_launcher is None:
        yield Finding(
            "mpiexec-missing",
            "problem",
            "there is no mpiexec",
            "neither beside Python nor on PATH",
            "pip install 'parcade[mpi]'",
        )
    if facts.mpi_library and facts.mpi_launcher_version:
        families = [_mpi_family(text) for text in (facts.mpi_library, facts.mpi_launcher_version)]
        if None not in families and families[0] != families[1]:
            yield Finding(
                "mpi-mismatch",
                "problem",
                "the launcher belongs to another MPI than mpi4py loads: every rank would think it is alone",
                f"library {facts.mpi_library}; launcher {facts.mpi_launcher_version}",
                "put the right mpiexec first on PATH, or set MPI4PY_MPIABI / reinstall mpi4py against this MPI",
            )


def _mpi_family(text: str) -> str | None:
    lower = text.lower()
    if "open mpi" in lower or "openrte" in lower or "prrte" in lower:
        return "open mpi"
    return "mpich" if any(name in lower for name in ("mpich", "hydra", "intel(r) mpi")) else None


def shared_memory(facts: Facts, plan: Plan) -> Iterator[Finding]:
    """A /dev/shm too small for the ranks: containers give 64 MiB by default."""
    free, needed = facts.shared_memory_free_bytes, plan.ranks * RANK_SHARED_MEMORY_BYTES
    if plan.engine in ("mpi", "ray") and free is not None and free < needed:
        yield Finding(
            "shared-memory",
            "problem",
            "/dev/shm is too small for the ranks of this host; they die with a bus error",
            f"{free >> 20} MiB free, about {needed >> 20} MiB needed",
            "free some, or start the container with --shm-size=2g",
        )


def slurm(facts: Facts, plan: Plan) -> Iterator[Finding]:
    """Inside an allocation: more threads than the CPUs a task was given."""
    given = facts.slurm_job.get("SLURM_CPUS_PER_TASK", "")
    widest = max((group.widest.threads for group in facts.processes), default=1)
    if given.isdigit() and widest > int(given):
        yield Finding(
            "slurm-cpus-per-task",
            "warning",
            "a rank has more threads than Slurm gave each task cores",
            f"{widest} threads, SLURM_CPUS_PER_TASK={given}",
            f"use --threads-per-rank {given} or sbatch --cpus-per-task={widest}",
        )


def gpu(facts: Facts, plan: Plan) -> Iterator[Finding]:
    """A GPU that is asked for and cannot be used, or that is there and is not."""
    if plan.device == "cuda" and not facts.torch_sees_gpu:
        built = (
            f"torch is built for CUDA {facts.torch_cuda}"
            if facts.torch_cuda
            else "torch is built for CPUs only"
        )
        found = (
            f"{', '.join(facts.gpus)}, driver {facts.gpu_driver}" if facts.gpus else "nvidia-smi shows no GPU"
        )
        fix = (
            "install a torch build with CUDA"
            if facts.gpus
            else "use --device cpu, or a machine with an NVIDIA GPU"
        )
        yield Finding("gpu-unusable", "problem", "device cuda cannot be used", f"{found}; {built}", fix)
    elif plan.device == "cpu" and facts.gpus:
        yield Finding(
            "gpu-idle", "note", "there is a GPU that this run leaves idle", facts.gpus[0], "use --device cuda"
        )


def roms(facts: Facts, plan: Plan) -> Iterator[Finding]:
    """ale-py and the games in its wheel."""
    if not facts.games:
        yield Finding(
            "no-games",
            "problem",
            "no Atari game can be loaded",
            "ale-py gives no ROMs",
            "pip install --force-reinstall ale-py",
        )


def numba_cache(facts: Facts, plan: Plan) -> Iterator[Finding]:
    """Kernels of the native consoles: compiled once and kept, or at every start."""
    if plan.backend != "native":
        return
    if not facts.numba_cache_writable and not facts.numba_kernels_cached:
        yield Finding(
            "numba-cache",
            "warning",
            "compiled kernels cannot be kept: every process of every run compiles them again, about a minute each",
            f"cache {facts.numba_cache} is not writable",
            "export NUMBA_CACHE_DIR to a folder you may write",
        )
    elif not facts.numba_kernels_cached:
        yield Finding(
            "numba-cold",
            "note",
            "the first start compiles the consoles, about a minute",
            "no kernels cached yet",
            "run it once before you measure",
        )


def load(facts: Facts, plan: Plan) -> Iterator[Finding]:
    """Other work on the machine."""
    if facts.load is not None and facts.load > BUSY_LOAD_SHARE * facts.core_budget:
        yield Finding(
            "machine-is-busy",
            "note",
            "other work runs here: rates by wall clock will not repeat",
            f"load average {facts.load:.1f} on {facts.core_budget:g} core(s)",
            "compare rates per CPU-second, or wait",
        )


RULES: tuple[Rule, ...] = (
    threads_against_cores,
    waiting_threads_spin,
    ranks_against_cores,
    affinity,
    cgroup,
    numa,
    simd,
    mpi,
    shared_memory,
    slurm,
    gpu,
    roms,
    numba_cache,
    load,
)
# What a training looks at when it starts: facts that cost milliseconds, and nothing that only slows measurements.
QUICK_RULES: tuple[Rule, ...] = (
    threads_against_cores,
    affinity,
    cgroup,
    simd,
    shared_memory,
    slurm,
    numba_cache,
)


def examine(facts: Facts, plan: Plan, rules: tuple[Rule, ...] = RULES) -> list[Finding]:
    """All findings, the gravest first."""
    return by_gravity(finding for rule in rules for finding in rule(facts, plan))
