"""``parcade sweep``: search for good settings of a training, and report which ones matter."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from parcade.commands.reports import check_installed, given_flag, refuse_flags, report_in
from parcade.errors import UsageError
from parcade.ranges import Natural, NonNegative, Range, check_ranges

if TYPE_CHECKING:
    from parcade.sweep.plan import SweepPlan

MOST_TRIALS, MOST_SEEDS = 100_000, 1000  # more would fill the memory before the first trial starts
SET_BY_SWEEP = {
    "--seed": "--seeds", "--run-dir": "--dir", "--resume": "--dir",
    "--target-score": "--objective cpu_seconds_to:SCORE",
}  # fmt: skip


@dataclass(frozen=True)
class SweepFlags:
    """Flags of the sweep itself; all others are flags of parcade train.

    The same command continues an interrupted sweep. More trials or confirmations extend it.
    """

    space: tuple[str, ...] = ()
    """What varies: NAME=LOW..HIGH, NAME=log:LOW..HIGH or NAME=A,B,C, separated by spaces, e.g.
    learning_rate=log:1e-4..1e-2 epochs=1..4 num_minibatches=2,4,8."""
    search: Literal["random", "optuna"] = "random"
    """How settings are chosen: at random, or by Optuna's TPE from the results so far."""
    scheduler: Literal["none", "asha"] = "none"
    """asha stops trials that fall behind after 1/9 or 1/3 of their budget."""
    objective: str = "score"
    """score: final mean score of the last 100 episodes. cpu_seconds_to:SCORE: CPU seconds to this score."""
    trials: Annotated[int, Range(1, MOST_TRIALS)] = 20
    """Number of trials."""
    budget: str = "1M-steps"
    """Length of each training: 1M-steps, 4M-frames, or 10m, which ends earlier at --total-frames."""
    seeds: str = "1"
    """Number of seeds of each trial, or a list, e.g. 5,6,7. A trial counts with their mean."""
    search_seed: Natural = 0
    """Seed of the search."""
    confirm: Annotated[int, Range(0, MOST_TRIALS)] = 3
    """Number of best trials to train again with seeds that the search has not used; 0 leaves it out."""
    confirm_seeds: Annotated[int, Range(1, MOST_SEEDS)] = 3
    """Number of these seeds."""
    concurrent: Natural = 0
    """Trials at once; 0 runs as many as the cores allow, with one core per seed."""
    gpus: NonNegative = 1.0
    """GPUs that each trial reserves with --device cuda; trials with 0.5 share one."""
    address: str = ""
    """Ray cluster to use: auto, or host:port. Empty starts one on this machine."""
    dir: str = ""
    """Directory of the sweep; empty uses sweeps/GAME-ALGORITHM."""
    report_only: str = ""
    """Report on the existing sweep in this directory, without training."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.report_only:
            refuse_flags(self, ("report_only",), "is that of the sweep with --report-only")


OWN = tuple(name.replace("_", "-") for name in SweepFlags.__dataclass_fields__)


def sweep(arguments: list[str]) -> int:
    """``parcade sweep``."""
    from parcade.flags import parse, split_flags

    space, arguments = _space_of(arguments)
    own, training = split_flags(arguments, OWN)
    if own[-1:] == ["--help"]:
        print("usage: parcade sweep GAME [flags of parcade train] --space NAME=VALUES ... [flags below]\n")
    flags = parse(SweepFlags, ["--space", *space, *own] if space else own, prog="parcade sweep")
    check_installed(("matplotlib", "scipy"), "reports", "parcade sweep")
    if flags.report_only:
        if training:
            raise UsageError(f"{training[0]}: --report-only takes no flags of a training; leave it out")
        return _report(Path(flags.report_only))
    check_installed(("ray", "pandas", "pyarrow"), "sweep", "parcade sweep")
    if flags.search == "optuna":
        check_installed(("optuna",), "sweep", "--search optuna")
    return _run(flags, _plan(flags, training))


def _space_of(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split off the words after every ``--space``, up to the next flag or a word without ``=``."""
    space: list[str] = []
    rest: list[str] = []
    inside = False
    for word in arguments:
        name, equals, value = word.partition("=")
        if name == "--space":
            inside = True
            space += [value] if equals else []
        elif inside and not word.startswith("-") and (equals or not space):
            space.append(word)
        else:
            inside = False
            rest.append(word)
    return space, rest


