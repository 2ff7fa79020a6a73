"""The quick examination at the start of every training, which prints warnings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from parcade.algorithms.table import algorithm_row
from parcade.config import TrainConfig, check_divisible
from parcade.doctor.facts import quick_facts
from parcade.doctor.machine_rules import QUICK_RULES, examine
from parcade.doctor.pools import PlannedRun, Processes
from parcade.errors import UsageError
from parcade.machine.threads import learner_threads, one_thread, pools_here

MOST_CORES = 10_000  # more ranks than this are never advised for a machine


def plan_of(config: TrainConfig) -> PlannedRun:
    """Return the doctor's view of a run. The parts of a run on another machine's Ray cluster are not here."""
    run = config.run
    on_ray = run.engine == "ray" and not config.topology.address
    return PlannedRun(
        *(run.engine, run.ranks, run.threads_per_rank, run.backend, run.device, run.precision),
        parts=_parts(config) if on_ray else (),
        possible_ranks=_possible_ranks(config) if run.engine == "mpi" else (),
    )


def _possible_ranks(config: TrainConfig) -> tuple[int, ...]:
    """Return the numbers of ranks, up to the run's, that its start accepts and one machine may have."""

    def is_possible(ranks: int) -> bool:
        try:
            check_divisible(config, ranks)
        except UsageError:
            return False
        return True

    return tuple(filter(is_possible, range(1, min(config.run.ranks, MOST_CORES) + 1)))


def _parts(config: TrainConfig) -> tuple[tuple[str, int, int], ...]:
    """Return kind, number and threads of a run's parts: only learners have more than one thread."""
    threads = config.run.threads_per_rank
    of_learners, of_others = learner_threads(threads, config.topology.learner_cpus), one_thread(threads)
    return tuple(
        (kind, count, of_learners if kind == "learner" else of_others)
        for kind, count in config.part_counts.items()
        if count
    )


def placement(config: TrainConfig) -> str:
    """Return one line that says where the consoles and the network of a run are."""
    if config.consoles_on_device:
        return "consoles and network on the GPU because of --env-device cuda; rollouts never leave it"
    if algorithm_row(config.run.algorithm).make.source_kind == "population":
        return "consoles and acting on CPU cores, one perturbed policy per episode; the update on the GPU"
    if config.is_topology:
        return "actors on CPU cores, learners on the GPU"
    return "consoles on CPU cores, network on the GPU; docs/gpu.md compares this with --env-device cuda"


def warn_at_start(
    config: TrainConfig, local_size: int, local_cores: tuple[int, ...], say: Callable[[str], None]
) -> None:
    """Print one line per problem or warning about this process; only ``parcade doctor`` prints notes.

    ``local_cores`` are the cores that the ``local_size`` ranks of this host may use together.
    """
    here = Processes("rank" if local_size > 1 else "this process", local_size, pools_here())
    # The rules compare a plan with one host.
    plan_here = dataclasses.replace(plan_of(config), ranks=local_size)
    facts_here = dataclasses.replace(quick_facts((here,)), usable_cores=local_cores)
    for finding in examine(facts_here, plan_here, QUICK_RULES):
        if finding.level != "note":
            say(finding.line())
    if config.run.device == "cuda":
        say(placement(config))
    if config.consoles_on_device and config.env.start_states == "exact":
        say(
            "exact starts play some 85 frames at the end of every episode, while the other consoles wait; "
            "use --start-states cached"
        )
