"""The questions that fits answer: how many cores a rate or a score in a given time requires, and the cost."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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
    q, answers = questions, []
    if q.rate is not None:
        answers += _cores_for(q, fits, series, "rate", f"{q.rate:,.0f} steps/s", q.rate, hours=1.0)
    if q.score is not None and q.minutes is not None and q.curve is not None:
        steps, milestone = steps_to_score(q.curve, q.score)
        rate = steps / (60 * q.minutes)
        text = f"a score of {milestone:g} in {q.minutes:g} min ({steps:,} steps, so {rate:,.0f} steps/s)"
        answers += _cores_for(q, fits, series, "score", text, rate, hours=q.minutes / 60)
    return answers


def _cores_for(
    questions: Questions,
    fits: dict[str, CurveFit],
    series: Series,
    kind: Literal["rate", "score"],
    text: str,
    rate: float,
    *,
    hours: float,
) -> list[Answer]:
    """Return an answer per fit: the cores for a rate, and what they cost for some hours."""
    answers = []
    for name, fit in fits.items():
        cores, nodes, cost = fit.size_for(rate), None, None
        ranks = None if cores is None else usable_ranks(series, cores)
        cores = None if ranks is None else ranks * series.threads
        if cores is not None and fit.predict(cores) < rate * (1 - 1e-9):
            cores = None  # the next size that the job can use is beyond the peak
        if cores is not None and ranks is not None:
            per_node = max(1, questions.cores_per_node // series.threads)
            nodes = math.ceil(ranks / per_node)
            cost = nodes * questions.price * hours if questions.price is not None else None
        answers.append(Answer(kind, text, name, cores, nodes, cost))
    return answers
