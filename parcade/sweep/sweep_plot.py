"""One picture of a sweep: objective by trial, score against cost, objective by setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from parcade.report.plots import figure_in
from parcade.sweep.plan import SweepPlan
from parcade.sweep.space import Choice
from parcade.sweep.trials import Trial, efficient_trials, measured

PICTURE = "sweep.png"
COLOURS = {"finished": "tab:blue", "stopped": "tab:orange"}


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
        by_trial.locator_params(axis="x", integer=True)
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
    rows = {trial.number: measured(folder, trial) for trial in shown}
    known = [trial for trial in shown if None not in rows[trial.number].values()]
    costs = [rows[trial.number]["cpu_seconds"] for trial in known]
    _scatter(axis, known, costs, [rows[trial.number]["score_mean"] for trial in known])
    front = efficient_trials(folder, shown)
    points = sorted((rows[n]["cpu_seconds"], rows[n]["score_mean"]) for n in front)
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
        elif setting.whole:
            axis.locator_params(axis="x", integer=True)
    axis.set(title=name, xlabel=name, ylabel=plan.goal.label)
