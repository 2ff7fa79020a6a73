"""Learning the distribution of returns: categorical (C51) and by quantiles (QR-DQN).

Notation: N transitions, A actions, K atoms or quantiles. ``returns`` and ``discounts`` ``[N]`` as in
``q_learning.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def atoms(low: float, high: float, number: int) -> Tensor:
    """Return the support z_i of a categorical distribution: ``number`` values from low to high, ``[K]``."""
    return torch.linspace(low, high, number)


def quantile_levels(number: int, device: torch.device | None = None) -> Tensor:
    """Return the midpoints tau_i = (2 i - 1) / 2 K of K equal quantiles, ``[K]``.

    Source: Dabney 2018, arXiv 1710.10044, lemma 2.
    """
    return (torch.arange(number, device=device) + 0.5) / number


def project(returns: Tensor, discounts: Tensor, probabilities: Tensor, support: Tensor) -> Tensor:
    """Project the distribution of returns + discounts * Z onto the support of Z.

    Shapes: returns, discounts ``[N]``; probabilities of Z ``[N, K]``; support ``[K]``, evenly spaced; result
    ``[N, K]``. Source: Bellemare 2017, arXiv 1707.06887, eq. 7.
    """
    low, high = support[0], support[-1]
    spacing = support[1] - low
    moved = (returns[:, None] + discounts[:, None] * support).clamp(low, high)  # [N, K], of atom j
    distance = (moved[:, None, :] - support[None, :, None]).abs() / spacing  # [N, K, K], of atom i and j
    nearness = (1 - distance).clamp(0, 1)
    return (nearness @ probabilities[:, :, None]).squeeze(-1)  # eq. 7


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -sum_i m_i log p_i of each transition: the loss of C51 (Bellemare 2017, algorithm 1).

    Shapes: logits and targets (probabilities) ``[N, K]``; result ``[N]``.
    """
    return -(targets.detach() * logits.log_softmax(-1)).sum(-1)


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, kappa: float = 1.0) -> Tensor:
    """Return sum_i E_j[rho_i(target_j - quantile_i)] of each transition, the quantile Huber loss.

    Shapes: quantiles ``[N, K]`` at ``quantile_levels(K)``; targets, samples or quantiles, ``[N, J]``; result
    ``[N]``. Source: Dabney 2018, arXiv 1710.10044, eq. 9, 10 and algorithm 1.
    """
    levels = quantile_levels(quantiles.shape[-1], quantiles.device).to(quantiles.dtype)[:, None]
    errors = targets.detach()[:, None, :] - quantiles[:, :, None]  # [N, K, J]
    size = errors.abs()
    huber = torch.where(size <= kappa, 0.5 * errors.square(), kappa * (size - 0.5 * kappa))  # eq. 9
    below = (errors.detach() < 0).float()
    return ((levels - below).abs() * huber / kappa).mean(-1).sum(-1)  # eq. 10
