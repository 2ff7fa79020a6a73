"""A scaling study: measured sizes, synthetic sizes with sleeping ranks, and simulated sizes, all compared."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from parcade.cluster import mpi
from parcade.ending import interrupts_on_end
from parcade.errors import UsageError
from parcade.machine.facts import commit, cores_at_once, machine
from parcade.scale.allreduce_model import Link, fit_model, measure_allreduce
from parcade.scale.jobs import JobSize, ScaledJob, Scaling
from parcade.scale.measure import Point, Series, measure
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

    @property
    def smallest(self) -> int:
        """The smallest number of ranks, for which series give the number of environments."""
        return min(self.ranks)


def all_series(plan: StudyPlan, job: ScaledJob) -> list[Series]:
    """Return a series for every combination in the plan."""
    envs = plan.envs or (job.num_envs,)
    return [
        Series(scaling, threads, count, unit=job.unit, groups=job.groups)
        for scaling in plan.scalings
        for threads in plan.threads
        for count in envs
    ]


def check(plan: StudyPlan, job: ScaledJob) -> None:
    """Reject sizes that cannot run, before anything starts. Errors: UsageError."""
    cores = cores_at_once()
    mpi.check_ranks_fit("ranks", max(plan.ranks), job.bytes_of_a_rank)
    mpi.check_ranks_fit("synthetic", max(plan.synthetic, default=0), mpi.BARE_RANK_BYTES)
    if job.overlaps and (plan.simulated or plan.synthetic):
        raise UsageError(
            "--simulate and --synthetic need ranks that do one thing at a time, and with --overlap they "
            "learn while they play; leave out --overlap, or measure only"
        )
    for series in all_series(plan, job):
        sizes = [series.size(ranks, plan.smallest) for ranks in plan.ranks]
        for size in sizes:
            job.check(size)
        if plan.simulated or plan.synthetic:
            _check_beyond(series, plan, [size for size in sizes if size.cores <= cores], cores)


def _check_beyond(series: Series, plan: StudyPlan, fitting: list[JobSize], cores: int) -> None:
    """Check that the sizes with a core for every thread suffice for others. Errors: UsageError.

    Under strong scaling, larger sizes have fewer environments per rank. One measured number of environments
    cannot tell the fixed part of a rank's work from the part that shrinks.
    """
    if not fitting:
        raise UsageError(
            f"--simulate and --synthetic need a size with a core for every thread, and {series.threads} "
            f"thread(s) for each of {plan.smallest} rank(s) are more than the {cores} core(s) here; "
            "add a smaller size to --ranks"
        )
    if series.scaling == "strong" and len(fitting) == 1:
        raise UsageError(
            "--simulate and --synthetic under strong scaling need two sizes with a core for every thread, to "
            f"separate fixed work from work per environment; of --ranks, only {fitting[0].ranks} with "
            f"{series.threads} thread(s) each fits the {cores} core(s) here; add such a size, or use "
            "--scaling weak"
        )


def study(
    plan: StudyPlan,
    job: ScaledJob,
    folder: Path,
    *,
    command: str,
    say: Callable[[str], None],
    keep: Callable[[ScaleResult], object] = lambda result: None,
) -> ScaleResult:
    """Run the plan. ``keep`` stores what was measured so far, after every step.

    Errors: UsageError and RuntimeError from the runs.
    """
    cores = cores_at_once()
    result = ScaleResult(
        command=command,
        title=job.title,
        machine=machine(),
        commit=commit(),
        cores=cores,
        load=os.getloadavg()[0],
        series=[],
        link=plan.link,
        ranks_per_host=plan.ranks_per_host,
    )
    for series in all_series(plan, job):
        sizes = [series.size(ranks, plan.smallest) for ranks in plan.ranks]
        points = [Point(size, "measured", _busy_threads(size, job) > cores) for size in sizes]
        result.series.append(SeriesResult(series, points))
    # Measure all series in one call, so that they are interleaved as well.
    points = [point for series in result.series for point in series.points]
    measure(
        job,
        points,
        folder,
        repeats=plan.repeats,
        seconds=plan.seconds,
        limit_seconds=plan.limit_seconds,
        say=say,
        keep=lambda: keep(result),
    )
    with interrupts_on_end():
        _beyond(plan, result, say, lambda: keep(result))
    return result


def _busy_threads(size: JobSize, job: ScaledJob) -> int:
    """Return the threads that a job keeps busy: with overlap, an actor's and a learner's in every rank."""
    return size.ranks * max(size.threads, 2 if job.overlaps else 1)


def _beyond(
    plan: StudyPlan, result: ScaleResult, say: Callable[[str], None], keep: Callable[[], object]
) -> None:
    """Add the synthetic and the simulated sizes to what was measured."""
    if plan.synthetic:
        for series in result.series:
            _add_synthetic(series, plan, say, keep)
    if plan.simulated:
        counts = sorted({n for n in (2, *plan.ranks, *plan.synthetic) if n > 1})
        say(f"timing Allreduce with {', '.join(map(str, counts))} ranks")
        result.timings = measure_allreduce(counts)
        for series in result.series:
            _simulate(series, plan, result, say)
        keep()


def _add_synthetic(
    series: SeriesResult, plan: StudyPlan, say: Callable[[str], None], keep: Callable[[], object]
) -> None:
    """Run the synthetic sizes. Sizes that are also measured show the error of sleeping ranks."""
    work = rank_work_of(series.points, series.series.unit)
    sizes = _possible_sizes(series.series, plan.synthetic, smallest=plan.smallest, say=say, done="run")
    points = [Point(size, "synthetic", False) for size in sizes]
    series.points += points
    for repeat in range(plan.repeats):
        for point in points:
            size = point.size
            rate, share = run_synthetic(
                work, size.ranks, size.num_envs / size.ranks, plan.seconds, seed=repeat
            )
            point.steps_per_second.append(rate)
            point.communicate_share.append(share)
            say(f"synthetic, {size.scaling}, {size.ranks} rank(s): {rate:,.0f} steps/s")
        keep()


def _simulate(series: SeriesResult, plan: StudyPlan, result: ScaleResult, say: Callable[[str], None]) -> None:
    """Simulate every size that was run, for validation, and every requested size with enough environments."""
    work = rank_work_of(series.points, series.series.unit)
    series.stands_on = work.stands_on
    model = fit_model(result.timings, result.cores, plan.link)
    simulated = functools.partial(simulate, work, model, threads=series.series.threads)
    for point in series.run_points:
        ranks, num_envs = point.size.ranks, point.size.num_envs
        sleeping = point.kind == "synthetic"
        series.validation.append(
            simulated(ranks=ranks, num_envs=num_envs, ranks_per_host=ranks, sleeping=sleeping)
        )
    per_host = result.ranks_on_a_host(series.series.threads)
    for size in _possible_sizes(
        series.series, plan.simulated, smallest=plan.smallest, say=say, done="simulated"
    ):
        series.simulated.append(simulated(ranks=size.ranks, num_envs=size.num_envs, ranks_per_host=per_host))


def _possible_sizes(
    series: Series, counts: tuple[int, ...], *, smallest: int, say: Callable[[str], None], done: str
) -> list[JobSize]:
    """Return the sizes with these numbers of ranks. Those with fewer environments than ranks are named, as
    not ``done``, and left out: their ranks would have a fraction of an environment each.
    """
    sizes = []
    for ranks in counts:
        size = series.size(ranks, smallest)
        if series.unit == "environments" and ranks > size.num_envs:
            say(f"{series.scaling}: {ranks} ranks exceed {size.num_envs} environments, not {done}")
        else:
            sizes.append(size)
    return sizes
