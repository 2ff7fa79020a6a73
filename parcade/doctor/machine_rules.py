"""The doctor's rules: pure functions of the facts that yield findings, each with its evidence and a fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from parcade.doctor.facts import Facts
from parcade.doctor.pools import PlannedRun
from parcade.report.findings import Finding, by_gravity

Rule = Callable[[Facts, PlannedRun], Iterator[Finding]]

BUSY_LOAD_SHARE = 0.5
"""With a load average above this share of the machine's cores, wall-clock rates are not repeatable."""
RANK_MEMORY_BYTES = 700 * 2**20
"""Resident memory of a rank with torch, ale-py and a few consoles: 500 to 700 MiB measured."""
RANK_SHARED_MEMORY_BYTES = 32 * 2**20
"""Memory that Open MPI and MPICH map in /dev/shm per rank, rounded up."""
RAY_STORE_BYTES = 2**30
"""Ray's store of objects, in /dev/shm where that has room (``topology.ray_engine.OBJECT_STORE_BYTES``)."""


def _threads_of(facts: Facts) -> int:
    """Return how many threads of the run's processes compute at once."""
    return sum(group.count * group.widest.threads for group in facts.processes)


def _ranks_up_to(most: int, plan: PlannedRun) -> int:
    """Return the largest number of ranks, up to ``most``, with which the run starts."""
    return max((ranks for ranks in plan.possible_ranks if ranks <= most), default=max(1, most))


