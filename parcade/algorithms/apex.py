"""Ape-X: prioritised n-step double dueling Q-learning with one learner and many actors.

Paper: Horgan 2018, "Distributed Prioritized Experience Replay", arXiv 1803.00933, sections 3 and 4,
algorithms 1 and 2.
Each environment explores with its own epsilon. Actors compute the initial priorities of new transitions from
their own values.
Deviations: (1) Adam is the default optimiser; (2) the dueling network is that of ``dqn``,
whose two streams share the dense layer, without scaled gradients; (3) ``steps_per_update`` fixes the ratio of
actor steps to updates, where the paper lets both run freely; (4) the replay overwrites its oldest
transitions, where the paper removes them down to a soft limit; (5) the exponent of the importance weights
rises from 0.4 to 1, where the paper keeps it at 0.4; (6) with a value head other than ``mean``, new
transitions take the largest priority of their shard: unrolls hold no distributions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parcade.algorithms.dqn import DQN, DQNConfig
from parcade.exchange.base import Exchange
from parcade.experience.replay import TransitionBatch
from parcade.model.policy import NetworkConfig
from parcade.ranges import Count, Fraction, NonNegative, Positive, PositiveFraction


@dataclass(frozen=True)
class ApexConfig(DQNConfig):
    """Hyper-parameters of Ape-X."""

    num_envs: Count = 16
    """Number of environments, over all actors."""
    network: NetworkConfig = NetworkConfig(normalize_input=False, dueling=True)
    """The policy's network."""
    unroll_length: Count = 16
    """T: steps per environment that an actor delivers at once."""
    batch_size: Count = 64
    """Transitions per update."""
    steps_per_update: Positive = 8.0
    """Steps per update, over all actors."""
    priority_exponent: Fraction = 0.6
    """alpha of prioritised replay."""
    epsilon_base: PositiveFraction = 0.4
    """Environment i of N explores with epsilon_base^(1 + epsilon_exponent i / (N - 1))."""
    epsilon_exponent: NonNegative = 7.0
    """How steeply epsilon falls from environment to environment; see epsilon_base."""
    max_grad_norm: Positive | None = 40.0
    """Clip the norm of gradients to this."""


def epsilon_ladder(first: int, count: int, total: int, base: float, exponent: float) -> Tensor:
    """Return epsilon ``[count]`` of environments ``first .. first + count - 1`` of ``total``.

    Environment i explores with base^(1 + exponent * i / (total - 1)). Source: Horgan 2018, arXiv 1803.00933,
    section 4.1.
    """
    i = torch.arange(first, first + count, dtype=torch.float64).clamp(max=max(total - 1, 0))
    return (base ** (1 + exponent * i / max(total - 1, 1))).float()


class Apex(DQN):
    """DQN's update; the actors and the replay make it Ape-X."""

    def update(self, batch: TransitionBatch, exchange: Exchange, progress: float) -> dict[str, Tensor]:
        c = self.config
        played = epsilon_ladder(0, c.num_envs, c.num_envs, c.epsilon_base, c.epsilon_exponent)
        return {**super().update(batch, exchange, progress), "policy/epsilon": played.mean()}
