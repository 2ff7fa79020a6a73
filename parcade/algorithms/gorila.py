"""Gorila: DQN on many learners with a sharded parameter server.

Paper: Nair 2015, "Massively Parallel Methods for Deep Reinforcement Learning", arXiv 1507.04296, sections 4 and 5.
Bundled, every learner plays its own environments into its own replay; with ``--no-bundled`` actors of their own fill a
global replay that all learners sample from. The loss is ``dqn``'s.
Deviations: (1) those of ``dqn``; (2) the server drops what the paper's learners drop themselves, gradients of outlying
loss, so that all learners share one running mean; (3) ``batch_size`` is of one learner. The paper gives neither the
staleness nor the deviation it drops at.
"""

from __future__ import annotations

from dataclasses import dataclass

from parcade.algorithms.dqn import DQN, DQNConfig


@dataclass(frozen=True)
class GorilaConfig(DQNConfig):
    """Hyper-parameters of Gorila."""

    num_envs: int = 8
    """Environments over all learners, or over all actors where they are apart."""
    unroll_length: int = 1
    """T: steps per environment between updates of a learner, or between an actor's deliveries."""
    batch_size: int = 32
    """Transitions of an update of one learner."""
    bundled: bool = True
    """Actor, replay and learner together; or actors apart and a global replay in shards."""
    steps_per_update: float = 4.0
    """Steps played for each update where actors are apart; bundled, unroll_length decides it."""


class Gorila(DQN):
    """DQN's update; what makes it Gorila are exchange and source."""
