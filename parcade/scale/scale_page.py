"""The page of the scaling report."""

from __future__ import annotations

import math
from statistics import median
from typing import NamedTuple

from parcade.profile.profile_page import machine_text
from parcade.report.page import Block, Heading, Image, Page, Table, Text, table_of
from parcade.scale.allreduce_model import fit_model, relative_errors
from parcade.scale.answers import Questions, answer
from parcade.scale.fits import CURVES, CurveFit, efficiency, fit_all, range_holds, speed_up, turning_size
from parcade.scale.measure import Point, Series
from parcade.scale.study_result import ScaleResult, SeriesResult

FORMULAS = {
    "line": "a + b n",
    "amdahl": "lambda n / (1 + sigma (n - 1))",
    "usl": "lambda n / (1 + sigma (n - 1) + kappa n (n - 1))",
}

UNDISTURBED_SHARE = 0.7
"""A single rank that gets less than this share of its core shares it with another program."""


def picture_name(index: int) -> str:
    """Return the file name of a series' plot."""
    return f"scale-{index}.png"


def scale_page(result: ScaleResult, questions: Questions) -> Page:
    """Return the report's page. Plots are named by ``picture_name``."""
    blocks: list[Block] = [Text(_introduction(result))]
    for index, series in enumerate(result.series):
        title, fits = series.series.title, fit_all(series.samples())
        blocks += [
            Heading(title[0].upper() + title[1:]),
            _points_table(series),
            Text(_spread_note(series)),
            Image(picture_name(index), f"rate and efficiency, {title}"),
            *_fit_blocks(series, fits),
            *_answers(questions, fits, series.series),
            *_validation(series),
            *_simulated(series, result),
        ]
    if result.timings:
        blocks += [Heading("Allreduce, measured and modelled"), *_allreduce(result)]
    blocks += [Heading("Provenance"), Text(_provenance(result))]
    return Page(result.title, tuple(blocks))


def _introduction(result: ScaleResult) -> str:
    return (
        f"The same job at several sizes on {result.cores} core(s), interleaved and repeated. Rates are those "
        "of the recorded window, without start-up. Speed-up and efficiency are per core, relative to the "
        "smallest size. Sizes with more busy threads than cores are marked shared and excluded from all "
        "fits. The ranks of synthetic sizes sleep instead of computing; their Allreduce is real."
    )


def _points_table(series: SeriesResult) -> Table:
    samples = series.samples(shared=True)
    ups, shares = speed_up(samples), efficiency(samples)

    def relative(point: Point) -> float:
        """Return the rate of a point over that of its size: a size may be both measured and synthetic."""
        return point.rate / median(samples[point.size.cores])

    return table_of(
        sorted(series.run_points, key=lambda point: (point.size.cores, point.kind)),
        {
            "ranks x threads": lambda p: f"{p.size.ranks} x {p.size.threads}",
            "kind": lambda p: p.kind + (", shared" if p.shares_cores else ""),
            series.series.unit: lambda p: str(p.size.num_envs),
            "steps/s [range]": lambda p: (
                f"{p.rate:,.0f} [{min(p.steps_per_second):,.0f}-{max(p.steps_per_second):,.0f}]"
            ),
            "steps/CPU-s": lambda p: (
                f"{median(p.steps_per_cpu_second):,.0f}" if p.steps_per_cpu_second else "-"
            ),
            "speed-up": lambda p: f"{ups[p.size.cores] * relative(p):.2f}",
            "efficiency": lambda p: f"{shares[p.size.cores] * relative(p):.0%}",
            "communicating": lambda p: f"{median(p.communicate_share):.0%}",
        },
    )


def _spread_note(series: SeriesResult) -> str:
    spreads = [
        (max(p.steps_per_second) - min(p.steps_per_second)) / p.rate
        for p in series.run_points
        if len(p.steps_per_second) > 1
    ]
    spread = (
        f"Spread between repeats (range over median): up to {max(spreads):.0%}."
        if spreads
        else "One repeat: no spread."
    )
    parts = [spread, "Communicating includes waiting for the last rank."]
    starved = [
        p.rate / median(p.steps_per_cpu_second)
        for p in series.run_points
        if p.size.cores == 1 and p.steps_per_cpu_second
    ]
    if starved and min(starved) < UNDISTURBED_SHARE:
        parts.append(
            f"A single rank got {min(starved):.0%} of a core: other programs used the machine. Synthetic and "
            "simulated rates, whose work is measured by the CPU clock, cannot be compared with measured "
            "rates here; measure again on an idle machine."
        )
    sizes = series.sizes(shared=True)
    turned = turning_size(series.samples(shared=True))
    if turned is not None:
        larger = {n: point for n, point in sizes.items() if n > turned}
        parts.append(
            f"The rate peaks at {turned} core(s){_mark(sizes[turned])}; the larger sizes "
            f"{_sizes_text(larger)} are slower."
        )
    return " ".join(parts)


