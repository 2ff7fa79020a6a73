"""Plots of runs and benchmarks. matplotlib is imported only when something is drawn."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


@contextmanager
def figure_in(path: Path, *rows_and_columns: int, dpi: int = 110, **options: Any) -> Iterator[tuple]:
    """Yield a figure and its axes, as ``pyplot.subplots`` does, and save it as a PNG on exit."""
    import matplotlib

    matplotlib.use("Agg")  # draws into files, without a display
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(*rows_and_columns, layout="constrained", **options)
    try:
        yield figure, axes
        figure.savefig(path, dpi=dpi)
    finally:
        pyplot.close(figure)


def score_curve(run: Path) -> dict[str, np.ndarray]:
    """Read a run's score curve from ``metrics.jsonl``, without lines that a killed process left incomplete.

    Return arrays ``[k]`` of wall-clock seconds, CPU seconds, frames and scores.
    """
    names = ("wall_seconds", "cpu_seconds", "frames", "score_mean")
    points = []
    for line in (run / "metrics.jsonl").read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            report = json.loads(line)
            if report["score_mean"] is not None:
                points.append([float(report[name]) for name in names])
    return dict(zip(names, np.array(points).reshape(-1, len(names)).T, strict=True))


def plot_curves(
    curves: dict[str, list[dict[str, Any]]],
    path: Path,
    *,
    x: str,
    x_label: str,
    title: str,
    target: float | None,
    logarithmic: bool = False,
) -> None:
    """Plot scores over ``x`` (``cpu_seconds``, ``frames``, ...) as a PNG.

    Each run is a thin line. The runs of a label share colour and style. The legend's order is that of the
    labels' first ends.
    """
    with figure_in(path, dpi=130, figsize=(7.2, 4.2)) as (_, axes):
        import matplotlib

        few = len(curves) <= 10
        colours = matplotlib.colormaps["tab10"].colors
        ends = {
            label: min((run[x][-1] for run in runs if len(run[x])), default=0)
            for label, runs in curves.items()
        }
        for i, label in enumerate(sorted(curves, key=ends.__getitem__)):
            runs, dashes = curves[label], ("-", "--", ":")[i // len(colours) % 3]
            style = {"color": colours[i % len(colours)], "ls": dashes, "lw": 1.4, "alpha": 0.85}
            for j, run in enumerate(runs):
                axes.plot(run[x], run["score_mean"], label=None if j else label, **style)
        if logarithmic:
            axes.set_xscale("log")
        if target is not None:
            axes.axhline(target, color="0.4", lw=0.8, ls="--")
        axes.set(xlabel=x_label, ylabel="mean score of the last 100 episodes", title=title)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, **({} if few else {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}))


def plot_rates(
    lines: dict[str, list[tuple[int, list[float]]]], path: Path, *, x_label: str, y_label: str, title: str
) -> None:
    """Plot rates against sizes as a PNG with logarithmic axes.

    Each label is a line of medians, with bars from the minimum to the maximum.
    """
    with figure_in(path, dpi=130, figsize=(7.2, 4.2)) as (_, axes):
        for label, points in lines.items():
            sizes = [size for size, _ in points]
            medians, bars = medians_and_bars([rates for _, rates in points])
            axes.errorbar(sizes, medians, yerr=bars, marker="o", ms=4, lw=1.4, capsize=3, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(xlabel=x_label, ylabel=y_label, title=title)
        axes.grid(alpha=0.25, which="both")
        axes.legend(frameon=False)


def medians_and_bars(samples: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the medians ``[k]``, and the bars ``[2, k]`` from the minima and to the maxima."""
    medians = np.array([np.median(values) for values in samples])
    ends = np.array([[min(values), max(values)] for values in samples])
    return medians, np.array([medians - ends[:, 0], ends[:, 1] - medians])
