"""Losses and the probabilities in them, for tensors of any leading shape ``[...]`` and A actions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def log_prob_of(logits: Tensor, actions: Tensor) -> Tensor:
    """Return log pi(a|x) of a categorical policy. Shapes: logits ``[..., A]``; actions, result ``[...]``."""
    return F.log_softmax(logits, dim=-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def entropy_of(logits: Tensor) -> Tensor:
    """Return the entropy in nats of a categorical policy. Shapes: logits ``[..., A]``; result ``[...]``."""
    log_probs = F.log_softmax(logits, dim=-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def policy_gradient_loss(log_prob: Tensor, advantages: Tensor) -> Tensor:
    """-E[A * log pi(a|x)], whose gradient is the policy gradient. Shapes ``[...]``; returns a scalar.

    Source: Williams 1992 (REINFORCE); Mnih 2016, arXiv 1602.01783, section 4, with A = R - V.
    """
    return -(advantages.detach() * log_prob).mean()


# Logarithms of ratios are cut here before exp. An infinite ratio would have a gradient of 0 * inf, which is
# not a number, even where the clipped term is the smaller one.
LARGEST_LOG_RATIO = 20.0


def clipped_surrogate_loss(
    log_prob: Tensor, behaviour_log_prob: Tensor, advantages: Tensor, clip: float
) -> Tensor:
    """-E[min(ratio * A, clip(ratio, 1 - clip, 1 + clip) * A)]. Shapes ``[...]``; returns a scalar.

    Source: Schulman 2017, arXiv 1707.06347, eq. 7.
    """
    ratio = (log_prob - behaviour_log_prob).clamp(max=LARGEST_LOG_RATIO).exp()
    surrogate = ratio * advantages
    clipped = ratio.clamp(1 - clip, 1 + clip) * advantages
    return -torch.minimum(surrogate, clipped).mean()  # eq. 7


def squared_error_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    """E[(prediction - target)^2], with no gradient through the target. Shapes ``[...]``; returns a scalar."""
    return (predictions - targets.detach()).square().mean()


EIGHT_ULPS = 2.0**-20  # relative, of float32


def explained_variance(predictions: Tensor, targets: Tensor) -> Tensor:
    """1 - Var[target - prediction] / Var[target]; 0 if all targets are equal. Shapes ``[...]``; a scalar.

    1 is a perfect prediction, and 0 is as good as a constant. Negative values are worse than a constant.
    Targets are equal if they vary by no more than the rounding of ``(target - prediction) + prediction``.
    """
    variance = targets.var(correction=0)
    rounding = EIGHT_ULPS**2 * (targets.square() + predictions.square()).mean()
    explained = 1 - (targets - predictions).var(correction=0) / variance
    return torch.where(variance > rounding, explained, torch.zeros_like(explained))


def approximate_kl(log_prob: Tensor, behaviour_log_prob: Tensor) -> Tensor:
    """Estimate KL(behaviour || target) from the actions taken; never negative. Shapes ``[...]``; a scalar.

    Source: Schulman 2020, "Approximating KL divergence" (http://joschu.net/blog/kl-approx.html),
    estimator k3.
    """
    log_ratio = (log_prob - behaviour_log_prob).clamp(max=LARGEST_LOG_RATIO)
    return (log_ratio.exp() - 1 - log_ratio).mean()
