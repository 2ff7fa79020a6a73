"""Evolution strategies: perturbed policies play complete episodes, and theta moves towards the better ones.

Paper: Salimans 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning",
arXiv 1703.03864, algorithm 2.
Notation: theta are the parameters; epsilon_i is the noise of member i; sigma is its standard deviation. Every
process can draw epsilon_i from its seed, so only seeds and scores are communicated.
Deviations: (1) instead of virtual batch normalisation, a reference batch normalises the inputs pixel by
pixel, and layer normalisation is used within the network; (2) the noise is generated from each seed instead
of being read from a shared table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from parcade.algorithms.base import Algorithm, AlgorithmConfig
from parcade.exchange.base import Exchange, OptimizerFactory, set_learning_rate
from parcade.experience.population_batch import PopulationBatch, noise_of
from parcade.model import optimizers
from parcade.model.image_networks import SpectralConv2d
from parcade.model.policy import NetworkConfig
from parcade.ranges import Count, NonNegative, Positive
from parcade.rl.ranks import centered_ranks
from parcade.rl.schedules import linear


@dataclass(frozen=True)
class ESConfig(AlgorithmConfig):
    """Hyper-parameters of evolution strategies."""

    num_envs: Count = 4
    """Number of environments, over all ranks or actors; each rank or actor steps its own sequentially."""
    network: NetworkConfig = NetworkConfig(layer_norm=True)
    """The policy's network."""
    population: Count = 40
    """Perturbed policies per update, in mirrored pairs of noise epsilon and -epsilon."""
    sigma: Positive = 0.05
    """Standard deviation of the noise."""
    learning_rate: Positive = 1e-2
    """Learning rate of Adam."""
    final_learning_rate: NonNegative | None = None
    """Learning rate at the end of a linear decay over total_frames; None keeps the learning rate constant."""
    weight_decay: NonNegative = 5e-3
    """Coefficient of the L2 penalty; the gradient gets this times the parameters."""
    games_per_member: Count = 1
    """Complete episodes each perturbed policy plays."""


class ES(Algorithm):
    """One step along the score-weighted sum of the noise (algorithm 2, line 11)."""

    source_kind: ClassVar[str] = "population"
    head: ClassVar[str] = "actor_critic"
    continuous: ClassVar[bool] = True
    acts_greedily: ClassVar[bool] = True

    def optimizer(self) -> OptimizerFactory:
        return lambda parameters: optimizers.Adam(parameters, self.config.learning_rate)

    def update(self, batch: PopulationBatch, exchange: Exchange, progress: float) -> dict[str, Tensor]:
        c = self.config
        set_learning_rate(exchange.optimizer, linear(c.learning_rate, c.final_learning_rate, progress))
        own = np.stack([batch.seeds, batch.signs, batch.scores], axis=1).astype(np.float64)
        everybody = exchange.gather_rows(own)
        weights = centered_ranks(everybody[:, 2])
        first = exchange.rank * len(own)  # every rank has the same number of members; rows are in rank order
        grad, n = exchange.parameters.grad, len(everybody)
        for (seed, sign, _), weight in zip(own, weights[first : first + len(own)], strict=True):
            # The exchange averages over ranks; the factor world_size turns this into the sum over members.
            noise = noise_of(int(seed), grad.numel()).to(grad.device)
            grad.add_(noise, alpha=-weight * sign * exchange.world_size / (n * c.sigma))
        grad.add_(exchange.parameters.data.detach(), alpha=c.weight_decay)
        exchange.apply()
        for module in self.policy.modules():
            if isinstance(module, SpectralConv2d):  # no forward pass records gradients
                module.iterate()
        scores = everybody[:, 2]
        return {
            "population/score_mean": torch.tensor(scores.mean()),
            "population/score_max": torch.tensor(scores.max()),
            "population/score_deviation": torch.tensor(scores.std()),
        }
