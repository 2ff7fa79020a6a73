"""The report of a sweep: best settings, their confirmation, importance of each setting, all trials."""

from __future__ import annotations

import csv
import shlex
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from parcade.report.page import Block, Heading, Image, Page, Table, Text
from parcade.sweep.importance import FEWEST_TRIALS, Importance, importances
from parcade.sweep.objective import CHECKS
from parcade.sweep.plan import SweepPlan
from parcade.sweep.trials import Trial, best_first, efficient_trials, measured, results_of


def sweep_page(
    folder: Path, plan: SweepPlan, trials: list[Trial], confirmed: list[Trial], *, images: list[str]
) -> Page:
    """Return the report of these trials of the search and of its confirmation."""
    ordered = best_first(trials, plan.goal)
    blocks: list[Block] = [Text(_summary(plan, trials))]
    blocks += [Heading("Best settings"), *_best(plan, ordered, confirmed)]
    blocks += [Heading("Importance of the settings"), *_importance_blocks(plan, trials)]
    blocks += [
        Image(name, "objective by trial, score against CPU time, objective by setting") for name in images
    ]
    blocks += [
        Heading("Trials of the search"),
        *_distribution(trials),
        _trials_table(folder, plan, ordered),
    ]
    failed = [
        [str(trial.number), _settings(trial), trial.reason] for trial in ordered if trial.state == "failed"
    ]
    failed += [
        [f"{trial.number}, confirmation with seed {trial.seeds[0]}", _settings(trial), trial.reason]
        for trial in confirmed
        if trial.state == "failed"
    ]
    if failed:
        blocks += [Heading("Failed trials"), Table(["trial", "settings", "reason"], failed, prose=True)]
    blocks += [Heading("Provenance"), _provenance(folder, plan, trials)]
    config = plan.config
    return Page(f"Sweep of {config.run.algorithm} on {config.game}", tuple(blocks))


def _summary(plan: SweepPlan, trials: list[Trial]) -> str:
    names = {"finished": "finished", "stopped": "stopped", "failed": "failed", "started": "not over"}
    states = {name: sum(trial.state == state for trial in trials) for state, name in names.items()}
    counts = ", ".join(f"{count} {state}" for state, count in states.items() if count) or "none started"
    goal = "highest" if plan.goal.mode == "max" else "lowest"
    return (
        f"{len(trials)} of {plan.trials} trials: {counts}. Objective: {plan.goal.label}, the {goal} is best, "
        f"mean over seed(s) {', '.join(map(str, plan.seeds))}. {plan.budget} per training. "
        f"Search: {plan.search}; scheduler: {plan.scheduler}."
    )


def _best(plan: SweepPlan, ordered: list[Trial], confirmed: list[Trial]) -> list[Block]:
    """Return the confirmation's table, if there is one, and the command of the best settings."""
    finished = [trial for trial in ordered if trial.state == "finished"]
    if not finished:
        return [Text("No trial has finished.")]
    again = _confirmations(plan, finished, confirmed)
    best = finished[0]
    if again:
        complete = [trial for trial, _, by_seed in again if len(by_seed) >= plan.confirm_seeds]
        best = next(iter(complete), None)
        rows = [
            [str(trial.number), _number(trial.value), _number(mean), _listed(by_seed), _settings(trial)]
            for trial, mean, by_seed in again
        ]
        table = Table(["trial", "in the search", "with fresh seeds", "each fresh seed", "settings"], rows)
        note = (
            "The search picks the best of many noisy values, so its own value of the winner is too good on "
            "average. The means with fresh seeds are free of that choice. The first row is the best of these "
            "few means, so it is still a little too good where several trials are alike: quote all rows."
        )
        if len(complete) < len(again):
            fewer = f"Trials with fewer than {plan.confirm_seeds} fresh seeds"
            note += f" {fewer} come last, because failed seeds are in no mean."
    else:
        table = Table(["trial", plan.goal.label], [[str(best.number), _number(best.value)]])
        note = "Not confirmed with fresh seeds, so this value is too good on average; use --confirm 3."
    if best is None:
        return [table, Text(note), Text("No trial has finished all fresh seeds, so none is recommended.")]
    return [table, Text(note), Text(f"Train with the best settings: {_command(plan, best)}")]


def _confirmations(
    plan: SweepPlan, finished: list[Trial], confirmed: list[Trial]
) -> list[tuple[Trial, float, dict[int, float]]]:
    """Return the confirmed trials, the best first, with their means and their values by fresh seed.

    Trials of which a fresh seed is missing or has failed come after all others: the seeds that a bad setting
    survives say too much good of it.
    """
    found = []
    for trial in finished:
        by_seed = {
            again.seeds[0]: again.value
            for again in confirmed
            if (again.number, again.settings) == (trial.number, trial.settings)
            and again.state == "finished"
            and again.value is not None
        }
        if by_seed:
            found.append((trial, statistics.fmean(by_seed.values()), by_seed))
    sign = -1 if plan.goal.mode == "max" else 1
    return sorted(found, key=lambda each: (len(each[2]) < plan.confirm_seeds, sign * each[1]))


