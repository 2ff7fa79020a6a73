"""The page of the scaling report."""

from __future__ import annotations

import math
import statistics

from parcade.report.page import Block, Heading, Image, Page, Table, Text
from parcade.scale.allreduce_model import fit_model, relative_errors
from parcade.scale.answers import Questions, answer
from parcade.scale.fits import CURVES, CurveFit, efficiency, fit_all, range_holds, speed_up, turning_size
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
        blocks += [
            Heading(series.series.title[0].upper() + series.series.title[1:]),
            _points_table(series, result.cores),
        ]
        blocks += [
            Text(_spread_note(series)),
            Image(picture_name(index), f"rate and efficiency, {series.series.title}"),
        ]
        fits = fit_all(series.samples())
        blocks += _fit_blocks(series, fits)
        blocks += _answers(questions, fits)
        blocks += _simulation(series, result)
    if result.timings:
        blocks += [Heading("Allreduce, measured and modelled"), *_allreduce(result)]
    blocks += [Heading("Provenance"), Text(_provenance(result))]
    return Page(result.title, tuple(blocks))


def _introduction(result: ScaleResult) -> str:
    return (
        f"The same job at several sizes on {result.cores} core(s), interleaved and repeated. Rates are those "
        "of the recorded window, without start-up. Speed-up and efficiency are per core, relative to the "
        "smallest size. Sizes with more ranks x threads than cores are marked shared and excluded from all "
        "fits. The ranks of synthetic sizes sleep instead of computing; their Allreduce is real."
    )


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _points_table(series: SeriesResult, cores: int) -> Table:
    rows = []
    samples = series.samples(shared=True)
    ups, shares = speed_up(samples), efficiency(samples)
    for point in sorted(series.points, key=lambda point: (point.size.cores, point.kind)):
        if not point.steps_per_second:
            continue
        size, rates = point.size, point.steps_per_second
        scale = _median(rates) / _median(samples[size.cores])
        kind = point.kind + (", shared" if point.shares_cores else "")
        per_cpu = f"{_median(point.steps_per_cpu_second):,.0f}" if point.steps_per_cpu_second else "-"
        rows.append(
            [
                f"{size.ranks} x {size.threads}",
                kind,
                str(size.num_envs),
                f"{_median(rates):,.0f} [{min(rates):,.0f}-{max(rates):,.0f}]",
                per_cpu,
                f"{ups[size.cores] * scale:.2f}",
                f"{shares[size.cores] * scale:.0%}",
                f"{_median(point.communicate_share):.0%}",
            ]
        )
    headers = [
        "ranks x threads",
        "kind",
        series.series.unit,
        "steps/s [range]",
        "steps/CPU-s",
        "speed-up",
        "efficiency",
        "communicating",
    ]
    return Table(headers, rows)


def _spread_note(series: SeriesResult) -> str:
    spreads = [
        (max(p.steps_per_second) - min(p.steps_per_second)) / _median(p.steps_per_second)
        for p in series.points
        if len(p.steps_per_second) > 1
    ]
    turned = turning_size(series.samples(shared=True))
    parts = [
        f"Spread between repeats (range over median): up to {max(spreads):.0%}."
        if spreads
        else "One repeat: no spread."
    ]
    parts.append("Communicating includes waiting for the last rank.")
    starved = [
        _median(p.steps_per_second) / _median(p.steps_per_cpu_second)
        for p in series.points
        if p.size.cores == 1 and p.steps_per_cpu_second and p.steps_per_second
    ]
    if starved and min(starved) < UNDISTURBED_SHARE:
        parts.append(
            f"A single rank got {min(starved):.0%} of a core: other programs used the machine. Synthetic and "
            "simulated rates, whose work is measured by the CPU clock, cannot be compared with measured "
            "rates here; measure again on an idle machine."
        )
    if turned is not None:
        parts.append(f"The measured rate peaks at {turned} core(s); larger sizes are slower.")
    return " ".join(parts)


