"""The report of a sweep: best settings, their confirmation, importance of each setting, all trials."""

from __future__ import annotations

import csv
import shlex
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from parcade.report.page import Block, Heading, Image, Page, Table, Text
from parcade.report.plots import figure_in
from parcade.sweep.importance import FEWEST_TRIALS, Importance, importances
from parcade.sweep.objective import CHECKS
from parcade.sweep.plan import SweepPlan
from parcade.sweep.space import Choice
from parcade.sweep.trials import Trial, best_first, results_of

PICTURE = "sweep.png"
COLOURS = {"finished": "tab:blue", "stopped": "tab:orange"}


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
        *_distribution(plan, trials),
        _trials_table(folder, plan, ordered),
    ]
    failed = [trial for trial in [*ordered, *confirmed] if trial.state == "failed"]
    if failed:
        rows = [[str(trial.number), _settings(trial), trial.reason] for trial in failed]
        blocks += [Heading("Failed trials"), Table(["trial", "settings", "reason"], rows, prose=True)]
    blocks += [Heading("Provenance"), _provenance(folder, plan, trials)]
    config = plan.config
    return Page(f"Sweep of {config.run.algorithm} on {config.game}", tuple(blocks))


def _summary(plan: SweepPlan, trials: list[Trial]) -> str:
    states = {
        state: sum(trial.state == state for trial in trials) for state in ("finished", "stopped", "failed")
    }
    counts = ", ".join(f"{count} {state}" for state, count in states.items() if count) or "none over"
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
    again = best_first([trial for trial in confirmed if trial.state == "finished"], plan.goal)
    best, blocks = finished[0], []
    if again:
        best = again[0]
        searched = {trial.number: trial for trial in finished}
        rows = [
            [
                str(trial.number), _number(searched[trial.number].value), _number(trial.value),
                ", ".join(map(str, trial.seeds)), _settings(trial),
            ]
            for trial in again if trial.number in searched
        ]  # fmt: skip
        headers = ["trial", "in the search", "with fresh seeds", "fresh seeds", "settings"]
        blocks = [
            Table(headers, rows),
            Text(
                "The search picks the best of many noisy values, so its own value of the winner is too good "
                "on average. The values with fresh seeds are not: quote these."
            ),
        ]
    else:
        blocks = [
            Text("Not confirmed with fresh seeds: the value below is too good on average (--confirm 3).")
        ]
        blocks.append(Table(["trial", plan.goal.label], [[str(best.number), _number(best.value)]]))
    return [*blocks, Text(f"Train with the best settings: {_command(plan, best)}")]


def _command(plan: SweepPlan, trial: Trial) -> str:
    return shlex.join(["parcade", "train", *plan.command(trial.settings)])


def _importance_blocks(plan: SweepPlan, trials: list[Trial]) -> list[Block]:
    found, check = importances_of(plan, trials)
    if not found:
        return [Text(f"At least {FEWEST_TRIALS} trials with different values are needed.")]
    rows = [[each.name, f"{each.share:.2f}", f"{each.chance:.3f}"] for each in found]
    return [
        Table(["setting", "variance explained", "by chance"], rows),
        Text(
            f"Share of the variance of the trials' ranks, after {check / CHECKS:.0%} of the budget, that a "
            "fit of this setting alone explains (adjusted R^2); and the probability of such a fit if the "
            "setting had no effect. Effects of combinations are not counted."
        ),
    ]


def importances_of(plan: SweepPlan, trials: list[Trial]) -> tuple[list[Importance], int]:
    """Return the importances, and the check at which they compare: the last one that all trials reached."""
    over = [trial for trial in trials if trial.is_over]
    check = min((len(trial.values) for trial in over), default=0)
    known = [(t.settings, t.values[check - 1]) for t in over if check and t.values[check - 1] is not None]
    values = [value for _, value in known if value is not None]
    return importances(plan.axes, [settings for settings, _ in known], values), check


def _distribution(plan: SweepPlan, trials: list[Trial]) -> list[Block]:
    values = [trial.value for trial in trials if trial.state == "finished" and trial.value is not None]
    if not values:
        return []
    names = ("minimum", "lower quartile", "median", "upper quartile", "maximum")
    quartiles = np.percentile(values, [0, 25, 50, 75, 100])
    return [Table(["finished trials", *names], [[str(len(values)), *map(_number, quartiles)]])]


def _trials_table(folder: Path, plan: SweepPlan, ordered: list[Trial]) -> Table:
    best = pareto(folder, ordered)
    rows = []
    for trial in ordered:
        row = _row(folder, trial)
        rows.append([
            str(trial.number), trial.state, f"{trial.share:.0%}", _number(trial.value), _number(row["score"]),
            _number(row["cpu_seconds"]), "yes" if trial.number in best else "",
            *(_number(trial.settings[name]) for name in plan.axes),
        ])  # fmt: skip
    headers = ["trial", "state", "of budget", "objective", "score", "CPU s", "efficient", *plan.axes]
    return Table(headers, rows)


def _row(folder: Path, trial: Trial) -> dict[str, Any]:
    """Return score, CPU seconds and wall-clock seconds of a trial: means over its seeds."""
    results = results_of(folder, trial)
    row: dict[str, Any] = {}
    for name, key in (
        ("score", "score_mean"),
        ("cpu_seconds", "cpu_seconds"),
        ("wall_seconds", "wall_seconds"),
    ):
        known = [result[key] for result in results if result[key] is not None]
        row[name] = statistics.fmean(known) if known and len(known) == len(trial.seeds) else None
    return row


