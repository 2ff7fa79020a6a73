"""V-trace: off-policy corrected returns and advantages.

Paper: Espeholt 2018, "IMPALA", arXiv 1802.01561, section 4.1. Notation, all ``[T, B]`` unless noted:
``rho_t`` and ``c_t`` are truncated ratios pi(a_t|x_t) / mu(a_t|x_t); ``discounts[t]`` is gamma * (1 -
done_t); ``values[t]`` is V(x_t) of the target policy; ``bootstrap_value`` ``[B]`` is V(x_T). The rewards of
truncated steps already include gamma * V(final observation).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class VTraceReturns(NamedTuple):
    """Value targets v_t and policy-gradient advantages, both ``[T, B]`` and detached."""

    targets: Tensor
    advantages: Tensor


@torch.no_grad()
def vtrace_returns(
    log_ratios: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    *,
    lambda_: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    pg_rho_clip: float = 1.0,
) -> VTraceReturns:
    """Compute V-trace targets and advantages of a batch of unrolls.

    Shapes: log_ratios (log pi(a_t|x_t) - log mu(a_t|x_t)), rewards, discounts, values ``[T, B]``;
    bootstrap_value ``[B]``. If both policies are equal, the targets with lambda 1 are n-step returns. With
    lambda below 1 the advantages differ from GAE's even then, because they look one step ahead to v_{t+1}, as
    in the paper. Source: arXiv 1802.01561, eq. 1, remark 1 (the recursion) and remark 2 (lambda).
    """
    ratios = log_ratios.exp()
    rhos = ratios.clamp(max=rho_clip)
    cs = lambda_ * ratios.clamp(max=c_clip)  # remark 2
    values_tp1 = torch.cat([values[1:], bootstrap_value[None]])
    deltas = rhos * (rewards + discounts * values_tp1 - values)
    corrections = torch.empty_like(values)  # v_t - V(x_t)
    following = torch.zeros_like(bootstrap_value)
    for t in reversed(range(values.shape[0])):
        following = deltas[t] + discounts[t] * cs[t] * following  # remark 1
        corrections[t] = following
    targets = values + corrections
    targets_tp1 = torch.cat([targets[1:], bootstrap_value[None]])
    # Section 4.2: the advantage in the policy gradient, with its own truncation level.
    advantages = ratios.clamp(max=pg_rho_clip) * (rewards + discounts * targets_tp1 - values)
    return VTraceReturns(targets, advantages)
