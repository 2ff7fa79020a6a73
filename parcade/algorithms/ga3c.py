"""GA3C: A2C's loss with one policy that acts for all: actors play, a predictor chooses, a trainer learns.

Paper: Babaeizadeh 2017, "Reinforcement Learning through Asynchronous Advantage Actor-Critic on a GPU", arXiv 1611.06256,
section 4. Actors hold no network: they put observations into the prediction queue and get actions, and put finished
unrolls into the training queue. The policy that acts changes within an unroll; ``policy_version`` says where.
Deviations: (1) predictor and trainer share one process and one copy of the weights, and take turns; (2) an actor steps
several environments side by side; (3) those of ``a2c``.
"""

from __future__ import annotations

from dataclasses import dataclass

from parcade.algorithms.a2c import A2C, A2CConfig


@dataclass(frozen=True)
class GA3CConfig(A2CConfig):
    """Hyper-parameters of GA3C."""

    num_envs: int = 32
    """Environments over all actors."""
    unrolls_per_update: int = 1
    """Unrolls, each of all environments of one actor, in an update."""


class GA3C(A2C):
    """A2C's update; what makes it GA3C is who chooses the actions."""
