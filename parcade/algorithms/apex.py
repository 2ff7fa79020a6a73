"""Ape-X: one learner of prioritised n-step double dueling Q-learning, fed by many actors.

Paper: Horgan 2018, "Distributed Prioritized Experience Replay", arXiv 1803.00933, sections 3 and 4, algorithms 1 and 2.
Actors explore with a ladder of epsilons, and give new transitions their first priorities from their own values.
Deviations: (1) Adam is the default optimiser; (2) the two streams share the dense layer; (3) ``steps_per_update`` keeps
actors and learner in step, where the paper lets both run free; (4) the replay forgets the oldest, the paper removes
down to a soft limit; (5) the exponent of the importance weights rises from 0.4 to 1, where the paper leaves it at 0.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from parcade.algorithms.dqn import DQN, DQNConfig
from parcade.policy import NetworkConfig


@dataclass(frozen=True)
class ApexConfig(DQNConfig):
    """Hyper-parameters of Ape-X."""

    num_envs: int = 16
    """Environments over all actors."""
    network: NetworkConfig = NetworkConfig(normalize_input=False, dueling=True)
    """The policy's network."""
    unroll_length: int = 16
    """T: steps per environment that an actor delivers at once."""
    batch_size: int = 64
    """Transitions of an update."""
    steps_per_update: float = 8.0
    """Steps played, over all actors, for each update."""
    priority_exponent: float = 0.6
    """alpha of prioritised replay."""
    epsilon_base: float = 0.4
    """Environment i of N explores with epsilon_base^(1 + epsilon_exponent i / (N - 1))."""
    epsilon_exponent: float = 7.0
    """How steeply the ladder of epsilons falls."""
    max_grad_norm: float | None = 40.0
    """Gradients longer than this are shortened to it."""


class Apex(DQN):
    """DQN's update; what makes it Ape-X are its actors and its replay."""
