"""The mean over runs that differ by their seed, with a confidence interval of the mean."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

GRID_POINTS = 300
# Quantile 0.975 of Student's t distribution with 1, 2, ... degrees of freedom.
STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
NORMAL = 1.960


class Band(NamedTuple):
    """Mean and 95 % confidence interval of the mean over runs at each x, ``[k]`` each."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray


def t_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution, to three decimals; NORMAL beyond the table."""
    return STUDENT_T[degrees - 1] if degrees <= len(STUDENT_T) else NORMAL


def band(series: list[tuple[np.ndarray, np.ndarray]]) -> Band | None:
    """Return the band of two or more series ``(x [k], y [k])``, or None if they have no x in common.

    Series are interpolated linearly at the same values of x, which reach only as far as all series do: where
    a run has ended, the mean over the others would jump. The interval is Student's t with n - 1 degrees of
    freedom, so with two or three seeds it is wide, as it should be.
    """
    series = [(x, y) for x, y in series if len(x)]
    if len(series) < 2:
        return None
    first, last = max(x[0] for x, _ in series), min(x[-1] for x, _ in series)
    if not first < last:
        return None
    grid = np.linspace(first, last, GRID_POINTS)
    values = np.array([np.interp(grid, x, y) for x, y in series])  # [runs, k]
    mean = values.mean(0)
    half = half_width(values)
    return Band(grid, mean, mean - half, mean + half)


def half_width(values: np.ndarray) -> np.ndarray:
    """Return half the width of the 95 % confidence interval of the mean of ``[runs, ...]``, two or more."""
    return t_quantile(len(values) - 1) * values.std(0, ddof=1) / math.sqrt(len(values))