def _parameter(fit: CurveFit, name: str) -> str:
    shown = f"{name} {fit.parameters[name]:.4g}"
    return shown + (" [{:.3g}, {:.3g}]".format(*fit.ranges[name]) if name in fit.ranges else "")


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
        return [
            Text(
                "Fewer than two sizes had a core for every rank, so no curve can be fitted. Add --synthetic "
                "4,8,16."
            )
        ]
    rows = [
        [
            f"{name}: {FORMULAS[name]}",
            "; ".join(_parameter(fit, parameter) for parameter in fit.parameters),
            f"{fit.error:.1%}",
            f"{fit.peak:,.0f} cores" if fit.peak is not None else "none",
        ]
        for name, fit in fits.items()
    ]
    sizes = ", ".join(map(str, series.samples()))
    blocks: list[Block] = [
        Table(["fit, [range of the repeats]", "parameters", "mean error", "peak"], rows),
        Text(
            f"Fitted to the sizes {sizes}. A line never peaks; kappa = 0 means that the data show no peak."
            + _range_note(next(iter(fits.values())))
        ),
    ]
    checked = prediction_errors(series)
    if checked:
        rows = [
            [
                f"{size}",
                ", ".join(map(str, known)),
                name,
                f"{predicted:,.0f}",
                f"{measured:,.0f}",
                f"{predicted / measured - 1:+.0%}",
            ]
            for size, known, name, predicted, measured in checked
        ]
        headers = ["cores", "fitted to", "fit", "predicted", "observed", "error"]
        blocks += [
            Text("Predictions checked: each size is predicted by fits to the smaller sizes alone."),
            Table(headers, rows),
        ]
    return blocks


def prediction_errors(series: SeriesResult) -> list[tuple[int, list[int], str, float, float]]:
    """Return (size, fitted sizes, fit, predicted, observed) for every size that smaller sizes can predict."""
    samples, rows = series.samples(), []
    sizes = sorted(samples)
    for i, size in enumerate(sizes):
        known = {n: samples[n] for n in sizes[:i]}
        if len(known) >= 2:
            for name, fit in fit_all(known).items():
                rows.append((size, list(known), name, fit.predict(size), _median(samples[size])))
    return rows


def _answers(questions: Questions, fits: dict[str, CurveFit]) -> list[Block]:
    found = answer(questions, fits)
    if not found:
        return []
    priced = questions.price is not None
    rows = []
    for row in found:
        cores = f"{row.cores:,}" if row.cores is not None else "never"
        nodes = f"{row.nodes:,}" if row.nodes is not None else "-"
        rows.append(
            [
                row.question,
                row.fit,
                cores,
                nodes,
                *([f"{row.cost:,.2f}" if row.cost is not None else "-"] if priced else []),
            ]
        )
    headers = ["goal", "fit", "cores", f"nodes of {questions.cores_per_node}", *(["cost"] if priced else [])]
    note = "Cost is for one hour at a rate, or for the entire time to a score." if priced else ""
    blocks: list[Block] = [Table(headers, rows)]
    if any("score" in row.question for row in found):
        note += (
            " The number of steps to the score is that of the given run and its batch size. Larger batches "
            "usually need more steps, so the answer is a lower bound."
        )
    return [*blocks, Text(note.strip())] if note else blocks


