"""Plots of runs and benchmarks. matplotlib is imported only when something is drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def score_curve(run: Path) -> dict[str, np.ndarray]:
    """Read a run's score curve from ``metrics.jsonl``.

    Return arrays ``[k]`` of wall-clock seconds, CPU seconds, frames and scores.
    """
    reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    reports = [report for report in reports if report["score_mean"] is not None]
    names = ("wall_seconds", "cpu_seconds", "frames", "score_mean")
    return {name: np.array([report[name] for report in reports]) for name in names}


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

    Each run is a thin line. The runs of a label share a colour.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    few = len(curves) <= 10
    colours = pyplot.get_cmap("tab10" if few else "tab20").colors
    for i, (label, runs) in enumerate(curves.items()):
        for j, run in enumerate(runs):
            axes.plot(
                run[x],
                run["score_mean"],
                color=colours[i % len(colours)],
                lw=1.4,
                alpha=0.85,
                label=label if j == 0 else None,
            )
    if logarithmic:
        axes.set_xscale("log")
    if target is not None:
        axes.axhline(target, color="0.4", lw=0.8, ls="--")
    axes.set_xlabel(x_label)
    axes.set_ylabel("mean score of the last 100 episodes")
    axes.set_title(title)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, **({} if few else {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}))
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def plot_rates(
    lines: dict[str, list[tuple[int, list[float]]]], path: Path, *, x_label: str, y_label: str, title: str
) -> None:
    """Plot rates against sizes as a PNG with logarithmic axes.

    Each label is a line of medians, with bars from the minimum to the maximum.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    for label, points in lines.items():
        sizes = [size for size, _ in points]
        middle = np.array([np.median(rates) for _, rates in points])
        spread = np.array(
            [[m - min(rates), max(rates) - m] for m, (_, rates) in zip(middle, points, strict=True)]
        ).T
        axes.errorbar(sizes, middle, yerr=spread, marker="o", ms=4, lw=1.4, capsize=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title)
    axes.grid(alpha=0.25, which="both")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
