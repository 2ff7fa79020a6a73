"""IMPALA: V-trace actor-critic on unrolls from many actors.

Paper: Espeholt 2018, "IMPALA", arXiv 1802.01561, sections 3 and 4.
Notation as in ``rl/vtrace.py``; the loss and its deviations are those of ``vtrace``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from parcade.algorithms.vtrace import VTraceLearner, VTraceLossConfig
from parcade.ranges import Count


@dataclass(frozen=True)
class ImpalaConfig(VTraceLossConfig):
    """Hyper-parameters of IMPALA."""

    num_envs: Count = 32
    """Number of environments, over all actors."""
    unrolls_per_update: Count = 1
    """Unrolls per update of one learner; an unroll contains all environments of one actor."""


class Impala(VTraceLearner):
    """One V-trace update per ``unrolls_per_update`` unrolls from actors."""

    source_kind: ClassVar[str] = "rollout"