def _mark(point: Point) -> str:
    """Return what a rate is if its ranks did not have a core each and compute on it; empty if they did."""
    return " (synthetic)" if point.kind == "synthetic" else " (shared)" if point.shares_cores else ""


def _sizes_text(sizes: dict[int, Point]) -> str:
    return ", ".join(f"{n}{_mark(point)}" for n, point in sizes.items())


def _parameter(fit: CurveFit, name: str) -> str:
    ends = ", ".join(_rounded(end, digits=3) for end in fit.ranges.get(name, ()))
    return f"{name} {_rounded(fit.parameters[name], digits=4)}" + (f" [{ends}]" if ends else "")


def _rounded(value: float, *, digits: int) -> str:
    """Return a number with this many significant digits, and with all those of its integer part."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def _range_note(fit: CurveFit) -> str:
    count = len(fit.repeats)
    if not count:
        return ""
    return (
        f" Brackets are the range over the {count} repeats, each fitted separately. The range of {count} "
        "independent repeats contains the true median with a probability of "
        f"{math.floor(100 * range_holds(count))} %."
    )


def _fit_blocks(series: SeriesResult, fits: dict[str, CurveFit]) -> list[Block]:
    if not fits:
        # Under strong scaling, --synthetic itself needs two sizes.
        more = "" if series.series.scaling == "strong" else ", or add --synthetic 4,8,16"
        return [
            Text(
                "Fewer than two sizes had a core for every thread, so no curve can be fitted. Add such sizes "
                f"to --ranks{more}."
            )
        ]
    table = table_of(
        fits.values(),
        {
            "fit, [range of the repeats]": lambda fit: f"{fit.name}: {FORMULAS[fit.name]}",
            "parameters": lambda fit: "; ".join(_parameter(fit, name) for name in fit.parameters),
            "mean error": lambda fit: f"{fit.error:.1%}",
            "peak": lambda fit: f"{fit.peak:,.0f} core(s)" if fit.peak is not None else "none",
        },
    )
    note = (
        f"Fitted to the sizes {_sizes_text(series.sizes())}. The peak is the size with the highest rate; a "
        "curve without one rises at all sizes."
    )
    blocks: list[Block] = [table, Text(note + _range_note(next(iter(fits.values()))))]
    if checked := predictions(series):
        columns = {
            "cores": lambda p: f"{p.size}",
            "fitted to": lambda p: ", ".join(map(str, p.known)),
            "fit": lambda p: p.fit,
            "predicted": lambda p: f"{p.predicted:,.0f}",
            "observed": lambda p: f"{p.observed:,.0f}",
            "error": lambda p: f"{p.predicted / p.observed - 1:+.0%}",
        }
        note = "Predictions checked: each measured size is predicted by fits to the smaller ones alone."
        blocks += [Text(note), table_of(checked, columns)]
    return blocks


class Prediction(NamedTuple):
    """The rate of a size, predicted by a fit to the smaller sizes ``known`` and observed."""

    size: int
    known: list[int]
    fit: str
    predicted: float
    observed: float


def predictions(series: SeriesResult) -> list[Prediction]:
    """Predict every measured size that has two smaller measured sizes."""
    samples = {n: point.steps_per_second for n, point in series.sizes().items() if point.kind == "measured"}
    sizes, found = list(samples), []
    for i, size in enumerate(sizes):
        known = {n: samples[n] for n in sizes[:i]}
        if len(known) >= 2:
            for name, fit in fit_all(known).items():
                predicted, observed = fit.predict(size), median(samples[size])
                found.append(Prediction(size, [*known], name, predicted=predicted, observed=observed))
    return found


def _answers(questions: Questions, fits: dict[str, CurveFit], series: Series) -> list[Block]:
    found = answer(questions, fits, series)
    if not found:
        asked = questions.rate is not None or questions.score is not None
        return [Text("No answer to --rate or --score: it needs a fitted curve.")] if asked else []
    columns = {
        "goal": lambda a: a.question,
        "fit": lambda a: a.fit,
        "cores": lambda a: f"{a.cores:,}" if a.cores is not None else "never",
        f"nodes of {questions.cores_per_node}": lambda a: f"{a.nodes:,}" if a.nodes is not None else "-",
    }
    notes = []
    if questions.price is not None:
        columns["cost"] = lambda a: f"{a.cost:,.2f}" if a.cost is not None else "-"
        notes.append("Cost is for one hour at a rate, or for the entire time to a score.")
    if any(row.kind == "score" for row in found):
        notes.append(
            "The number of steps to the score is that of the given run and its batch size. Larger batches "
            "usually need more steps, so the answer is a lower bound."
        )
    return [table_of(found, columns), *([Text(" ".join(notes))] if notes else [])]


def _validation(series: SeriesResult) -> list[Block]:
    """Compare the simulation with the sizes that were run."""
    if not series.validation:
        return []
    pairs = list(zip(series.run_points, series.validation, strict=True))
    worst = max(abs(simulated.steps_per_second / point.rate - 1) for point, simulated in pairs)
    columns = {
        "ranks": lambda pair: f"{pair[0].size.ranks}",
        "kind": lambda pair: pair[0].kind,
        "simulated steps/s": lambda pair: f"{pair[1].steps_per_second:,.0f}",
        "observed": lambda pair: f"{pair[0].rate:,.0f}",
        "error": lambda pair: f"{pair[1].steps_per_second / pair[0].rate - 1:+.0%}",
    }
    note = f"The simulation compared with every size that was run. The largest error is {worst:.0%}."
    return [Text(note), table_of(pairs, columns)]


def _simulated(series: SeriesResult, result: ScaleResult) -> list[Block]:
    """Show the simulated sizes."""
    if not series.simulated:
        return []
    samples = series.samples()
    one_core = median(samples[min(samples)]) / min(samples)
    threads = series.series.threads
    per_host = result.ranks_on_a_host(threads)
    one_host = next((s.steps_per_second for s in series.simulated if s.ranks == per_host), None)
    host_rate = one_host or one_core * min(per_host * threads, result.cores)
    columns = {
        "ranks": lambda s: f"{s.ranks:,}",
        "hosts": lambda s: f"{s.hosts:,}",
        series.series.unit: lambda s: f"{s.num_envs:,}",
        "steps/s [90 % of iterations]": lambda s: f"{s.steps_per_second:,.0f} [{s.low:,.0f}-{s.high:,.0f}]",
        "x one core": lambda s: f"{s.steps_per_second / one_core:,.1f}",
        "per core": lambda s: f"{s.steps_per_second / one_core / (s.ranks * threads):.0%}",
        "x one host": lambda s: f"{s.steps_per_second / host_rate:,.1f}",
        "work / wait / communicate": lambda s: (
            f"{s.work_share:.0%} / {s.wait_share:.0%} / {s.communicate_share:.0%}"
        ),
    }
    where = "one host"
    if link := result.link:
        speed = f"{link.latency_seconds * 1e6:g} us and {link.bytes_per_second * 8 / 1e9:g} Gbit/s"
        where = f"a link of {speed} between hosts (given, not measured)"
    shared = f", which share its {result.cores} core(s)" if per_host * threads > result.cores else ""
    note = (
        f"Simulated with {per_host} rank(s) per host{shared}. Based on: {series.stands_on}; the "
        f"Allreduce model below; {where}."
    )
    if one_host is None:
        note += (
            f" One host was not simulated: its rate is taken as perfect scaling; add --simulate {per_host}."
        )
    return [Text(note), table_of(series.simulated, columns)]


def _allreduce(result: ScaleResult) -> list[Block]:
    counts = sorted({t.ranks for t in result.timings})
    seconds = {(t.ranks, t.num_bytes): t.seconds for t in result.timings}
    model = fit_model(result.timings, result.cores, result.link)
    rows = []
    for size in sorted({t.num_bytes for t in result.timings}):
        measured = [n for n in counts if (n, size) in seconds]
        times = [(seconds[n, size], model.seconds(n, size, n)) for n in measured]
        rows.append([f"{size:,} B", *(f"{1e3 * a:.3g} / {1e3 * b:.3g}" for a, b in times)])
    errors = [abs(error) for error in relative_errors(model, result.timings)]
    note = f"Relative error of the model: median {median(errors):.0%}, largest {max(errors):.0%}."
    smaller = [t for t in result.timings if t.ranks < counts[-1]]
    if len({t.ranks for t in smaller if t.ranks > 1}) >= 2:
        unseen = fit_model(smaller, result.cores)
        largest = [t for t in result.timings if t.ranks == counts[-1]]
        missed = [abs(error) for error in relative_errors(unseen, largest)]
        note += f" Fitted without the {counts[-1]}-rank timings, its error on them is {median(missed):.0%}"
        note += f" (median) and {max(missed):.0%} (largest)."
    return [Table(["ms, measured / model", *(f"{n} ranks" for n in counts)], rows), Text(note)]


def _provenance(result: ScaleResult) -> str:
    return (
        f"Command: {result.command}. Commit {result.commit or 'unknown'}. "
        f"{machine_text(result.machine, result.cores)}; load average {result.load:.1f} at the start. Curves: "
        f"{', '.join(CURVES)}."
    )
