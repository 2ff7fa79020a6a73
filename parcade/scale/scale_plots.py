"""Plots of a scaling report: rate and efficiency over cores with the fits, and the simulated sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from parcade.report.plots import figure_in, medians_and_bars
from parcade.scale.fits import efficiency, fit_all
from parcade.scale.study_result import SeriesResult

COLOURS = {"line": "#4a9d5b", "amdahl": "#2b65a8", "usl": "#d9534f"}
LINES = {
    "line": ":",
    "amdahl": "-",
    "usl": (0, (5, 4)),
}  # usl may equal amdahl, which shows between its dashes
STYLES = {
    "measured": {"fmt": "o", "color": "black", "label": "measured"},
    "shared": {"fmt": "x", "color": "0.45", "label": "measured, ranks share cores"},
    "synthetic": {"fmt": "o", "color": "black", "mfc": "white", "label": "synthetic"},
}


def draw_series(series: SeriesResult, path: Path) -> None:
    """Draw a series. Left: rates with their ranges, and the fits. Right: efficiency, or the simulated sizes.

    The left plot also shows the range of the ``usl`` fit.
    """
    with figure_in(path, 1, 2, figsize=(9, 3.8)) as (_, (left, right)):
        _draw_rates(left, series)
        (_draw_simulated if series.simulated else _draw_efficiency)(right, series)


def _draw_rates(axes, series: SeriesResult) -> None:
    points, samples = series.run_points, series.samples()
    largest = max(point.size.cores for point in points)
    if samples:
        smallest = min(samples)
        sizes = np.linspace(smallest, max(largest * 1.25, 2), 100)
        first = float(np.median(samples[smallest]))
        axes.plot(sizes, sizes * first / smallest, color="0.75", lw=1, ls="--", label="perfect")
        for name, fit in fit_all(samples).items():
            how = {"color": COLOURS[name], "ls": LINES[name], "lw": 1.3}
            axes.plot(sizes, [fit.predict(n) for n in sizes], label=name, **how)
            if len(fit.repeats) and name == "usl":
                bounds = np.array([fit.range_at(n) for n in sizes])
                axes.fill_between(sizes, bounds[:, 0], bounds[:, 1], color=COLOURS[name], alpha=0.12, lw=0)
    for kind, style in STYLES.items():
        chosen = [point for point in points if ("shared" if point.shares_cores else point.kind) == kind]
        if chosen:
            medians, bars = medians_and_bars([point.steps_per_second for point in chosen])
            axes.errorbar([point.size.cores for point in chosen], medians, bars, capsize=2, ms=5, **style)
    top = max(max(point.steps_per_second) for point in points)
    axes.set(xlabel="cores required (ranks x threads)", ylabel="steps/s", ylim=(0, 1.35 * top))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)


def _draw_efficiency(axes, series: SeriesResult) -> None:
    alone, every = series.samples(), series.samples(shared=True)
    lines = [(every, "0.45", "ranks share cores")] if every != alone else []
    lines += [(alone, "black", "one core per thread")] if alone else []
    for samples, colour, label in lines:
        shares = efficiency(samples)
        axes.plot(list(shares), list(shares.values()), "o-", color=colour, ms=5, lw=1.2, label=label)
    axes.axhline(1.0, color="0.75", lw=1, ls="--")
    top = max(1.2, 1.1 * max(efficiency(every).values()))  # caches and noise give more than 100 %
    axes.set(xlabel="cores required (ranks x threads)", ylabel="efficiency per core", ylim=(0, top))
    axes.set_xlim(left=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)


def _draw_simulated(axes, series: SeriesResult) -> None:
    samples = series.samples()
    cores = [s.ranks * series.series.threads for s in series.simulated]
    rates = np.array([s.steps_per_second for s in series.simulated])
    bounds = np.array([[s.low, s.high] for s in series.simulated])
    if samples:
        one = float(np.median(samples[min(samples)])) / min(samples)
        sizes = np.array([min(samples), max(cores)])
        axes.plot(sizes, one * sizes, color="0.75", lw=1, ls="--", label="perfect")
        medians = [np.median(values) for values in samples.values()]
        axes.plot(list(samples), medians, "o", color="black", ms=4, label="run")
    # The rate over all iterations may be slightly outside the bounds, which come from single iterations.
    bars = np.maximum([rates - bounds[:, 0], bounds[:, 1] - rates], 0)
    axes.errorbar(cores, rates, bars, fmt="s-", color="#8d6bb1", ms=4, lw=1.2, label="simulated")
    axes.set(xlabel="cores (ranks x threads)", ylabel="steps/s", xscale="log", yscale="log")
    axes.grid(alpha=0.25, which="both")
    axes.legend(frameon=False, fontsize=8)
