"""Value heads: what a Q network predicts of the return of each action, its mean or its distribution.

Papers: Mnih 2015, Nature 518:529 (the mean); Bellemare 2017, arXiv 1707.06887 (C51: probabilities of fixed
atoms); Dabney 2018, arXiv 1710.10044 (QR-DQN: quantiles of fixed levels).
Notation: N transitions, A actions; z ``[..., K]`` are the K numbers that describe the distribution Z(x, a) of
the return: Q(x, a) itself, the logits of K atoms, or K quantiles. The maths is in ``rl/distributional.py``.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from parcade.model.networks import NetworkConfig
from parcade.rl.distributional import atoms, cross_entropy, project, quantile_huber_loss


class ValueHead(nn.Module):
    """Turns z into Q values, targets and losses. It has no parameters.

    Attributes: ``size`` is K.
    """

    size: int

    def expectation(self, z: Tensor) -> Tensor:
        """Return Q(x, a) = E[Z(x, a)]. Shapes: z ``[..., K]``; result ``[...]``."""
        raise NotImplementedError

    def targets(self, returns: Tensor, discounts: Tensor, z: Tensor) -> Tensor:
        """Return the distribution of returns + discounts * Z, in the form that ``losses`` compares with.

        Shapes: returns, discounts ``[N]``; z of the next action ``[N, K]``; result ``[N, K]``.
        """
        raise NotImplementedError

    def losses(self, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each transition, and its error for the priorities of a replay.

        Shapes: z of the actions taken ``[N, K]``; targets ``[N, K]``; results ``[N]``.
        """
        raise NotImplementedError


class MeanHead(ValueHead):
    """z is Q(x, a)."""

    size = 1

    def expectation(self, z: Tensor) -> Tensor:
        return z.squeeze(-1)

    def targets(self, returns: Tensor, discounts: Tensor, z: Tensor) -> Tensor:
        return returns[:, None] + discounts[:, None] * z

    def losses(self, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Huber loss with delta 1, the clipped error of Mnih 2015; the error is the TD error."""
        errors = (z - targets).squeeze(-1)
        return F.huber_loss(errors, errors.new_zeros(errors.shape), reduction="none"), errors


class CategoricalHead(ValueHead):
    """z are the logits of ``num_atoms`` atoms, evenly spaced on [v_min, v_max]."""

    support: Tensor

    def __init__(self, num_atoms: int, v_min: float, v_max: float) -> None:
        super().__init__()
        self.size = num_atoms
        # Not in checkpoints: config.json determines it.
        self.register_buffer("support", atoms(v_min, v_max, num_atoms), persistent=False)

    def expectation(self, z: Tensor) -> Tensor:
        return z.softmax(-1) @ self.support  # Bellemare 2017, algorithm 1, line 2

    def targets(self, returns: Tensor, discounts: Tensor, z: Tensor) -> Tensor:
        return project(returns, discounts, z.softmax(-1), self.support)  # Bellemare 2017, eq. 7

    def losses(self, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy, which is also the error (Hessel 2018, arXiv 1710.02298, "Rainbow")."""
        losses = cross_entropy(z, targets)  # Bellemare 2017, algorithm 1, last line
        return losses, losses


class QuantileHead(ValueHead):
    """z are ``num_quantiles`` quantiles, at the midpoints of equal parts of [0, 1]."""

    def __init__(self, num_quantiles: int) -> None:
        super().__init__()
        self.size = num_quantiles

    def expectation(self, z: Tensor) -> Tensor:
        return z.mean(-1)  # Dabney 2018, algorithm 1: Q is the sum of q_j theta_j, with q_j = 1 / K

    def targets(self, returns: Tensor, discounts: Tensor, z: Tensor) -> Tensor:
        return returns[:, None] + discounts[:, None] * z  # Dabney 2018, algorithm 1: T theta_j

    def losses(self, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Quantile Huber loss with kappa 1, which is also the error."""
        losses = quantile_huber_loss(z, targets)  # Dabney 2018, eq. 10
        return losses, losses


def value_head_of(config: NetworkConfig) -> ValueHead:
    """Return the value head that the config names."""
    if config.value_head == "c51":
        return CategoricalHead(config.num_atoms, config.v_min, config.v_max)
    if config.value_head == "quantile":
        return QuantileHead(config.num_quantiles)
    return MeanHead()
