"""``parcade train --resume``: which settings may change, and taking over the directory of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from parcade.cluster.signals import STOP_FILE
from parcade.errors import UsageError
from parcade.files.locks import Held, training_in
from parcade.files.outputs import why_not_writable
from parcade.zoo import is_in_zoo

if TYPE_CHECKING:
    from parcade.config import TrainConfig

LOCK_SECONDS = 120.0
"""How long a file server may keep the lock of a host that has crashed. NFS does for 90 s by default."""


DATA_PARALLEL = ("local", "serial", "mpi")
"""Engines whose checkpoints have one form: states of environments per rank."""
UNCHANGED = float("nan")
"""Default of a setting that may be changed to None, told from other numbers by identity."""
# The help shows this text as the default.
NewText = Annotated[str | None, "unchanged"]
NewNumber = Annotated[float | None, "unchanged"]


@dataclass(frozen=True)
class ResumeFlags:
    """Resume a run from its newest checkpoint. The settings below may change; others keep their values."""

    resume: str
    """The run's directory."""
    engine: NewText = None
    """New engine of a run without actors and learners: local, serial or mpi."""
    ranks: Annotated[int | None, "unchanged"] = None
    """New number of ranks of the mpi engine. The environments are divided again and play on."""
    hang_timeout: NewText = None
    """New hang timeout: end the job when no rank makes progress for this long."""
    hosts: NewText = None
    """New host file."""
    network_interface: NewText = None
    """New interface or network."""
    total_frames: Annotated[int | None, "unchanged"] = None
    """New total number of frames; schedules span it."""
    target_score: NewNumber = UNCHANGED
    """New target score; None removes it."""
    time_limit: NewText = None
    """New time limit, counted from the run's first start."""
    keep_policy_frames: Annotated[int | None, "unchanged"] = None
    """New number of frames between policies that are kept for good; 0 keeps no more."""
    address: NewText = None
    """New Ray cluster to join."""
    interface: NewText = None
    """New network interface of this node."""
    actor_cpus: NewNumber = None
    """New number of CPUs that each actor reserves."""
    actor_gpus: NewNumber = None
    """New number of GPUs that each actor reserves."""
    learner_cpus: NewNumber = None
    """New number of CPUs that each learner reserves."""
    learner_gpus: NewNumber = None
    """New number of GPUs that each learner reserves."""
    shard_cpus: NewNumber = None
    """New number of CPUs that each shard reserves."""
    env: str = ""
    """The run's environment, if it is your own: MODULE:ID. Its module is imported only if named here."""


@dataclass(frozen=True)
class Start:
    """What a start of a training needs."""

    config: TrainConfig
    arguments: list[str]
    """Those of ``parcade train`` that give its ranks the same config."""
    run: Path | None = None
    """The run to resume; None begins a new one."""
    used_seconds: float = 0.0
    """Wall clock of the run's earlier starts, which its time limit includes."""


def resume_flags(arguments: list[str]) -> ResumeFlags:
    from parcade.flags import parse

    if any(word in ("-h", "--help") for word in arguments):
        arguments = ["--help"]
    try:
        return parse(ResumeFlags, arguments, prog="parcade train --resume")
    except UsageError as error:
        taken = ", ".join(f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(ResumeFlags)[1:])
        raise UsageError(
            f"{error} (a resumed run keeps its game and settings; --resume DIR can be combined with {taken})"
        ) from None


@contextlib.contextmanager
def resumed(flags: ResumeFlags) -> Iterator[Start]:
    """Take over a run for the block. Errors: UsageError when it cannot be resumed."""
    from parcade.cluster import ranks
    from parcade.config import load_config

    run = Path(flags.resume)
    if is_in_zoo(run):
        raise UsageError(f"{run} is a trained agent, not a run; to train on from it, use --from {run}")
    config = load_config(run, flags.env)
    with contextlib.ExitStack() as stack:
        if not ranks.is_rank_of(flags.engine or config.run.engine):
            stack.enter_context(taken_over(run))  # first: a running one may not have a checkpoint yet
        yield start_of(run, config, flags)


