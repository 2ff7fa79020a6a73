"""A sweep from its first trial to its confirmed settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from parcade.cluster.signals import StopRequest
from parcade.config import TopologyConfig
from parcade.errors import UsageError
from parcade.files.locks import locked
from parcade.files.outputs import make_folders
from parcade.machine.facts import cores_at_once
from parcade.sweep.plan import FOLDERS, SweepPlan, open_sweep, read_sweep
from parcade.sweep.search import make_search
from parcade.sweep.trials import Stage, Trial, best_first, read_trials
from parcade.topology.ray_engine import RayEngine

STOPPING = "stopping: the trainings save a checkpoint; the same command continues the sweep"


class Room(NamedTuple):
    """Where trials run: address of a Ray cluster, trials at once (0: by the cores) and GPUs per trial."""

    address: str
    at_once: int
    gpus: float


def run_sweep(folder: Path, plan: SweepPlan, room: Room, say: Callable[[str], None]) -> None:
    """Run the trials that are missing, then confirm the best ones.

    A first signal of ``stop_signals`` lets the trainings save a checkpoint and stop; then KeyboardInterrupt.
    Errors: UsageError when no cluster answers or a trial fits on none of its nodes.
    """
    make_folders("sweep", folder, FOLDERS)
    refusal = f"another parcade sweep is running in {folder}; wait for its end, or use another --dir"
    with locked(folder / "lock", refusal):
        open_sweep(folder, plan)
        plan = read_sweep(folder)
        stages: tuple[Stage, ...] = ("trials", "confirmations")
        for stage in stages:  # damaged files end here, before anything starts
            read_trials(folder, stage, plan.axes)
        if _new_numbers(folder, plan) or _to_continue(folder) or _to_confirm(folder, plan):
            _run_stages(folder, plan, room, say)


def _run_stages(folder: Path, plan: SweepPlan, room: Room, say: Callable[[str], None]) -> None:
    """Run search and confirmation on a cluster. A trial reserves a CPU per seed, a confirmation one."""
    needed = {"CPU": float(len(plan.seeds)), **({"GPU": room.gpus} if room.gpus else {})}
    # Ray prepares processes for all the CPUs that it is told of.
    room = room._replace(at_once=min(room.at_once, max(plan.trials, plan.confirm * plan.confirm_seeds)))
    here = max(len(plan.seeds), room.at_once * len(plan.seeds) or cores_at_once())
    engine = RayEngine(TopologyConfig(address=room.address), {} if room.address else {"CPU": here})
    try:
        cpus = _check_a_node_fits(needed)
        at_once = room.at_once or max(1, cpus // len(plan.seeds))
        with StopRequest(None, STOPPING) as stop:
            run = functools.partial(_run_stage, folder, plan, is_stopping=stop.requested, say=say)
            run("trials", at_once=at_once, resources=needed)
            if not stop.requested():
                run("confirmations", at_once=at_once * len(plan.seeds), resources={**needed, "CPU": 1.0})
            if stop.requested():
                raise KeyboardInterrupt
    finally:
        engine.close()


def _new_numbers(folder: Path, plan: SweepPlan) -> list[int]:
    """Return the numbers of the trials that have not started."""
    known = {trial.number for trial in read_trials(folder, "trials")}
    return [number for number in range(plan.trials) if number not in known]


def _to_continue(folder: Path) -> list[Trial]:
    """Return the trials that have started and are not over."""
    return [trial for trial in read_trials(folder, "trials") if not trial.is_over]


def _to_confirm(folder: Path, plan: SweepPlan) -> list[Trial]:
    """Return the best trials with each of the fresh seeds, without those that are over."""
    finished = [trial for trial in read_trials(folder, "trials") if trial.state == "finished"]
    best = best_first(finished, plan.goal)[: plan.confirm]
    known = [trial for trial in read_trials(folder, "confirmations") if trial.is_over]
    over = [(trial.number, trial.seeds, trial.settings) for trial in known]
    again = [Trial(each.number, each.settings, (seed,)) for each in best for seed in plan.fresh_seeds]
    return [trial for trial in again if (trial.number, trial.seeds, trial.settings) not in over]


def _check_a_node_fits(per_trial: dict[str, float]) -> int:
    """Check that a trial fits on a node, since Ray would wait forever; return the CPUs of the cluster.

    Errors: UsageError.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for kind, amount in per_trial.items():
        most = max(node.get(kind, 0.0) for node in nodes)
        if amount > most:
            raise UsageError(
                f"a trial reserves {amount:g} {kind}s on one node, the largest has {most:g}; use fewer "
                "seeds, or a cluster with larger nodes"
            )
    return int(sum(node.get("CPU", 0.0) for node in nodes))


def _run_stage(
    folder: Path,
    plan: SweepPlan,
    stage: Stage,
    *,
    at_once: int,
    resources: dict[str, float],
    is_stopping: Callable[[], bool],
    say: Callable[[str], None],
) -> None:
    """Run the trials of a stage that are not over."""
    from parcade.sweep.tuning import Ledger, make_asha, run_trials

    over = [trial for trial in read_trials(folder, "trials") if trial.is_over]
    if stage == "trials":
        first, numbers = _to_continue(folder), _new_numbers(folder, plan)
    else:
        first, numbers = _to_confirm(folder, plan), []
    if not first and not numbers:
        return
    ledger = Ledger(
        plan, folder, stage, first, search=make_search(plan, over), numbers=numbers,
        is_stopping=is_stopping, say=say,
    )  # fmt: skip
    scheduler = make_asha(plan, over) if stage == "trials" and plan.scheduler == "asha" else None
    run_trials(ledger, scheduler, folder, resources=resources, at_once=at_once)
