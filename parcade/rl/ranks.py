"""Fitness shaping of evolution strategies."""

from __future__ import annotations

import numpy as np


def centered_ranks(scores: np.ndarray) -> np.ndarray:
    """Return ranks scaled to [-0.5, 0.5]; equal scores get the mean of their ranks. Shapes ``[n]``.

    Source: Salimans 2017, arXiv 1703.03864, section 2.1 (rank transformation), after Wierstra 2014.
    """
    n = len(scores)
    if n < 2:
        return np.zeros(n)
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank = last - (counts + 1) / 2
    return mean_rank[inverse] / (n - 1) - 0.5
