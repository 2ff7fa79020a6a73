"""Gorila: DQN on many learners with a sharded parameter server.

Paper: Nair 2015, "Massively Parallel Methods for Deep Reinforcement Learning", arXiv 1507.04296, sections 4
and 5.
In the bundled form, each learner plays its own environments and fills its own replay. With ``--no-bundled``,
separate actors fill a global replay that all learners sample from. The loss is that of ``dqn``.
Deviations: (1) those of ``dqn``; (2) the server, not the learner, drops gradients whose loss is an outlier,
so that all learners share one running mean; (3) ``batch_size`` is per learner. The paper does not give its
thresholds for staleness and for outliers.
"""

from __future__ import annotations

from dataclasses import dataclass

from parcade.algorithms.dqn import DQN, DQNConfig
from parcade.ranges import Count, Positive


@dataclass(frozen=True)
class GorilaConfig(DQNConfig):
    """Hyper-parameters of Gorila."""

    num_envs: Count = 8
    """Number of environments, over all learners if bundled, else over all actors."""
    unroll_length: Count = 1
    """T: steps per environment between updates of a learner (bundled) or deliveries of an actor."""
    batch_size: Count = 32
    """Transitions per update of one learner."""
    bundled: bool = True
    """Run actor, replay and learner in one process; else use separate actors and a sharded replay."""
    steps_per_update: Positive = 4.0
    """Steps per update with separate actors; if bundled, unroll_length determines it."""


class Gorila(DQN):
    """DQN's update; the exchange and the source make it Gorila."""
