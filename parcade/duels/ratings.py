"""Ratings from the results of matches: the Bradley-Terry model, on Elo's scale.

Player i beats player j with probability p_i / (p_i + p_j); its rating is 1500 + 400 log10(p_i / m), with the
geometric mean m of all p. A draw counts half a win for both. The p maximise the likelihood of all results
together (Hunter 2004, "MM algorithms for generalized Bradley-Terry models", equation 3), so the order of the
matches does not matter. Every two players that met get one more match, a draw, which keeps the rating of a
player that always wins finite. Standard errors come from the inverse of the Fisher information.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MEAN_RATING = 1500.0
ELO = 400.0 / np.log(10.0)  # points per unit of log strength
SWEEPS = 10_000
TOLERANCE = 1e-10


class Ratings(NamedTuple):
    """Ratings and their standard errors, each ``[n]``, with a mean rating of 1500."""

    ratings: np.ndarray
    errors: np.ndarray


def bradley_terry(wins: np.ndarray) -> Ratings:
    """Return the ratings of n players. wins ``[n, n]``: how often i beat j, a draw counting half for both."""
    met = wins + wins.T
    wins = wins + 0.5 * (met > 0)
    met = wins + wins.T
    strength = np.ones(len(wins))
    for _ in range(SWEEPS):
        before = strength
        strength = wins.sum(1) / (met / (strength[:, None] + strength)).sum(1)  # equation 3
        strength /= np.exp(np.log(strength).mean())
        if np.abs(np.log(strength / before)).max() < TOLERANCE:
            break
    chance = strength[:, None] / (strength[:, None] + strength)
    information = -met * chance * chance.T
    np.fill_diagonal(information, 0.0)
    np.fill_diagonal(information, -information.sum(1))
    variance = np.linalg.pinv(information).diagonal()
    return Ratings(MEAN_RATING + ELO * np.log(strength), ELO * np.sqrt(variance))
