"""The cheap examination at the start of every training: what a line of warning could still save."""

from __future__ import annotations

from collections.abc import Callable

from parcade.algorithms.table import algorithm_row
from parcade.config import TrainConfig
from parcade.doctor.facts import quick_facts
from parcade.doctor.pools import Plan, Processes
from parcade.doctor.rules import QUICK_RULES, examine
from parcade.threads import pools_here


def plan_of(config: TrainConfig) -> Plan:
    """What the doctor needs to know of a run."""
    run = config.run
    return Plan(run.engine, run.ranks, run.threads_per_rank, run.backend, run.device, run.precision)


def placement(config: TrainConfig) -> str:
    """Where the consoles and the network of a run are, and why, in one line."""
    if config.consoles_on_device:
        return "consoles and network on the GPU, as --env-device cuda asks; rollouts never leave it"
    if algorithm_row(config.run.algorithm).make.source_kind == "population":
        return "consoles and acting on CPU cores, one perturbed policy a game; the update on the GPU"
    where = (
        "actors on CPU cores, learners on the GPU"
        if config.is_topology
        else "consoles on CPU cores, network on the GPU"
    )
    return (
        f"{where}: cores emulate faster than the GPU does at these sizes (docs/gpu.md); --env-device decides"
    )


def warn_at_start(config: TrainConfig, local_size: int, say: Callable[[str], None]) -> None:
    """Say, in one line each, what is wrong with this process's share of the machine; notes are for the full doctor."""
    here = Processes("rank" if local_size > 1 else "this process", local_size, pools_here())
    for finding in examine(quick_facts((here,)), plan_of(config), QUICK_RULES):
        if finding.level != "note":
            say(finding.line())
    if config.run.device == "cuda":
        say(placement(config))
    if config.consoles_on_device and config.env.start_states == "exact":
        say(
            "exact starts play some 85 frames at the end of every game while the GPU's other consoles wait; use --start-states cached"
        )
