"""A3C: A2C's loss on many asynchronous actor-learners.

Paper: Mnih 2016, "Asynchronous Methods for Deep Reinforcement Learning", arXiv 1602.01783, section 4 and
algorithm S3.
Each learner plays its own environments and pushes gradients to the parameter server. All learners share the
server's RMSProp statistics (section 4, "optimization"). The loss is that of ``a2c``.
Deviations: (1) a learner steps several environments in parallel, where each of the paper's threads had one;
(2) a gradient older than ``max_staleness`` updates is dropped; (3) those of ``a2c``.
"""

from __future__ import annotations

from dataclasses import dataclass

from parcade.algorithms.a2c import A2C, A2CConfig
from parcade.ranges import Count


@dataclass(frozen=True)
class A3CConfig(A2CConfig):
    """Hyper-parameters of A3C."""

    num_envs: Count = 16
    """Number of environments, over all learners."""


class A3C(A2C):
    """A2C's update; the exchange makes it asynchronous."""
