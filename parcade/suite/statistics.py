"""Aggregate scores over runs and games, with confidence intervals (Agarwal 2021, arXiv 2108.13264).

Scores are arrays ``[runs, games]`` of normalised scores, e.g. human-normalised. The definitions are those of
the library rliable, which the tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

Aggregate = Callable[[np.ndarray], float]


class Interval(NamedTuple):
    """A statistic and its bootstrap interval."""

    value: float
    low: float
    high: float


def mean(scores: np.ndarray) -> float:
    """Return the mean over games of the mean over runs."""
    return float(scores.mean(0).mean())


def median(scores: np.ndarray) -> float:
    """Return the median over games of the mean over runs."""
    return float(np.median(scores.mean(0)))


def interquartile_mean(scores: np.ndarray) -> float:
    """Return the mean of the middle half of all runs of all games: less noisy than the median."""
    return float(stats.trim_mean(scores, 0.25, axis=None))


def optimality_gap(scores: np.ndarray, target: float = 1.0) -> float:
    """Return by how much runs fall short of ``target`` on average; scores above it count as the target."""
    return float(target - np.minimum(scores, target).mean())


AGGREGATES: dict[str, Aggregate] = {
    "IQM": interquartile_mean,
    "median": median,
    "mean": mean,
    "optimality gap": optimality_gap,
}


def interval(
    scores: np.ndarray,
    aggregate: Aggregate,
    *,
    random: np.random.Generator,
    repetitions: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Return a statistic with its percentile bootstrap interval, stratified by game.

    Every repetition draws as many runs as there are, with replacement and independently for each game. With
    one run, the interval is the value itself.
    """
    runs, games = scores.shape
    drawn = [
        aggregate(scores[random.integers(0, runs, (runs, games)), np.arange(games)])
        for _ in range(repetitions)
    ]
    tail = 50 * (1 - confidence)
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return Interval(aggregate(scores), float(low), float(high))


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return, per threshold ``[K]``, the fraction of all runs with a score above it."""
    return (scores[None] > thresholds[:, None, None]).mean((1, 2))


def probability_of_improvement(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the probability that a run of ours beats one of theirs on a random game; a tie counts as half.

    Shapes: ``[runs, games]`` and ``[other runs, games]``, of the same games. The mean over games of the
    Mann-Whitney statistic divided by the number of pairs.
    """
    wins = (ours[:, None] > theirs[None]) + 0.5 * (ours[:, None] == theirs[None])
    return float(wins.mean())