def start_of(run: Path, config: TrainConfig, flags: ResumeFlags) -> Start:
    """Return how to start a run that this process has taken over, or one of its ranks. Changes nothing.

    Errors: UsageError for a run that has finished, or has no usable checkpoint.
    """
    from parcade.cluster import ranks
    from parcade.config import CHANGED_BY_RESUMING
    from parcade.files.run_directory import newest_checkpoint

    is_rank = ranks.is_rank_of(flags.engine or config.run.engine)
    progress = newest_checkpoint(run, check_files=not is_rank)[1]["progress"]
    given = {
        field.name: getattr(flags, field.name)
        for field in dataclasses.fields(flags)
        if getattr(flags, field.name) is not field.default
    }
    if given.get("engine") == config.run.engine:  # as the scripts of parcade slurm repeat it
        del given["engine"]
    if "engine" in given:
        _check_engine(config, given["engine"])
        if given["engine"] != "mpi":  # one process
            given.setdefault("ranks", 1)
    changes = {
        section: {name: given[name] for name in names if name in given}
        for section, names in CHANGED_BY_RESUMING.items()
    }
    # The checkpoint has the weights: the agent that the run started from may no longer exist.
    config = dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, **changes["run"], from_agent=""),
        topology=dataclasses.replace(config.topology, **changes["topology"]),
    )
    if "ranks" in given:
        _check_ranks(config)
    if progress["frames"] >= config.run.total_frames and (run / "result.json").exists():
        raise UsageError(
            f"{run} has already played {progress['frames']:,} of {config.run.total_frames:,} frames; "
            "to continue, set a higher --total-frames"
        )
    _refuse_finished(run, config)
    arguments = ["--resume", str(run), *(["--env", flags.env] if flags.env else [])]
    for name, value in changes["run"].items():  # of ranks; parts are started by this process
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    return Start(config, arguments, run, progress["wall_seconds"])


def _check_engine(config: TrainConfig, engine: str) -> None:
    """Check that a run can go on with another engine. Errors: UsageError."""
    if engine not in DATA_PARALLEL:
        raise UsageError(f"engine={engine}: a run can change to {', '.join(DATA_PARALLEL)}; use one of these")
    if config.is_topology:
        raise UsageError(
            f"{config.run.algorithm} on engine {config.run.engine} has actors and learners, "
            "whose engine cannot be changed; leave out --engine"
        )


def _check_ranks(config: TrainConfig) -> None:
    """Check that a run can be divided among its new number of ranks. Errors: UsageError."""
    from parcade.config import check_divisible

    try:
        check_divisible(config, config.run.ranks)
    except UsageError as error:
        refused = str(error).partition("; ")[0]
        raise UsageError(f"{refused}; a resumed run keeps its settings, so use another --ranks") from None


def _refuse_finished(run: Path, config: TrainConfig) -> None:
    """Reject a run that would end at once by its target score or time limit. Errors: UsageError."""
    from parcade.files.run_directory import read_result

    if not (run / "result.json").exists():
        return
    result = read_result(run, needs_all=False)  # earlier versions wrote fewer fields
    wanted, limit = config.run.target_score, config.run.time_limit_seconds
    reason, score = result.get("finished_by"), result.get("score_mean")
    if reason == "target_score" and wanted is not None and score is not None and score >= wanted:
        raise UsageError(
            f"{run} is finished: its mean score of {score:.2f} reached {wanted:g}; "
            "to continue, set a higher --target-score, or None"
        )
    # A run that was stopped may pass its limit while it saves, and still be resumed.
    if reason != "stopped" and limit is not None and result.get("wall_seconds", 0.0) >= limit:
        spent = result["wall_seconds"]
        raise UsageError(
            f"{run} is finished: it has run for {spent:.0f} s of {config.run.time_limit}; "
            "to continue, set a longer --time-limit"
        )


@contextlib.contextmanager
def taken_over(run: Path) -> Iterator[None]:
    """Lock a run's directory and remove checkpoints that its last start did not complete.

    Errors: UsageError while the run is still active.
    """
    from parcade.checkpoint import remove_unfinished

    _refuse_running(run)
    if reason := why_not_writable(run):
        raise UsageError(f"run directory {run} cannot be written ({reason}); resume a copy of it")
    with contextlib.ExitStack() as stack:
        _lock_patiently(run, stack)
        remove_unfinished(run)
        yield


def _refuse_running(run: Path) -> None:
    """Refuse a run that is still active. Errors: UsageError."""
    from parcade.cluster.processes import still_running

    record = still_running(run)
    if record is not None:
        raise UsageError(
            f"{run} is still running ({record.name}, {record.place}); "
            f"let it save and stop with: touch {run / STOP_FILE}"
        )


def _lock_patiently(run: Path, stack: contextlib.ExitStack) -> None:
    """Lock a run's directory, and wait for a lock whose holder does not seem to run.

    It may be starting, or its host has crashed. Errors: UsageError.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    is_waiting = False
    while True:
        try:
            stack.enter_context(training_in(run))
            return
        except Held:
            if time.monotonic() > deadline:
                raise
        if not is_waiting:
            print(f"parcade: {run} is locked; waiting for up to {LOCK_SECONDS:.0f} s ...", file=sys.stderr)
            is_waiting = True
        time.sleep(1.0)
        _refuse_running(run)
