"""A scaling study: measured sizes, synthetic sizes with sleeping ranks, and simulated sizes, all compared."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from parcade.machine import available_cores, commit, machine
from parcade.scale.allreduce_model import Link, fit_model, measure_allreduce
from parcade.scale.jobs import ScaledJob, Scaling
from parcade.scale.measure import Point, Series, measure, sizes_of
from parcade.scale.rank_work import rank_work_of
from parcade.scale.simulate import simulate
from parcade.scale.study_result import ScaleResult, SeriesResult
from parcade.scale.synthetic import run_synthetic


@dataclass(frozen=True)
class StudyPlan:
    """The sizes to run.

    ``ranks``, ``synthetic`` and ``simulated`` are the numbers of ranks of each kind. ``envs`` are the numbers
    of environments at the smallest size, one series each; if empty, the job decides.
    """

    ranks: tuple[int, ...]
    threads: tuple[int, ...]
    envs: tuple[int, ...]
    scalings: tuple[Scaling, ...]
    synthetic: tuple[int, ...]
    simulated: tuple[int, ...]
    repeats: int
    seconds: float
    limit_seconds: float
    ranks_per_host: int
    link: Link | None


def all_series(plan: StudyPlan, job: ScaledJob) -> list[Series]:
    """Return a series for every combination in the plan."""
    envs = plan.envs or (job.num_envs,)
    return [
        Series(scaling, threads, count, job.unit)
        for scaling in plan.scalings
        for threads in plan.threads
        for count in envs
    ]


def check(plan: StudyPlan, job: ScaledJob) -> None:
    """Reject sizes that cannot run, before anything starts. Errors: UsageError."""
    for series in all_series(plan, job):
        for size in sizes_of(series, list(plan.ranks)):
            job.check(size)


def study(
    plan: StudyPlan, job: ScaledJob, folder: Path, *, command: str, say: Callable[[str], None]
) -> ScaleResult:
    """Run the plan. Errors: UsageError and RuntimeError from the runs."""
    cores, load = available_cores(), os.getloadavg()[0]
    found = []
    for series in all_series(plan, job):
        sizes = sizes_of(series, list(plan.ranks))
        found.append(SeriesResult(series, [Point(size, "measured", size.cores > cores) for size in sizes]))
    # Measure all series in one call, so that they are interleaved as well.
    points = [point for series in found for point in series.points]
    measure(
        job,
        points,
        folder,
        repeats=plan.repeats,
        seconds=plan.seconds,
        limit_seconds=plan.limit_seconds,
        say=say,
    )
    result = ScaleResult(
        command=command,
        title=job.title,
        machine=machine(),
        commit=commit(),
        cores=cores,
        load=load,
        series=found,
        link=plan.link,
        ranks_per_host=plan.ranks_per_host or cores,
    )
    if plan.synthetic:
        for series in found:
            _add_synthetic(series, plan, say)
    if plan.simulated:
        counts = sorted({n for n in (2, *plan.ranks, *plan.synthetic) if n > 1})
        say(f"timing Allreduce with {', '.join(map(str, counts))} ranks")
        result.timings = measure_allreduce(counts)
        for series in found:
            _simulate(series, plan, result, say)
    return result


def _add_synthetic(series: SeriesResult, plan: StudyPlan, say: Callable[[str], None]) -> None:
    """Run the synthetic sizes. Sizes that are also measured show the error of sleeping ranks."""
    parts = rank_work_of(series.points, series.series.unit)
    smallest = min(plan.ranks)
    points = []
    for ranks in plan.synthetic:
        (size,) = [s for s in sizes_of(series.series, [smallest, ranks]) if s.ranks == ranks][:1]
        points.append(Point(size, "synthetic", False))
    for repeat in range(plan.repeats):
        for point in points:
            size = point.size
            rates = run_synthetic(parts, size.ranks, size.num_envs / size.ranks, plan.seconds, seed=repeat)
            point.steps_per_second.append(rates["steps_per_second"])
            point.communicate_share.append(rates["communicate_share"])
            say(f"synthetic, {size.scaling}, {size.ranks} rank(s): {rates['steps_per_second']:,.0f} steps/s")
    series.points += points


def _simulate(series: SeriesResult, plan: StudyPlan, result: ScaleResult, say: Callable[[str], None]) -> None:
    """Simulate every size that was run, for validation, and every requested size with enough environments."""
    parts = rank_work_of(series.points, series.series.unit)
    model = fit_model(result.timings, result.cores, plan.link)
    series.stands_on = parts.stands_on
    for point in series.points:
        if point.steps_per_second:
            size = point.size
            series.validation.append(
                simulate(
                    parts, model,
                    ranks=size.ranks, num_envs=size.num_envs, ranks_per_host=size.ranks, seed=0,
                    sleeping=point.kind == "synthetic",
                )
            )  # fmt: skip
    for ranks in plan.simulated:
        (size,) = [s for s in sizes_of(series.series, [min(plan.ranks), ranks]) if s.ranks == ranks][:1]
        if series.series.unit == "environments" and ranks > size.num_envs:
            say(f"{series.series.scaling}: {ranks} ranks exceed {size.num_envs} environments, not simulated")
            continue
        series.simulated.append(
            simulate(
                parts,
                model,
                ranks=ranks,
                num_envs=size.num_envs,
                ranks_per_host=result.ranks_per_host,
                seed=0,
            )
        )
