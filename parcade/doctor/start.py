"""The cheap examination at the start of every training: what a line of warning could still save."""

from __future__ import annotations

from collections.abc import Callable

from parcade.config import TrainConfig
from parcade.doctor.facts import Plan, Processes, quick_facts
from parcade.doctor.rules import QUICK_RULES, examine
from parcade.threads import pools_here


def plan_of(config: TrainConfig) -> Plan:
    """What the doctor needs to know of a run."""
    run = config.run
    return Plan(run.engine, run.ranks, run.threads_per_rank, run.backend, run.device, run.precision)


def warn_at_start(config: TrainConfig, local_size: int, say: Callable[[str], None]) -> None:
    """Say, in one line each, what is wrong with this process's share of the machine; notes are for the full doctor."""
    here = Processes("rank" if local_size > 1 else "this process", local_size, pools_here())
    for finding in examine(quick_facts((here,)), plan_of(config), QUICK_RULES):
        if finding.level != "note":
            say(finding.line())
    if config.consoles_on_device and config.env.start_states == "exact":
        say("exact starts play some 85 frames at the end of every game while the GPU's other consoles wait; use --start-states cached")
