"""Pictures of runs. matplotlib is imported here alone and only when something is drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def score_curve(run: Path) -> dict[str, np.ndarray]:
    """A run's score over time from its ``metrics.jsonl``: arrays ``[k]`` of seconds, CPU seconds, frames and scores."""
    reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    reports = [report for report in reports if report["score_mean"] is not None]
    names = ("wall_seconds", "cpu_seconds", "frames", "score_mean")
    return {name: np.array([report[name] for report in reports]) for name in names}


def plot_curves(
    curves: dict[str, list[dict[str, Any]]], path: Path, *, x: str, x_label: str, title: str, target: float | None
) -> None:
    """Scores of several runs a label, thin lines each, over ``x`` (``cpu_seconds``, ``frames``, ...), as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    for i, (label, runs) in enumerate(curves.items()):
        for j, run in enumerate(runs):
            axes.plot(run[x], run["score_mean"], color=f"C{i}", lw=1.4, alpha=0.85, label=label if j == 0 else None)
    if target is not None:
        axes.axhline(target, color="0.4", lw=0.8, ls="--")
    axes.set_xlabel(x_label)
    axes.set_ylabel("mean score of the last 100 games")
    axes.set_title(title)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
