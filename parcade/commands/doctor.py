"""``parcade doctor``: report this machine, the processes a run would start on it, and problems."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from parcade.errors import UsageError

if TYPE_CHECKING:
    from parcade.config import TrainConfig
    from parcade.doctor.facts import Facts
    from parcade.doctor.pools import PlannedRun
    from parcade.doctor.running import RunningProcess
    from parcade.report.findings import Finding


@dataclass(frozen=True)
class DoctorFlags:
    """Check this machine for a planned run, given by the flags of parcade train, or check a current run."""

    run: str = ""
    """Directory of a current run on this machine: check its plan and watch its processes."""
    seconds: float = 2.0
    """How long to watch them."""
    json: bool = False
    """Print facts and findings as JSON."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 86_400:
            raise UsageError(f"seconds={self.seconds}: expected seconds above 0 and up to a day")
        if not self.run and self.seconds != DoctorFlags.seconds:
            raise UsageError("--seconds is how long to watch a run; add --run DIR, or leave it out")


OWN = ("run", "seconds")
SWITCHES = ("json", "no-json")
OWN_FLAGS = (*OWN, *SWITCHES)
ANSWERED_BY_RUNNING = ("machine-is-busy", "mpi-missing", "mpiexec-missing")
"""Rules that say nothing about a current run: it makes the load itself, and its launcher has started it."""


def planned(words: list[str]) -> TrainConfig:
    """Return the config of the planned run. Its game changes nothing here and may be left out."""
    from parcade.training_flags import parse_training

    if words[0].startswith("-") and not any(re.match("--env(=|$)", word) for word in words):
        with contextlib.suppress(UsageError):  # the game may follow the flags
            return parse_training(words, OWN_FLAGS)
        words = ["pong", *words]
    return parse_training(words, OWN_FLAGS)


def _config_of(run: Path) -> TrainConfig:
    """Return the config of a run, with pong in place of a task that may need a module: nothing here needs it.

    An Atari game keeps its name, because others may not have its mode.
    """
    from parcade.config import from_json
    from parcade.envs.games import is_atari
    from parcade.files.run_directory import read_json

    data = read_json(run / "config.json")
    return from_json(data if is_atari(str(data.get("game"))) else {**data, "game": "pong"})


def _plan(flags: DoctorFlags, words: list[str], num_running: int) -> PlannedRun:
    """Return what this machine would run: by the flags of a training, else as the current run.

    A fit of ``parcade.data_parallel`` has no config; its processes on this host, ``num_running``, are ranks.
    """
    from parcade.cluster.hosts import most_ranks_on_a_host, read_hosts
    from parcade.doctor.pools import PlannedRun
    from parcade.doctor.start import plan_of
    from parcade.machine.threads import check_threads
    from parcade.model.precision import resolve

    if not words and not flags.run:
        return PlannedRun()
    if not words and not (Path(flags.run) / "config.json").exists():
        return PlannedRun("mpi" if num_running > 1 else "local", num_running)
    config = planned(words) if words else _config_of(Path(flags.run))
    plan = plan_of(config)
    check_threads("threads_per_rank", plan.threads_per_rank)
    if config.run.hosts:
        plan = replace(plan, ranks=most_ranks_on_a_host(read_hosts(Path(config.run.hosts)), plan.ranks))
    return replace(plan, precision=resolve(plan.precision, plan.device))


def doctor(arguments: list[str]) -> int:
    """``parcade doctor``; exit code 1 when there is a problem."""
    from parcade.doctor.facts import all_facts
    from parcade.doctor.machine_rules import examine
    from parcade.doctor.running import examine_running, has_parts_on_ray, look_at_run
    from parcade.ending import exits_in_order
    from parcade.flags import parse, split_flags
    from parcade.report.findings import by_gravity

    own, rest = split_flags(arguments, OWN_FLAGS, switches=SWITCHES)
    if own[-1:] == ["--help"]:
        print("usage: parcade doctor [GAME] [flags of parcade train] [flags below]\n")
    flags = parse(DoctorFlags, own, prog="parcade doctor")
    running = look_at_run(Path(flags.run), flags.seconds) if flags.run else []
    plan = _plan(flags, rest, len(running))
    are_all = not (flags.run and has_parts_on_ray(Path(flags.run)))
    try:
        with exits_in_order():  # so that the probe process ends, too
            facts = all_facts(plan)
    except RuntimeError as error:  # from the probe process
        print(f"parcade: {error}", file=sys.stderr)
        return 1
    seen = examine_running(running, facts.core_budget, are_all=are_all)
    of_plan = [each for each in examine(facts, plan) if not (running and each.rule in ANSWERED_BY_RUNNING)]
    findings = by_gravity([*of_plan, *seen])
    if flags.json:
        found = {"facts": facts, "running": running, "findings": findings}
        print(json.dumps(found, default=dataclasses.asdict, indent=2))
    else:
        _print(facts, running, findings)
    return 1 if any(finding.level == "problem" for finding in findings) else 0


