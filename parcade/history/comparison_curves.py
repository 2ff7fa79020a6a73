"""The mean curves of a comparison: a picture, and a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parcade.history.bands import Band, band
from parcade.history.cells import number_cell, text_cell
from parcade.history.comparison import Group, Question
from parcade.report.plots import figure_in

CURVES = "curves.png"


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
        writer.writerow(["game", "settings", "runs", question.x, text_cell(question.metric), "low", "high"])
        for group in groups:
            curve = mean_curve(group)
            if curve is None:
                continue
            runs = sum(len(outcome.x) > 0 for outcome in group.outcomes)
            for point in zip(*(values.tolist() for values in curve), strict=True):
                names = (text_cell(group.game), text_cell(group.label))
                writer.writerow([*names, runs, *map(number_cell, point)])


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
