"""Targets, importance weights and loss of Q-learning.

Notation: N transitions; ``q_online`` and ``q_target`` ``[N, A]`` are action values n steps later;
``discounts`` ``[N]`` are gamma^n, or 0 where the episode ended within the n steps; ``returns`` ``[N]`` are
the discounted sums of n rewards.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def value_of(q: Tensor, actions: Tensor) -> Tensor:
    """Return Q(x, a) of the actions. Shapes: q ``[..., A]``, actions ``[...]`` int64; result ``[...]``."""
    return q.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def double_q_targets(returns: Tensor, discounts: Tensor, q_online: Tensor, q_target: Tensor) -> Tensor:
    """Double Q-learning targets: the online network selects the next action, the target network evaluates it.

    Shapes: returns, discounts ``[N]``; q_online, q_target ``[N, A]``; result ``[N]``.
    Source: van Hasselt 2016, arXiv 1509.06461, eq. 4, with n-step returns as in Hessel 2018, arXiv 1710.02298
    ("multi-step learning").
    """
    return returns + discounts * value_of(q_target, q_online.argmax(-1))


def q_targets(returns: Tensor, discounts: Tensor, q_target: Tensor) -> Tensor:
    """Q-learning targets (Mnih 2015, algorithm 1). Shapes as in ``double_q_targets``."""
    return returns + discounts * q_target.amax(-1)


def epsilon_greedy_value(q: Tensor, epsilon: Tensor) -> Tensor:
    """E[Q(x, a)] under the epsilon-greedy policy, as in Expected Sarsa.

    Shapes: q ``[..., A]``, epsilon a scalar or ``[...]``; result ``[...]``.
    Source: Sutton & Barto 2018, eq. 6.9.
    """
    return (1 - epsilon) * q.amax(-1) + epsilon * q.mean(-1)


def importance_weights(probabilities: Tensor, size: int, beta: float) -> Tensor:
    """(1 / (size * P(i)))^beta, divided by the batch's maximum. Shapes ``[N]``; size is that of the replay.

    Source: Schaul 2016, arXiv 1511.05952, section 3.4.
    """
    weights = (size * probabilities).pow(-beta)
    return weights / weights.max()


def weighted_huber_loss(errors: Tensor, weights: Tensor) -> Tensor:
    """Mean of weight * Huber(error), delta = 1: the clipped error of Mnih 2015. Shapes ``[N]``; a scalar."""
    return (weights * F.huber_loss(errors, torch.zeros_like(errors), reduction="none")).mean()