def threads_against_cores(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """More computing threads than cores.

    This slowed Karpathy's learner on many MPI ranks until each rank was limited to one thread.
    """
    cores = facts.core_budget
    threads = _threads_of(facts)
    if threads > max(cores, 1) and facts.widest_threads > 1:
        shown = ", ".join(
            f"{group.count} x {group.what} with {group.widest.threads} threads of {group.widest.library}"
            for group in facts.processes
        )
        best = max(1, int(cores // max(1, sum(group.count for group in facts.processes))))
        yield Finding(
            "threads-oversubscribed",
            "problem" if threads >= 2 * cores else "warning",
            says=f"{threads} threads would compute on {cores:g} core(s)",
            evidence=shown,
            fix=f"use --threads-per-rank {best}; under your own launcher export OMP_NUM_THREADS={best} "
            f"OPENBLAS_NUM_THREADS={best}",
        )


def waiting_threads_spin(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """OpenMP threads that busy-wait."""
    if facts.widest_threads > 1 and facts.wait_policy.upper() != "PASSIVE":
        yield Finding(
            "waiting-threads-spin",
            "warning",
            says="waiting OpenMP threads spin and take cores from emulation",
            evidence=f"OMP_WAIT_POLICY={facts.wait_policy or 'not set'}, pools of more than one thread",
            fix="export OMP_WAIT_POLICY=PASSIVE (parcade sets it if it is imported before torch)",
        )


def ranks_against_cores(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """More ranks than cores."""
    if plan.ranks > max(facts.core_budget, 1):
        yield Finding(
            "more-ranks-than-cores",
            "warning",
            says="there are more ranks than cores, so each Allreduce waits for ranks that are not running",
            evidence=f"{plan.ranks} ranks on {facts.core_budget:g} core(s)",
            fix=f"use --ranks {_ranks_up_to(int(facts.core_budget), plan)} here, or more hosts",
        )


def parts_against_cores(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """Far more actors and learners than cores. A few more do no harm: while one computes, others wait."""
    counts = {kind: count for kind, count, _ in plan.parts if kind in ("actor", "learner")}
    cores = max(1, int(facts.core_budget))
    if sum(counts.values()) > 2 * cores:
        many = "actor" if counts.get("actor", 0) > 1 else "learner"
        most = max(1, 2 * cores - sum(counts.values()) + counts[many])
        yield Finding(
            "more-parts-than-cores",
            "warning",
            says="actors and learners wait for cores, so learners learn from older experience",
            evidence=f"{' and '.join(f'{count} {kind}(s)' for kind, count in counts.items())} on {cores} "
            "core(s)",
            fix=f"use --num-{many}s {most} or fewer here, or join a cluster of several hosts (--address)",
        )


def affinity(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """A launcher or a batch system that pins this process to some of the machine's cores."""
    if len(facts.usable_cores) < facts.cores:
        shown = ",".join(map(str, facts.usable_cores[:8])) + (",..." if len(facts.usable_cores) > 8 else "")
        yield Finding(
            "pinned-to-few-cores",
            "warning" if len(facts.usable_cores) < max(plan.num_processes, 2) else "note",
            says="this process and its children may use only some of the cores",
            evidence=f"number {shown}; the machine has {facts.cores}",
            fix="if you may use the others, start with mpiexec --bind-to none, srun --cpus-per-task or "
            "taskset",
        )


def cgroup(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """Limits of a container that the run exceeds."""
    visible, running = len(facts.usable_cores), _threads_of(facts)
    if facts.cgroup_cores is not None and facts.cgroup_cores < min(visible, running):
        threads = max(1, int(facts.cgroup_cores / max(1, plan.num_processes)))
        fewer = f"--threads-per-rank {threads}" if facts.widest_threads > threads else "fewer processes"
        yield Finding(
            "cgroup-cpu-limit",
            "warning",
            says="the container's CPU quota is below its number of visible cores; busy threads are throttled",
            evidence=f"quota of {facts.cgroup_cores:g} cores, {visible} cores visible, {running} threads",
            fix=f"use {fewer} or raise the limit (docker --cpus)",
        )
    limit = min((b for b in (facts.memory_bytes, facts.cgroup_memory_bytes) if b is not None), default=None)
    needed = plan.num_processes * RANK_MEMORY_BYTES
    if limit is not None and needed > limit:
        fix = "use fewer actors, learners or shards or raise the limit"
        if not plan.parts:
            fix = f"use --ranks {_ranks_up_to(limit // RANK_MEMORY_BYTES, plan)} or raise the limit"
        if plan.num_processes == 1:
            fix = "raise the limit, or use a machine with more memory"
        yield Finding(
            "memory",
            "problem",
            says="the processes of the run may not fit in memory",
            evidence=f"{plan.num_processes} process(es) of about {RANK_MEMORY_BYTES >> 20} MiB, "
            f"{limit / 2**30:.1f} GiB allowed",
            fix=fix,
        )


def numa(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """Cores on several NUMA nodes: memory that is near some of them and far from others."""
    nodes = len([node for node in facts.numa_nodes if set(node) & set(facts.usable_cores)])
    if nodes > 1 and plan.engine == "local" and facts.widest_threads > 1:
        yield Finding(
            "numa",
            "note",
            says="one process spreads its threads over several NUMA nodes; many of its reads go to a remote "
            "node",
            evidence=f"{nodes} NUMA nodes",
            fix=f"use --engine mpi --ranks {nodes} (or a multiple), or numactl --cpunodebind=0 --membind=0",
        )


def simd(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """The number formats that the CPU supports natively."""
    if facts.simd is None:
        return
    native_bfloat16 = {"avx512_bf16", "amx_bf16", "bf16"} & set(facts.simd)
    if plan.precision == "bfloat16" and plan.device == "cpu" and not native_bfloat16:
        yield Finding(
            "bfloat16-is-slow-here",
            "warning",
            says="this CPU has no native bfloat16 support; float32 is faster",
            evidence=f"vector instructions: {' '.join(facts.simd) or 'none of those that matter'}",
            fix="use --precision float32",
        )
    if plan.precision == "float32" and plan.device == "cpu" and native_bfloat16:
        yield Finding(
            "bfloat16-available",
            "note",
            says="this CPU supports bfloat16 natively, which may be faster for large networks",
            evidence=", ".join(sorted(native_bfloat16)),
            fix="compare: parcade profile GAME --precision bfloat16",
        )


def mpi(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """A missing MPI, or a launcher of another MPI."""
    if plan.engine != "mpi":
        return
    if facts.mpi_library is None:
        yield Finding(
            "mpi-missing",
            "problem",
            says="mpi4py finds no MPI library",
            evidence="import failed",
            fix="pip install 'parcade[mpi]'",
        )
    if facts.mpi_launcher is None:
        yield Finding(
            "mpiexec-missing",
            "problem",
            says="mpiexec is not installed",
            evidence="neither next to Python nor on PATH",
            fix="pip install 'parcade[mpi]'",
        )
    if facts.mpi_library and facts.mpi_launcher_version:
        families = [_mpi_family(text) for text in (facts.mpi_library, facts.mpi_launcher_version)]
        if None not in families and families[0] != families[1]:
            yield Finding(
                "mpi-mismatch",
                "problem",
                says="the launcher and mpi4py belong to different MPIs: every rank would run as a separate "
                "job",
                evidence=f"library {facts.mpi_library}; launcher {facts.mpi_launcher_version}",
                fix="put the right mpiexec first on PATH, set MPI4PY_MPIABI, or reinstall mpi4py for this "
                "MPI",
            )


def _mpi_family(text: str) -> str | None:
    lower = text.lower()
    if "open mpi" in lower or "openrte" in lower or "prrte" in lower:
        return "open mpi"
    return "mpich" if any(name in lower for name in ("mpich", "hydra", "intel(r) mpi")) else None


def shared_memory(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """A /dev/shm that is too small for ranks or Ray; its default size in containers is 64 MiB."""
    free = facts.shared_memory_free_bytes
    if free is None:
        return
    fix = "free some space, or start the container with --shm-size=2g"
    needed = plan.num_processes * RANK_SHARED_MEMORY_BYTES
    if plan.engine == "mpi" and free < needed:
        yield Finding(
            "shared-memory",
            "problem",
            says="/dev/shm is too small for the processes on this host; they would crash with a bus error",
            evidence=f"{free >> 20} MiB free, about {needed >> 20} MiB needed",
            fix=fix,
        )
    if plan.parts and free < RAY_STORE_BYTES:
        yield Finding(
            "shared-memory",
            "warning",
            says="Ray's store of objects does not fit in /dev/shm; Ray keeps it on disk, which is slower",
            evidence=f"{free >> 20} MiB free, {RAY_STORE_BYTES >> 20} MiB needed",
            fix=fix,
        )


def slurm(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """In an allocation: more threads than CPUs per task."""
    given = facts.slurm_job.get("SLURM_CPUS_PER_TASK", "")
    widest = facts.widest_threads
    if given.isdecimal() and widest > int(given):
        yield Finding(
            "slurm-cpus-per-task",
            "warning",
            says="a rank has more threads than Slurm gave CPUs to each task",
            evidence=f"{widest} threads, SLURM_CPUS_PER_TASK={given}",
            fix=f"use --threads-per-rank {given} or sbatch --cpus-per-task={widest}",
        )


def gpu(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """A GPU that is requested but unusable, or usable but idle."""
    if plan.device == "cuda" and not facts.torch_sees_gpu:
        found, fix = "nvidia-smi shows no GPU", "use --device cpu, or a machine with an NVIDIA GPU"
        if facts.gpus:
            found, fix = f"{', '.join(facts.gpus)}, driver {facts.gpu_driver}", _fix_of_unseen_gpu(facts)
        built = f"CUDA {facts.torch_cuda}" if facts.torch_cuda else "CPUs only"
        evidence = f"{found}; torch is built for {built}"
        yield Finding(
            "gpu-unusable", "problem", says="device cuda cannot be used", evidence=evidence, fix=fix
        )
    elif plan.device == "cpu" and facts.gpus:
        says = "this run does not use the machine's GPU"
        first = "" if facts.torch_sees_gpu else f"{_fix_of_unseen_gpu(facts)}; then "
        yield Finding("gpu-idle", "note", says=says, evidence=facts.gpus[0], fix=f"{first}use --device cuda")


def _fix_of_unseen_gpu(facts: Facts) -> str:
    """Return what makes torch see a GPU that nvidia-smi shows."""
    if facts.torch_cuda is None:
        return "install a torch build with CUDA"
    return f"check CUDA_VISIBLE_DEVICES, and that the driver is new enough for CUDA {facts.torch_cuda}"


def roms(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """An ale-py that is missing or has no ROMs."""
    if not facts.games:
        yield Finding(
            "no-games",
            "problem",
            says="no Atari game can be loaded",
            evidence="ale-py provides no ROMs",
            fix="pip install --force-reinstall ale-py",
        )


def numba_cache(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """The native consoles' kernels: whether they are cached or compiled at every start."""
    if plan.backend != "native" or facts.numba_kernels_cached:
        return
    if not facts.numba_cache_writable:
        yield Finding(
            "numba-cache",
            "warning",
            says="compiled kernels cannot be cached: every process of every run spends ten seconds on them",
            evidence=f"cache {facts.numba_cache} is not writable",
            fix="set NUMBA_CACHE_DIR to a writable directory",
        )
    else:
        yield Finding(
            "numba-cold",
            "note",
            says="the first start compiles the consoles, which takes about ten seconds on two cores",
            evidence="no kernels cached yet",
            fix="run it once before measuring",
        )


def load(facts: Facts, plan: PlannedRun) -> Iterator[Finding]:
    """Other work on the machine."""
    # The load is that of the machine: also of cores that this process may not use, and of other containers.
    if facts.load is not None and facts.load > BUSY_LOAD_SHARE * facts.cores:
        yield Finding(
            "machine-is-busy",
            "note",
            says="other programs are running: wall-clock rates will not be repeatable",
            evidence=f"load average {facts.load:.1f} on {facts.cores} core(s)",
            fix="compare rates per CPU-second, or wait",
        )


RULES: tuple[Rule, ...] = (
    threads_against_cores,
    waiting_threads_spin,
    ranks_against_cores,
    parts_against_cores,
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
# The rules checked at the start of a training: they need only quick facts, and exclude measurement problems.
QUICK_RULES: tuple[Rule, ...] = (
    threads_against_cores,
    affinity,
    cgroup,
    simd,
    shared_memory,
    slurm,
    numba_cache,
)


def examine(facts: Facts, plan: PlannedRun, rules: tuple[Rule, ...] = RULES) -> list[Finding]:
    """Return all findings, the most severe first."""
    return by_gravity(finding for rule in rules for finding in rule(facts, plan))
