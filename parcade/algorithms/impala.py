"""IMPALA: V-trace actor-critic on unrolls from many actors.

Paper: Espeholt 2018, "IMPALA", arXiv 1802.01561, sections 3 and 4. Notation as in ``rl/vtrace.py``; the loss and its
deviations are ``vtrace``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from parcade.algorithms.vtrace import VTraceLearner, VTraceLossConfig


@dataclass(frozen=True)
class ImpalaConfig(VTraceLossConfig):
    """Hyper-parameters of IMPALA."""

    num_envs: int = 32
    """Environments over all actors."""
    unrolls_per_update: int = 1
    """Unrolls, each of all environments of one actor, in one learner's update."""


class Impala(VTraceLearner):
    """The update of every delivery of unrolls."""

    source_kind: ClassVar[str] = "rollout"
