"""GA3C: A2C's loss with one central policy. Actors play, a predictor selects actions, a trainer learns.

Paper: Babaeizadeh 2017, "Reinforcement Learning through Asynchronous Advantage Actor-Critic on a GPU",
arXiv 1611.06256, section 4.
Actors have no network: they put observations into the prediction queue and receive actions, and put complete
unrolls into the training queue. The acting policy may change within an unroll; ``policy_version`` records the
version of each step.
Deviations: (1) predictor and trainer share one process and one copy of the weights, and alternate; (2) an
actor steps several environments in parallel; (3) those of ``a2c``.
"""

from __future__ import annotations

from dataclasses import dataclass

from parcade.algorithms.a2c import A2C, A2CConfig
from parcade.ranges import Count


@dataclass(frozen=True)
class GA3CConfig(A2CConfig):
    """Hyper-parameters of GA3C."""

    num_envs: Count = 32
    """Number of environments, over all actors."""
    unrolls_per_update: Count = 1
    """Unrolls per update; an unroll contains all environments of one actor."""


class GA3C(A2C):
    """A2C's update; the predictor, which selects the actions, makes it GA3C."""
