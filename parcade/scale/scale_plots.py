"""Plots of a scaling report: rate and efficiency over cores with the fits, and the simulated sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from parcade.profile.profile_plots import pyplot_without_display
from parcade.scale.fits import efficiency, fit_all
from parcade.scale.study_result import SeriesResult

COLOURS = {"line": "#4a9d5b", "amdahl": "#2b65a8", "usl": "#d9534f"}
MARKERS = {"measured": ("o", "black", "measured"), "shared": ("x", "0.45", "measured, ranks share cores"),
           "synthetic": ("o", "none", "synthetic")}  # fmt: skip


def draw_series(series: SeriesResult, path: Path) -> None:
    """Draw a series. Left: rates with their ranges, and the fits. Right: efficiency, or the simulated sizes.

    The left plot also shows the range of the ``usl`` fit.
    """
    pyplot = pyplot_without_display()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    _draw_rates(left, series)
    if series.simulated:
        _draw_simulated(right, series)
    else:
        _draw_efficiency(right, series)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _kind(point) -> str:
    return "shared" if point.shares_cores else point.kind


def _draw_rates(axes, series: SeriesResult) -> None:
    points = [point for point in series.points if point.steps_per_second]
    largest = max(point.size.cores for point in points)
    samples = series.samples()
    if samples:
        smallest = min(samples)
        sizes = np.linspace(smallest, max(largest * 1.25, 2), 100)
        first = float(np.median(samples[smallest]))
        axes.plot(sizes, sizes * first / smallest, color="0.75", lw=1, ls="--", label="perfect")
        for name, fit in fit_all(samples).items():
            axes.plot(sizes, [fit.predict(n) for n in sizes], color=COLOURS[name], lw=1.3, label=name)
            if len(fit.repeats) and name == "usl":
                bounds = np.array([fit.range_at(n) for n in sizes])
                axes.fill_between(sizes, bounds[:, 0], bounds[:, 1], color=COLOURS[name], alpha=0.12, lw=0)
    for kind, (marker, face, label) in MARKERS.items():
        chosen = [point for point in points if _kind(point) == kind]
        if chosen:
            x = [point.size.cores for point in chosen]
            medians = np.array([np.median(point.steps_per_second) for point in chosen])
            low = medians - [min(point.steps_per_second) for point in chosen]
            high = np.array([max(point.steps_per_second) for point in chosen]) - medians
            colour = "0.45" if kind == "shared" else "black"
            style = {"fmt": marker, "color": colour, "capsize": 2, "ms": 5, "label": label}
            axes.errorbar(x, medians, [low, high], **style, **({"mfc": "white"} if face == "none" else {}))
    axes.set_xlabel("cores required (ranks x threads)")
    axes.set_ylabel("steps/s")
    top = max(max(point.steps_per_second) for point in points)
    axes.set_ylim(0, 1.35 * top)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)


def _draw_efficiency(axes, series: SeriesResult) -> None:
    for shared, colour, label in (
        (True, "0.45", "ranks share cores"),
        (False, "black", "one core per rank"),
    ):
        samples = series.samples(shared=shared)
        if samples:
            shares = efficiency(samples)
            axes.plot(list(shares), list(shares.values()), "o-", color=colour, ms=5, lw=1.2, label=label)
    axes.axhline(1.0, color="0.75", lw=1, ls="--")
    axes.set_ylim(0, 1.2)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("cores required (ranks x threads)")
    axes.set_ylabel("efficiency per core")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)


def _draw_simulated(axes, series: SeriesResult) -> None:
    samples = series.samples()
    ranks = [s.ranks for s in series.simulated]
    rates = np.array([s.steps_per_second for s in series.simulated])
    bounds = np.array([[s.low, s.high] for s in series.simulated])
    if samples:
        one = float(np.median(samples[min(samples)])) / min(samples)
        sizes = np.array([min(samples), max(ranks)])
        axes.plot(sizes, one * sizes, color="0.75", lw=1, ls="--", label="perfect")
        axes.plot(
            list(samples),
            [np.median(values) for values in samples.values()],
            "o",
            color="black",
            ms=4,
            label="run",
        )
    axes.errorbar(
        ranks,
        rates,
        # The rate over all iterations may be slightly outside the bounds, which come from single iterations.
        np.maximum([rates - bounds[:, 0], bounds[:, 1] - rates], 0),
        fmt="s-",
        color="#8d6bb1",
        ms=4,
        lw=1.2,
        label="simulated",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("ranks (one core each)")
    axes.set_ylabel("steps/s")
    axes.grid(alpha=0.25, which="both")
    axes.legend(frameon=False, fontsize=8)
