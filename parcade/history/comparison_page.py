"""A comparison as a page, a picture of its curves, a CSV file and a JSON object."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parcade.history.bands import Band, band
from parcade.history.comparison import Group, Outcome, Question
from parcade.report.metrics import METRICS
from parcade.report.page import Block, Heading, Image, Page, Text, table_of
from parcade.report.plots import figure_in
from parcade.report.terminal import clock, human

CURVES = "curves.png"
SAME_END = 0.05
"""Ends that differ by less than this fraction count as one."""


def comparison_page(groups: Sequence[Group], question: Question, images: Sequence[str] = ()) -> Page:
    """Return the page: a table of groups for each game, then every run."""
    at = "at the end" if question.at is None else f"at {_shown_x(question.at, question.x)}"
    meaning = METRICS.get(question.metric, "")
    note = (
        "Runs of a group differ only by their seed and where they end. Intervals: 95 % of the mean over "
        "runs, Student's t. Frames, frames/s and CPU-min are medians."
    )
    blocks: list[Block] = [Text(f"{question.metric}: {meaning}. {note}" if meaning else note)]
    for game in dict.fromkeys(group.game for group in groups):
        of_game = [group for group in groups if group.game == game]
        blocks += [Heading(game or "no game"), table_of(of_game, _group_columns(question))]
        blocks += [Text(line) for line in [*_ends(of_game, question), *_repeated(of_game)]]
    blocks += [Image(name, "mean curves, with intervals from two runs on") for name in images]
    blocks += [Heading("Runs"), table_of(_rows(groups), _run_columns(question))]
    return Page(f"{question.metric} {at}", tuple(blocks))


def _group_columns(question: Question) -> dict[str, Callable[[Group], str]]:
    columns: dict[str, Callable[[Group], str]] = {
        "settings": lambda group: group.label,
        "runs": lambda group: _of(len(group.values), len(group.outcomes)),
        question.metric: lambda group: _shown(group.mean),
        "95 % interval": lambda group: " to ".join(map(_shown, group.interval or ())),
        "lowest": lambda group: _shown(min(group.values, default=math.nan)),
        "highest": lambda group: _shown(max(group.values, default=math.nan)),
        "frames": lambda group: _median(group, lambda outcome: outcome.frames),
        "frames/s": lambda group: _median(group, lambda outcome: outcome.frames_per_second),
        "CPU-min": lambda group: _median(group, lambda outcome: outcome.cpu_seconds / 60),
    }
    if question.target is not None:
        target, axis = f"{question.target:g}", question.x.replace("_", " ")
        columns[f"reached {target}"] = lambda group: _of(len(group.reached_at), len(group.outcomes))
        columns[f"{axis} to {target}, median"] = lambda group: _reached(group, question.x)
    return columns


def _run_columns(question: Question) -> dict[str, Callable[[tuple[Group, Outcome]], str]]:
    return {
        "run": lambda row: row[1].run.name,
        "settings": lambda row: row[0].label,
        "seed": lambda row: "" if row[1].run.seed is None else str(row[1].run.seed),
        "status": lambda row: row[1].run.status,
        "frames": lambda row: _count(row[1].frames),
        question.metric: lambda row: _shown(row[1].value),
    }


def _rows(groups: Sequence[Group]) -> list[tuple[Group, Outcome]]:
    return [(group, outcome) for group in groups for outcome in group.outcomes]


def _ends(groups: Sequence[Group], question: Question) -> list[str]:
    """Say if values are of different lengths of training, or some runs have none."""
    outcomes = [outcome for _, outcome in _rows(groups)]
    if question.at is not None:
        without = [outcome.run.name for outcome in outcomes if math.isnan(outcome.value)]
        return [f"Without a value there, and left out: {', '.join(without)}."] if without else []
    ends = [float(outcome.x[-1]) for outcome in outcomes if len(outcome.x)]
    if not ends or min(ends) >= (1 - SAME_END) * max(ends):
        return []
    axis = question.x.replace("_", " ")
    first, last = (_shown_x(end, question.x) for end in (min(ends), max(ends)))
    return [
        f"These runs end between {first} and {last} ({axis}); "
        f"--at {max(1, math.floor(min(ends)))} compares them where all have arrived."
    ]


def _repeated(groups: Sequence[Group]) -> list[str]:
    """Say where an interval counts runs of the same seed as independent ones."""
    return [
        f"{group.label}: several runs have the seed {', '.join(map(str, group.repeated_seeds))}; "
        "the interval counts each as a run of its own."
        for group in groups
        if group.repeated_seeds
    ]


def _median(group: Group, number: Callable[[Outcome], float]) -> str:
    known = [value for outcome in group.outcomes if not math.isnan(value := number(outcome))]
    return _count(float(np.median(known)) if known else math.nan)


def _count(value: float) -> str:
    return "" if math.isnan(value) else human(value)


def _reached(group: Group, x: str) -> str:
    reached = group.reached_at
    if not len(reached):
        return ""
    shown = _shown_x(float(np.median(reached)), x)
    lowest, highest = (_shown_x(float(each), x) for each in (reached.min(), reached.max()))
    return shown if lowest == highest else f"{shown} ({lowest} to {highest})"


def _of(some: int, every: int) -> str:
    return str(every) if some == every else f"{some} of {every}"


def _shown(value: float) -> str:
    """Return a value with at least three digits, and at most three decimals unless it is very small."""
    size = abs(value)
    if math.isnan(value):
        return ""
    if 0 < size < 0.01:
        return f"{value:.3g}"
    return f"{value:,.{3 if 0 < size < 1 else 2 if size < 100 else 1}f}"


def _shown_x(value: float, x: str) -> str:
    return clock(value) if x.endswith("seconds") else human(value)


def mean_curve(group: Group) -> Band | None:
    """Return the mean over a group's runs as far as all of them reach; one run is its own mean."""
    curves = [(outcome.x, outcome.y) for outcome in group.outcomes if len(outcome.x)]
    if len(curves) != 1:
        return band(curves)
    ((x, y),) = curves
    return Band(x, y, np.full(len(y), np.nan), np.full(len(y), np.nan))