def _listed(by_seed: dict[int, float]) -> str:
    return ", ".join(f"{seed}: {_number(value)}" for seed, value in sorted(by_seed.items()))


def _command(plan: SweepPlan, trial: Trial) -> str:
    return shlex.join(["parcade", "train", *plan.command(trial.settings)])


def _importance_blocks(plan: SweepPlan, trials: list[Trial]) -> list[Block]:
    found, check = importances_of(plan, trials)
    if not found:
        return [Text(f"At least {FEWEST_TRIALS} trials with different values are needed.")]
    rows = [[each.name, f"{each.share:.2f}", _chance(each.chance)] for each in found]
    return [
        Table(["setting", "variance explained", "by chance"], rows),
        Text(
            f"Share of the variance of the trials' ranks, after {check / CHECKS:.0%} of the budget, that a "
            "fit of this setting alone explains (adjusted R^2); and the probability of such a fit if the "
            "setting had no effect. Effects of combinations are not counted."
        ),
    ]


def _chance(chance: float) -> str:
    """Return a probability with three decimals. The least one, 0.0005, is not zero."""
    return "< 0.001" if chance < 0.001 else f"{chance:.3f}"


def importances_of(plan: SweepPlan, trials: list[Trial]) -> tuple[list[Importance], int]:
    """Return the importances, and the check at which they compare: the last one that all trials reached."""
    over = [trial for trial in trials if trial.is_over]
    check = min((len(trial.values) for trial in over), default=0)
    known = [(t.settings, t.values[check - 1]) for t in over if check and t.values[check - 1] is not None]
    values = [value for _, value in known if value is not None]
    return importances(plan.axes, [settings for settings, _ in known], values), check


def _distribution(trials: list[Trial]) -> list[Block]:
    values = [trial.value for trial in trials if trial.state == "finished" and trial.value is not None]
    if not values:
        return []
    names = ("minimum", "lower quartile", "median", "upper quartile", "maximum")
    quartiles = np.percentile(values, [0, 25, 50, 75, 100])
    return [Table(["finished trials", *names], [[str(len(values)), *map(_number, quartiles)]])]


def _trials_table(folder: Path, plan: SweepPlan, ordered: list[Trial]) -> Table:
    cheapest = efficient_trials(folder, ordered)
    rows = []
    for trial in ordered:
        row = measured(folder, trial)
        rows.append([
            str(trial.number), trial.state, f"{trial.share:.0%}", _number(trial.value),
            _number(row["score_mean"]), _number(row["cpu_seconds"]),
            "yes" if trial.number in cheapest else "",
            *(_setting(trial.settings[name]) for name in plan.axes),
        ])  # fmt: skip
    headers = ["trial", "state", "of budget", "objective", "score", "CPU s", "efficient", *plan.axes]
    return Table(headers, rows)


def write_csv(folder: Path, plan: SweepPlan, trials: list[Trial]) -> None:
    """Write ``trials.csv`` with one row per trial of the search."""
    with open(folder / "trials.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        columns = ["score_mean", "cpu_seconds", "wall_seconds"]
        writer.writerow(["trial", "state", "share", "objective", *columns, "seeds", *plan.axes, "reason"])
        for trial in trials:
            row = measured(folder, trial)
            settings = [trial.settings[name] for name in plan.axes]
            seeds = " ".join(map(str, trial.seeds))
            writer.writerow([
                trial.number, trial.state, round(trial.share, 4), trial.value,
                *(row[name] for name in columns), seeds, *settings, trial.reason,
            ])  # fmt: skip


def _provenance(folder: Path, plan: SweepPlan, trials: list[Trial]) -> Text:
    results = [result for trial in trials for result in results_of(folder, trial)]
    commits = sorted({result["commit"] or "-" for result in results})
    machines = sorted({f"{r['machine'].get('cpu')}, {r['machine'].get('cores')} cores" for r in results})
    spent = sum(result["cpu_seconds"] for result in results)
    command = shlex.join([*plan.training, "--space", *plan.space])
    first = plan.seeds == tuple(range(len(plan.seeds)))
    seeds = len(plan.seeds) if first else ",".join(map(str, plan.seeds))
    return Text(
        f"Commit {', '.join(commits) or '-'}; {'; '.join(machines) or '-'}; {spent:,.0f} CPU seconds in the "
        f"search. Command: parcade sweep {command} --search {plan.search} --scheduler {plan.scheduler} "
        f"--objective {plan.objective} --trials {plan.trials} --budget {plan.budget} "
        f"--seeds {seeds} --search-seed {plan.search_seed} --confirm {plan.confirm} "
        f"--confirm-seeds {plan.confirm_seeds}"
    )


def _settings(trial: Trial) -> str:
    return " ".join(f"{name}={value}" for name, value in trial.settings.items())


def _setting(value: Any) -> str:
    """Return a setting with all its digits, by which the trials of a narrow span differ."""
    return "-" if value is None else str(value).removesuffix(".0")


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
