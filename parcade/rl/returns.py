"""Returns and advantages over a rollout.

Notation (all ``[T, B]`` unless noted): ``rewards[t]`` is r_t, the reward for action a_t in state x_t;
``discounts[t]`` is gamma * (1 - done_t), so that returns do not cross the end of an episode; ``values[t]`` is
V(x_t); ``bootstrap_value`` ``[B]`` is V(x_T). The rewards of truncated steps already include gamma * V(final
observation).
"""

from __future__ import annotations

import torch
from torch import Tensor


def discounted_returns(rewards: Tensor, discounts: Tensor, bootstrap_value: Tensor) -> Tensor:
    """Compute discounted returns: G_t = r_t + discount_t * G_{t+1}, G_T = bootstrap_value.

    Shapes: rewards, discounts ``[T, B]``; bootstrap_value ``[B]``; result ``[T, B]``.
    Source: Sutton & Barto 2018, eq. 3.9.
    """
    returns = torch.empty_like(rewards)
    following = bootstrap_value
    for t in reversed(range(rewards.shape[0])):
        following = rewards[t] + discounts[t] * following
        returns[t] = following
    return returns


def generalized_advantages(
    rewards: Tensor, discounts: Tensor, values: Tensor, bootstrap_value: Tensor, lambda_: float
) -> Tensor:
    """Compute GAE(lambda), an exponentially weighted mean of the n-step advantages.

    lambda_=1 gives the longest n-step advantage in the rollout, which is A3C's estimate
    (Mnih 2016, algorithm S3); lambda_=0 gives the one-step temporal difference.

    Shapes: rewards, discounts, values ``[T, B]``; bootstrap_value ``[B]``; result ``[T, B]``.
    Source: Schulman 2016, arXiv 1506.02438, eq. 11 and 16.
    """
    values_tp1 = torch.cat([values[1:], bootstrap_value[None]])
    deltas = rewards + discounts * values_tp1 - values  # eq. 11
    advantages = torch.empty_like(rewards)
    following = torch.zeros_like(bootstrap_value)
    for t in reversed(range(rewards.shape[0])):
        following = deltas[t] + lambda_ * discounts[t] * following  # eq. 16, with a discount per step
        advantages[t] = following
    return advantages


def q_lambda_returns(rewards: Tensor, discounts: Tensor, max_q_tp1: Tensor, lambda_: float) -> Tensor:
    """Peng's Q(lambda): G_t = r_t + discount_t * ((1 - lambda) * max_a Q(x_{t+1}, a) + lambda * G_{t+1}).

    The last step has no G_{t+1} and uses max_a Q(x_T, a) alone.

    Shapes: rewards, discounts, max_q_tp1 ``[T, B]``; result ``[T, B]``.
    Source: Gallici 2024, arXiv 2407.04811, section 3 and algorithm 1 (PQN with lambda-returns).
    """
    returns = torch.empty_like(rewards)
    following = max_q_tp1[-1]
    for t in reversed(range(rewards.shape[0])):
        mixed = max_q_tp1[t] + lambda_ * (following - max_q_tp1[t])
        following = rewards[t] + discounts[t] * mixed
        returns[t] = following
    return returns