def write_curves(groups: Sequence[Group], question: Question, path: Path) -> None:
    """Write the mean curves as CSV; a single run has no interval."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["game", "settings", "runs", question.x, question.metric, "low", "high"])
        for group in groups:
            curve = mean_curve(group)
            if curve is None:
                continue
            runs = sum(len(outcome.x) > 0 for outcome in group.outcomes)
            for point in zip(*(values.tolist() for values in curve), strict=True):
                numbers = ["" if math.isnan(value) else f"{value:.10g}" for value in point]
                writer.writerow([group.game, group.label, runs, *numbers])


def draw_curves(groups: Sequence[Group], question: Question, path: Path) -> None:
    """Draw the curves of each game: means with their intervals, and every run as a thin line."""
    games = list(dict.fromkeys(group.game for group in groups))
    columns = min(3, len(games))
    rows = -(-len(games) // columns)
    size = (7.2, 4.2) if len(games) == 1 else (4.2 * columns, 3.2 * rows)
    with figure_in(path, rows, columns, dpi=130, figsize=size, squeeze=False) as (_, axes):
        from matplotlib.ticker import EngFormatter

        for axis, game in zip(axes.flat, games, strict=False):
            for i, group in enumerate(group for group in groups if group.game == game):
                _draw_group(axis, group, f"C{i % 10}")
            if question.target is not None:
                axis.axhline(question.target, color="0.4", lw=0.8, ls="--")
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
            axis.set(title=game, xlabel=question.x.replace("_", " "), ylabel=question.metric)
            axis.grid(alpha=0.25)
            axis.legend(frameon=False, fontsize="small")
        for axis in axes.flat[len(games) :]:
            axis.axis("off")


def _draw_group(axis: Any, group: Group, colour: str) -> None:
    curve = mean_curve(group)
    several = len(group.outcomes) > 1
    if several or curve is None:
        for outcome in group.outcomes:
            axis.plot(outcome.x, outcome.y, color=colour, lw=0.7, alpha=0.4)
    label = f"{group.label} (mean of {len(group.outcomes)})" if several else group.label
    if curve is None:
        axis.plot([], [], color=colour, label=label)
        return
    axis.plot(curve.x, curve.y, color=colour, lw=1.8, label=label)
    axis.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, lw=0)


def to_json(groups: Sequence[Group], question: Question) -> dict[str, Any]:
    """Return the comparison as an object; numbers that are unknown are None."""
    return {
        "metric": question.metric,
        "x": question.x,
        "at": question.at,
        "target": question.target,
        "groups": [
            {
                "game": group.game,
                "settings": group.label,
                "mean": _or_none(group.mean),
                "interval": group.interval,
                "runs": [_run_to_json(outcome) for outcome in group.outcomes],
            }
            for group in groups
        ],
    }


def _run_to_json(outcome: Outcome) -> dict[str, Any]:
    run = outcome.run
    numbers = ("value", "reached_at", "frames", "wall_seconds", "cpu_seconds")
    return {
        "run": run.name,
        "algorithm": run.algorithm,
        "seed": run.seed,
        "status": run.status,
        **{name: _or_none(getattr(outcome, name)) for name in numbers},
    }


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