def _print(facts: Facts, running: list[RunningProcess], findings: list[Finding]) -> None:
    for name, value in _table(facts):
        print(f"{name:<16}{value}")
    for p in running:
        print(
            f"{p.name:<16}{p.cores_used:.2f} cores, {p.busy_threads} busy of {p.threads} threads, "
            f"cores {_cores(p.affinity)}, {p.memory_bytes >> 20} MiB, "
            f"{p.involuntary_switches:.0f} involuntary and {p.voluntary_switches:.0f} voluntary switches/s"
        )
    print()
    for finding in findings:
        print(f"{finding.level}: {finding.says}\n  because {finding.evidence}\n  fix     {finding.fix}")
    if not findings:
        print("no problems found")


def _cores(cores: tuple[int, ...]) -> str:
    """Format core numbers as the kernel does: 0-3,8."""
    parts: list[str] = []
    for core in cores:
        if parts and core == int(parts[-1].split("-")[-1]) + 1:
            parts[-1] = f"{parts[-1].split('-')[0]}-{core}"
        else:
            parts.append(str(core))
    return ",".join(parts)


def _gib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**30:.1f} GiB"


def _table(facts: Facts) -> list[tuple[str, str]]:
    quota = "no CPU limit" if facts.cgroup_cores is None else f"{facts.cgroup_cores:g} cores of CPU time"
    limit = facts.cgroup_memory_bytes
    memory = "no memory limit" if limit is None else f"{_gib(limit)} of memory"
    free, shared = _gib(facts.shared_memory_free_bytes), _gib(facts.shared_memory_bytes)
    cores = f"{facts.cores}, usable {_cores(facts.usable_cores)}; {len(facts.numa_nodes) or 1} NUMA node(s)"
    built = f"CUDA {facts.torch_cuda}" if facts.torch_cuda else "CPUs only"
    kernels = f"cache {facts.numba_cache or '-'}, {facts.numba_kernels_cached} kernels cached"
    load = "unknown" if facts.load is None else f"{facts.load:.1f}"
    job = facts.slurm_job.get("SLURM_JOB_ID")
    missing = "not installed"
    rows = [
        ("CPU", f"{facts.cpu}; {' '.join(facts.simd or ()) or 'vector instructions unknown'}"),
        ("cores", f"{cores}; load {load}"),
        ("cgroup", f"{quota}, {memory}"),
        ("memory", f"{_gib(facts.memory_bytes)}; /dev/shm {free} free of {shared}"),
    ]
    for group in facts.processes:
        pools = ", ".join(f"{pool.library} {pool.threads}" for pool in group.pools)
        policy = f"OMP_WAIT_POLICY={facts.wait_policy or 'not set'}"
        rows.append((f"{group.count} process(es)", f"{group.what}: {pools}; {policy}"))
    return [
        *rows,
        ("MPI", f"{facts.mpi_library or missing}; launcher {facts.mpi_launcher_version or missing}"),
        ("Ray", facts.ray or missing),
        ("Slurm", (facts.slurm or missing) + (f", inside job {job}" if job is not None else "")),
        (
            "GPU",
            f"{', '.join(facts.gpus) or 'none'}; driver {facts.gpu_driver or 'none'}; torch for {built}",
        ),
        ("games", f"{facts.games or 'none'} in ale-py"),
        ("Numba", f"{facts.numba or missing}; {kernels}"),
    ]