def pareto(folder: Path, trials: list[Trial]) -> set[int]:
    """Return the numbers of finished trials than which none is cheaper in CPU time and at least as good."""
    points = [(trial.number, _row(folder, trial)) for trial in trials if trial.state == "finished"]
    costs = [(n, row["cpu_seconds"], row["score"]) for n, row in points if None not in row.values()]
    front, best = set(), -np.inf
    for number, _, score in sorted(costs, key=lambda each: (each[1], -each[2])):
        if score > best:
            front.add(number)
            best = score
    return front


def write_csv(folder: Path, plan: SweepPlan, trials: list[Trial]) -> None:
    """Write ``trials.csv`` with one row per trial of the search."""
    with open(folder / "trials.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        columns = ["score", "cpu_seconds", "wall_seconds"]
        writer.writerow(["trial", "state", "share", "objective", *columns, "seeds", *plan.axes, "reason"])
        for trial in trials:
            row = _row(folder, trial)
            settings = [trial.settings[name] for name in plan.axes]
            seeds = " ".join(map(str, trial.seeds))
            writer.writerow([
                trial.number, trial.state, round(trial.share, 4), trial.value,
                *(row[name] for name in columns), seeds, *settings, trial.reason,
            ])  # fmt: skip


def draw(folder: Path, plan: SweepPlan, trials: list[Trial]) -> list[str]:
    """Draw the trials into one picture; return its name, or nothing if no trial has a value."""
    shown = [trial for trial in trials if trial.is_over and trial.value is not None]
    if not shown:
        return []
    columns = min(3, 2 + len(plan.axes))
    rows = -(-(2 + len(plan.axes)) // columns)
    with figure_in(folder / PICTURE, rows, columns, figsize=(4 * columns, 3 * rows), squeeze=False) as (
        _,
        axes,
    ):
        by_trial, by_cost, *by_setting = axes.flat
        _draw_by_trial(by_trial, plan, shown)
        _draw_by_cost(by_cost, folder, shown)
        for axis, name in zip(by_setting, plan.axes, strict=False):
            _draw_by_setting(axis, plan, name, shown)
        for axis in by_setting[len(plan.axes) :]:
            axis.axis("off")
        for axis in axes.flat:
            axis.grid(alpha=0.25)
        by_trial.legend(frameon=False, fontsize="small")
    return [PICTURE]


def _scatter(axis: Any, shown: list[Trial], x: list[float], y: list[float | None]) -> None:
    for state, colour in COLOURS.items():
        at = [i for i, trial in enumerate(shown) if trial.state == state]
        if at:
            axis.scatter([x[i] for i in at], [y[i] for i in at], s=16, c=colour, label=state)


def _draw_by_trial(axis: Any, plan: SweepPlan, shown: list[Trial]) -> None:
    _scatter(axis, shown, [trial.number for trial in shown], [trial.value for trial in shown])
    finished = [trial for trial in shown if trial.state == "finished"]
    best = np.maximum if plan.goal.mode == "max" else np.minimum
    line = best.accumulate([trial.value for trial in finished]) if finished else []
    axis.step([trial.number for trial in finished], line, where="post", lw=1, c="0.4", label="best so far")
    axis.set(title="search", xlabel="trial", ylabel=plan.goal.label)


def _draw_by_cost(axis: Any, folder: Path, shown: list[Trial]) -> None:
    rows = {trial.number: _row(folder, trial) for trial in shown}
    known = [trial for trial in shown if None not in rows[trial.number].values()]
    costs = [rows[trial.number]["cpu_seconds"] for trial in known]
    _scatter(axis, known, costs, [rows[trial.number]["score"] for trial in known])
    front = pareto(folder, shown)
    points = sorted((rows[n]["cpu_seconds"], rows[n]["score"]) for n in front)
    if points:
        axis.plot(*zip(*points, strict=True), lw=1, c="0.4")
    axis.set(
        title="score against cost; line: efficient trials", xlabel="CPU seconds per seed", ylabel="score"
    )


def _draw_by_setting(axis: Any, plan: SweepPlan, name: str, shown: list[Trial]) -> None:
    setting = plan.axes[name]
    values = [trial.settings[name] for trial in shown]
    y = [trial.value for trial in shown]
    if isinstance(setting, Choice):
        _scatter(axis, shown, [setting.coordinate(value) for value in values], y)
        axis.set_xticks(range(len(setting.values)), [str(value) for value in setting.values])
    else:
        _scatter(axis, shown, [float(value) for value in values if value is not None], y)
        if setting.log:
            axis.set_xscale("log")
    axis.set(title=name, xlabel=name, ylabel=plan.goal.label)


def _provenance(folder: Path, plan: SweepPlan, trials: list[Trial]) -> Text:
    results = [result for trial in trials for result in results_of(folder, trial)]
    commits = sorted({result["commit"] or "-" for result in results})
    machines = sorted({f"{r['machine']['cpu']}, {r['machine']['cores']} cores" for r in results})
    spent = sum(result["cpu_seconds"] for result in results)
    command = shlex.join([*plan.training, "--space", *plan.space])
    return Text(
        f"Commit {', '.join(commits) or '-'}; {'; '.join(machines) or '-'}; {spent:,.0f} CPU seconds in the "
        f"search. Command: parcade sweep {command} --search {plan.search} --scheduler {plan.scheduler} "
        f"--objective {plan.objective} --trials {plan.trials} --budget {plan.budget} "
        f"--seeds {','.join(map(str, plan.seeds))} --search-seed {plan.search_seed}"
    )


def _settings(trial: Trial) -> str:
    return " ".join(f"{name}={value}" for name, value in trial.settings.items())


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
