"""The questions that fits answer: how many cores a rate or a score in a given time requires, and the cost."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from parcade.errors import UsageError
from parcade.scale.fits import CurveFit
from parcade.scale.measure import Series


@dataclass(frozen=True)
class Questions:
    """The user's questions. None means not asked.

    ``rate`` is in steps/s. ``score`` is to be reached within ``minutes``, by the learning curve ``curve`` of
    a finished run. ``price`` is per node and hour.
    """

    rate: float | None = None
    score: float | None = None
    minutes: float | None = None
    curve: Path | None = None
    price: float | None = None
    cores_per_node: int = 1


class _Need(NamedTuple):
    """What a question comes down to: a rate in steps/s, held for some hours."""

    kind: Literal["rate", "score"]
    question: str
    rate: float
    hours: float


@dataclass(frozen=True)
class Answer:
    """Cores and nodes according to one fit, of a size that the job can use.

    ``cores`` is None if no such size reaches the rate.
    """

    kind: Literal["rate", "score"]
    question: str
    fit: str
    cores: int | None
    nodes: int | None = None
    cost: float | None = None


def steps_to_score(curve: Path, score: float) -> tuple[int, float]:
    """Return the steps of a finished run to its lowest milestone of at least ``score``, and that milestone.

    Errors: UsageError if there is none.
    """
    path = curve / "result.json" if curve.is_dir() else curve
    try:
        milestones = json.loads(path.read_text())["milestones"]
        steps = {float(name): int(mark["steps"]) for name, mark in milestones.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"curve={curve} holds no result.json of a finished run ({error}); give a run directory"
        ) from error
    reached = [milestone for milestone in steps if milestone >= score]
    if not reached:
        if not steps:
            raise UsageError(
                f"the run in {curve} reached no milestone, which is a mean score of its last 100 episodes; "
                "use the curve of a longer run"
            )
        raise UsageError(
            f"the run in {curve} never reached {score:g} (its best milestone is {max(steps)}); "
            "use a lower --score"
        )
    milestone = min(reached)
    return steps[milestone], milestone


def usable_ranks(series: Series, cores: int) -> int | None:
    """Return the fewest ranks with at least these cores that the job can use; None if it has none.

    Under strong scaling, ranks share a fixed number of environments, and their groups, evenly. How a program
    divides its job is unknown.
    """
    ranks = math.ceil(cores / series.threads)
    if series.scaling == "weak" or series.unit != "environments":
        return ranks
    possible = range(ranks, series.num_envs // series.groups + 1)
    return next((n for n in possible if series.num_envs % (n * series.groups) == 0), None)


def answer(questions: Questions, fits: dict[str, CurveFit], series: Series) -> list[Answer]:
    """Answer every question by every fit of a series.

    Errors: UsageError if the learning curve never reaches the score.
    """
    return [
        _cores_for(need, fit, series, questions) for need in _needs_of(questions) for fit in fits.values()
    ]


def _needs_of(questions: Questions) -> list[_Need]:
    """Return what each question requires. Errors: UsageError if the curve never reaches the score."""
    q, needs = questions, []
    if q.rate is not None:
        needs.append(_Need("rate", f"{q.rate:,.0f} steps/s", rate=q.rate, hours=1.0))
    if q.score is not None and q.minutes is not None and q.curve is not None:
        steps, milestone = steps_to_score(q.curve, q.score)
        rate = steps / (60 * q.minutes)
        text = f"a score of {milestone:g} in {q.minutes:g} min ({steps:,} steps, so {rate:,.0f} steps/s)"
        needs.append(_Need("score", text, rate=rate, hours=q.minutes / 60))
    return needs


def _cores_for(need: _Need, fit: CurveFit, series: Series, questions: Questions) -> Answer:
    """Return the cores that a need takes according to a fit, and what they cost."""
    unknown = Answer(need.kind, need.question, fit.name, cores=None)
    least = fit.size_for(need.rate)
    ranks = None if least is None else usable_ranks(series, least)
    if ranks is None:
        return unknown
    cores = ranks * series.threads
    if not fit.reaches(need.rate, cores):  # the next size that the job can use is beyond the peak
        return unknown
    nodes = math.ceil(ranks / max(1, questions.cores_per_node // series.threads))
    cost = None if questions.price is None else nodes * questions.price * need.hours
    return replace(unknown, cores=cores, nodes=nodes, cost=cost)
