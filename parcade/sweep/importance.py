"""How much each setting matters: the share of the objective's variance that it explains alone.

Objectives are replaced by their ranks, so that one failed training does not decide. Each setting then gets a
least-squares fit of the ranks, a parabola of a number or a level per listed value, and its adjusted R^2. This
needs few trials and no model of how settings interact: two settings that only matter together get nothing.
``chance`` is the fraction of random permutations of the objectives with an equal or better fit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

from parcade.sweep.space import Axis, Choice, Space, Value

FEWEST_TRIALS = 6
PERMUTATIONS = 2000


class Importance(NamedTuple):
    """A setting with its share of the variance, from 0 to 1, and the probability of it by chance."""

    name: str
    share: float
    chance: float


def importances(space: Space, settings: list[dict[str, Value]], values: list[float]) -> list[Importance]:
    """Return the importance of every setting, the highest first; none with fewer than ``FEWEST_TRIALS``.

    ``settings`` and ``values`` belong to the same trials, all judged after the same budget.
    """
    if len(values) < FEWEST_TRIALS or len(set(values)) == 1:
        return []
    ranks = stats.rankdata(values)
    ranks = (ranks - ranks.mean()) / np.linalg.norm(ranks - ranks.mean())
    random = np.random.default_rng(0)
    shuffled = random.permuted(np.tile(ranks, (PERMUTATIONS, 1)), axis=1)
    found = []
    for name, axis in space.items():
        basis = _basis(axis, [each[name] for each in settings])
        freedom = len(ranks) - 1 - basis.shape[1]
        if not 0 < basis.shape[1] or freedom < 1:
            found.append(Importance(name, 0.0, 1.0))
            continue
        explained = float(np.sum((ranks @ basis) ** 2))
        by_chance = np.sum((shuffled @ basis) ** 2, axis=1)
        share = 1 - (1 - explained) * (len(ranks) - 1) / freedom
        chance = (1 + np.count_nonzero(by_chance >= explained - 1e-12)) / (1 + PERMUTATIONS)
        found.append(Importance(name, max(0.0, share), float(chance)))
    return sorted(found, key=lambda each: (-each.share, each.chance))


def _basis(axis: Axis, values: list[Value]) -> np.ndarray:
    """Return an orthonormal basis ``[trials, k]`` of the fits of a setting, without the constant."""
    if isinstance(axis, Choice):
        columns = np.array([[value == level for level in axis.values] for value in values], float)
    else:
        x = np.array([axis.coordinate(value) for value in values])
        x = (x - x.mean()) / (x.std() or 1.0)
        columns = np.stack([x, x**2], axis=1)
    left, sizes, _ = np.linalg.svd(columns - columns.mean(0), full_matrices=False)
    return left[:, sizes > 1e-9 * max(1.0, sizes.max())]
