"""What a sweep optimises, read from the reports that a run writes while it trains.

A trial is judged at ``CHECKS`` equally spaced points of its budget; the last one is its end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from parcade.errors import UsageError
from parcade.experience.episodes import ScoreBoard

CHECKS = 9
"""Successive halving by 3 looks at a trial after 1/9 and 1/3 of its budget."""
MOST_EXTRAPOLATION = 10.0
"""A run that does not reach the target score counts at most this many times its CPU seconds."""


@dataclass(frozen=True)
class Objective:
    """Without a ``target``: the mean score of the last 100 training episodes, to be maximised. With one: the
    CPU seconds to this score, to be minimised.
    """

    target: float | None = None

    @property
    def mode(self) -> Literal["min", "max"]:
        """Ray Tune's name of the direction."""
        return "max" if self.target is None else "min"

    @property
    def label(self) -> str:
        """Name of the values in tables and plots."""
        return "score" if self.target is None else f"CPU seconds to a score of {self.target_text}"

    @property
    def target_text(self) -> str:
        """The target with all its digits, because the trainings end at it; None without one."""
        return str(self.target).removesuffix(".0")

    def value(self, reports: list[dict[str, Any]], share: float = 1.0) -> float | None:
        """Return the objective after these reports of a run; None if no episode has ended.

        ``share`` is the part of the budget, in (0, 1], that the run has used (``Budget.share``).

        The mean of the last 100 episodes has to reach the target, as it has to end a run.
        A run below the target counts with its CPU seconds, extrapolated along the straight line from its
        first score to its best one, up to ``MOST_EXTRAPOLATION`` times what the complete budget would take.
        So a run without progress that a scheduler ends early is no better than a complete one.
        """
        scored = [report for report in reports if report["score_mean"] is not None]
        if not scored:
            return None
        if self.target is None:
            return float(scored[-1]["score_mean"])
        for report in scored:
            if report["score_mean"] >= self.target and report["episodes"] >= ScoreBoard.WINDOW:
                return float(report["cpu_seconds"])
        means = [report for report in scored if report["episodes"] >= ScoreBoard.WINDOW] or scored
        first, best = means[0]["score_mean"], max(report["score_mean"] for report in means)
        missing = self.target - first
        # The mean of a run's first few episodes may lie above the target.
        gained = min(1.0, (best - first) / missing) if missing > 0 else 1.0
        most = MOST_EXTRAPOLATION / share
        return float(scored[-1]["cpu_seconds"] * min(most, 1 / gained if gained else math.inf))


def parse_objective(text: str) -> Objective:
    """Return the objective named ``score`` or ``cpu_seconds_to:SCORE``. Errors: UsageError."""
    name, colon, target = text.partition(":")
    if text == "score":
        return Objective()
    if name == "cpu_seconds_to" and colon:
        try:
            number = float(target)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return Objective(number)
    raise UsageError(
        f"objective {text!r} is not one of score and cpu_seconds_to:SCORE, e.g. cpu_seconds_to:18"
    )


class Budget(NamedTuple):
    """Length of a training: its ``frames`` or ``wall_seconds``, as reports name them."""

    metric: str
    amount: float

    def reports_at(self, check: int, reports: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
        """Return the reports up to a check, from 1 to ``CHECKS``; None if the run has not reached it."""
        for index, report in enumerate(reports):
            if report[self.metric] >= self.amount * check / CHECKS:
                return reports[: index + 1]
        return None

    def share(self, reports: list[dict[str, Any]]) -> float:
        """Return the part of the budget that a run with these reports has used, at most 1; 1 without any.

        It is below 1 at the end of a run that ``--total-frames`` ends before its time is over.
        """
        return min(1.0, reports[-1][self.metric] / self.amount) if reports else 1.0