def _simulation(series: SeriesResult, result: ScaleResult) -> list[Block]:
    blocks: list[Block] = []
    if series.validation:
        found = {
            (p.size.ranks, p.kind): _median(p.steps_per_second) for p in series.points if p.steps_per_second
        }
        kinds = [(p.size.ranks, p.kind) for p in series.points if p.steps_per_second]
        rows = []
        for key, simulated in zip(kinds, series.validation, strict=True):
            error = simulated.steps_per_second / found[key] - 1
            rows.append(
                [
                    f"{key[0]}",
                    key[1],
                    f"{simulated.steps_per_second:,.0f}",
                    f"{found[key]:,.0f}",
                    f"{error:+.0%}",
                ]
            )
        worst = max(
            abs(s.steps_per_second / found[key] - 1) for key, s in zip(kinds, series.validation, strict=True)
        )
        blocks += [
            Text(f"The simulation compared with every size that was run. The largest error is {worst:.0%}."),
            Table(["ranks", "kind", "simulated steps/s", "observed", "error"], rows),
        ]
    if series.simulated:
        base = series.samples()
        one_core = _median(base[min(base)]) / min(base)
        one_host = next((s.steps_per_second for s in series.simulated if s.hosts == 1), None)
        host_rate = one_host or one_core * result.ranks_per_host
        rows = [
            [
                f"{s.ranks:,}",
                f"{s.hosts:,}",
                f"{s.num_envs:,}",
                f"{s.steps_per_second:,.0f} [{s.low:,.0f}-{s.high:,.0f}]",
                f"{s.steps_per_second / one_core:,.1f}",
                f"{s.steps_per_second / one_core / s.ranks:.0%}",
                f"{s.steps_per_second / host_rate:,.1f}",
                f"{s.work_share:.0%} / {s.wait_share:.0%} / {s.communicate_share:.0%}",
            ]
            for s in series.simulated
        ]
        headers = [
            "ranks",
            "hosts",
            series.series.unit,
            "steps/s [90 % of iterations]",
            "x one core",
            "per core",
            "x one host",
            "work / wait / communicate",
        ]
        link = result.link
        speed = (
            f"{link.latency_seconds * 1e6:g} us and {link.bytes_per_second * 8 / 1e9:g} Gbit/s"
            if link
            else ""
        )
        on = f"a link of {speed} between hosts (given, not measured)"
        blocks += [
            Text(
                f"Simulated with {result.ranks_per_host} rank(s) per host. Based on: {series.stands_on}; the "
                f"Allreduce model below; {on if link else 'one host'}."
            ),
            Table(headers, rows),
        ]
    return blocks


def _allreduce(result: ScaleResult) -> list[Block]:
    counts = sorted({t.ranks for t in result.timings})
    sizes = sorted({t.num_bytes for t in result.timings})
    seconds = {(t.ranks, t.num_bytes): t.seconds for t in result.timings}
    model = fit_model(result.timings, result.cores, result.link)
    rows = [
        [
            f"{size:,} B",
            *(
                f"{1e3 * seconds[n, size]:.3g} / {1e3 * model.seconds(n, size, n):.3g}"
                for n in counts
                if (n, size) in seconds
            ),
        ]
        for size in sizes
    ]
    errors = sorted(abs(error) for error in relative_errors(model, result.timings))
    note = f"Relative error of the model: median {_median(errors):.0%}, largest {errors[-1]:.0%}."
    smaller = [t for t in result.timings if t.ranks < counts[-1]]
    if len({t.ranks for t in smaller if t.ranks > 1}) >= 2:
        unseen = fit_model(smaller, result.cores)
        missed = [
            abs(e) for e in relative_errors(unseen, [t for t in result.timings if t.ranks == counts[-1]])
        ]
        note += f" Fitted without the {counts[-1]}-rank timings, its error on them is {_median(missed):.0%}"
        note += f" (median) and {max(missed):.0%} (largest)."
    return [Table(["ms, measured / model", *(f"{n} ranks" for n in counts)], rows), Text(note)]


def _provenance(result: ScaleResult) -> str:
    machine = result.machine
    return (
        f"Command: {result.command}. Commit {result.commit or 'unknown'}. "
        f"{machine.get('cpu', 'unknown CPU')}, {result.cores} cores, {machine.get('memory_gib', '?')} GiB, "
        f"torch {machine.get('torch', '?')}; load average {result.load:.1f} at the start. Curves: "
        f"{', '.join(CURVES)}."
    )
