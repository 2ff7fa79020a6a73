"""Aggregate scores over runs and games, with confidence intervals (Agarwal 2021, arXiv 2108.13264).

Scores are arrays ``[runs, games]`` of normalised scores, e.g. human-normalised. The column of a game with
fewer runs than others ends with NaN. Each game counts alike, however many runs it has; for games with equally
many runs, the definitions are those of the library rliable, which the tests compare with.
"""

from __future__ import annotations

import math
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


def _num_runs(scores: np.ndarray) -> np.ndarray:
    """Return the number of runs of each game ``[games]``."""
    return np.count_nonzero(~np.isnan(scores), axis=0)


def mean(scores: np.ndarray) -> float:
    """Return the mean over games of the mean over runs."""
    return float(np.nanmean(scores, 0).mean())


def median(scores: np.ndarray) -> float:
    """Return the median over games of the mean over runs."""
    return float(np.median(np.nanmean(scores, 0)))


def interquartile_mean(scores: np.ndarray) -> float:
    """Return the mean of the middle half of all runs of all games: less noisy than the median.

    With unequal numbers of runs, it is that of the least number of copies of every run that gives all games
    equally many.
    """
    num_runs = _num_runs(scores)
    if (num_runs == len(scores)).all():
        return float(stats.trim_mean(scores, 0.25, axis=None))
    copies = math.lcm(*map(int, num_runs))  # of each game
    # Weights instead of copies, which may be very many. trim_mean drops a whole number of copies at each end.
    dropped = copies * len(num_runs) // 4 / copies
    known = ~np.isnan(scores)
    values, weights = scores[known], np.broadcast_to(1 / num_runs, scores.shape)[known]
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    kept = np.diff(np.clip(reached, dropped, len(num_runs) - dropped), prepend=dropped)
    return float(np.sum(kept * values[order]) / np.sum(kept))


def optimality_gap(scores: np.ndarray, target: float = 1.0) -> float:
    """Return by how much runs fall short of ``target`` on average; scores above it count as the target."""
    return float(target - np.nanmean(np.minimum(scores, target), 0).mean())


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

    Every repetition draws as many runs of each game as it has, with replacement and independently for each
    game. With one run of each, the interval is the value itself.
    """
    num_runs, (most, games) = _num_runs(scores), scores.shape
    missing = np.arange(most)[:, None] >= num_runs
    drawn = []
    for _ in range(repetitions):
        picked = scores[random.integers(0, num_runs, (most, games)), np.arange(games)]
        drawn.append(aggregate(np.where(missing, np.nan, picked)))
    tail = 50 * (1 - confidence)
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return Interval(aggregate(scores), float(low), float(high))


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return, per threshold ``[K]``, the mean over games of the fraction of runs with a score above it."""
    above = np.count_nonzero(scores[None] > thresholds[:, None, None], axis=1)  # [K, games]
    return (above / _num_runs(scores)).mean(1)


def probability_of_improvement(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the probability that a run of ours beats one of theirs on a random game; a tie counts as half.

    Shapes: ``[runs, games]`` and ``[other runs, games]``, of the same games. The mean over games of the
    Mann-Whitney statistic divided by the number of pairs.
    """
    wins = (ours[:, None] > theirs[None]) + 0.5 * (ours[:, None] == theirs[None])
    return float(wins.mean())