def _plan(flags: SweepFlags, training: list[str]) -> SweepPlan:
    """Return the sweep of the flags, with every value checked. Errors: UsageError."""
    from parcade.suite.plan import budget_flags, seeds_of, set_by_budget
    from parcade.sweep.objective import parse_objective
    from parcade.sweep.plan import SweepPlan
    from parcade.training_flags import parse_training

    if not training:
        raise UsageError("no game; expected parcade sweep GAME --space learning_rate=log:1e-4..1e-2")
    budget_flags(flags.budget)
    instead = SET_BY_SWEEP | dict.fromkeys(set_by_budget(flags.budget), "--budget")
    if flag := given_flag(training, tuple(instead)):
        raise UsageError(f"parcade sweep sets {flag} itself; use {instead[flag]}")
    parse_objective(flags.objective)
    parse_training(training, OWN)  # here, so that a misspelt flag of the sweep is named as one
    plan = SweepPlan(
        training=tuple(training),
        space=flags.space,
        search=flags.search,
        scheduler=flags.scheduler,
        objective=flags.objective,
        budget=flags.budget,
        seeds=seeds_of(flags.seeds),
        search_seed=flags.search_seed,
        trials=flags.trials,
        confirm=flags.confirm,
        confirm_seeds=flags.confirm_seeds,
    )
    if flags.gpus != SweepFlags.gpus and plan.config.run.device != "cuda":
        raise UsageError(
            f"gpus={flags.gpus:g} is for trainings with --device cuda; add that, or leave it out"
        )
    plan.check(on_this_machine=not flags.address)
    for name in plan.axes:  # not refused, because sweeps of earlier versions have such flags in their plans
        flag = f"--{name.replace('_', '-')}"
        if given_flag(training, (flag, flag.replace("--", "--no-", 1))):
            print(f"note: --space searches {flag}; its value in the command is not used", file=sys.stderr)
    return plan


def _run(flags: SweepFlags, plan: SweepPlan) -> int:
    from parcade.envs.games import file_word
    from parcade.files.outputs import say_line
    from parcade.sweep.sweeping import Room, run_sweep

    config = plan.config
    folder = Path(flags.dir or f"sweeps/{file_word(config.game)}-{config.run.algorithm}")
    room = Room(flags.address, flags.concurrent, flags.gpus if config.run.device == "cuda" else 0.0)
    try:
        run_sweep(folder, plan, room, say_line)
    except KeyboardInterrupt:
        print(f"stopped; the same command continues the sweep in {folder}")
        raise
    return _report(folder)


def _report(folder: Path) -> int:
    """Write the report and print it: last, since the reader may have left. Return 1 if a trial has failed."""
    from parcade.report.page import to_text, write_page
    from parcade.sweep.plan import read_sweep
    from parcade.sweep.sweep_page import sweep_page, write_csv
    from parcade.sweep.sweep_plot import draw
    from parcade.sweep.trials import read_trials

    plan = read_sweep(folder)
    trials = read_trials(folder, "trials", plan.axes)
    confirmed = read_trials(folder, "confirmations", plan.axes)
    with report_in(folder):
        write_csv(folder, plan, trials)
        page = sweep_page(folder, plan, trials, confirmed, images=draw(folder, plan, trials))
    try:
        with report_in(folder):
            write_page(page, folder)
    finally:
        print(to_text(page))
    print(f"report: {folder / 'report.html'}, {folder / 'report.md'}; trials: {folder / 'trials.csv'}")
    return 1 if any(trial.state == "failed" for trial in [*trials, *confirmed]) else 0
