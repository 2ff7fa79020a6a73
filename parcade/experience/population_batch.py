"""The batch of evolution strategies: the scores of a generation of perturbed policies, and the noise of each.

Source: Salimans 2017, arXiv 1703.03864, algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass
class PopulationBatch:
    """Results of n members: ``seeds`` and ``signs`` ``[n]`` of their noise, mean raw ``scores`` ``[n]``."""

    seeds: np.ndarray
    signs: np.ndarray
    scores: np.ndarray
    policy_version: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.int64))


def noise_of(seed: int, size: int) -> Tensor:
    """Return epsilon ``[size]`` of a seed; the same in every process."""
    return torch.randn(size, generator=torch.Generator().manual_seed(int(seed)))


def members_of(run_seed: int, generation: int, population: int) -> tuple[np.ndarray, np.ndarray]:
    """Return seeds and signs ``[population]`` of a generation; members 2k and 2k + 1 are a mirrored pair."""
    words = np.random.SeedSequence([run_seed, 2**34 + generation]).generate_state(population // 2, np.uint32)
    return np.repeat(words.astype(np.int64), 2), np.tile([1, -1], population // 2)
