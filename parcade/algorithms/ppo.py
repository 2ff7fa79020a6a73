"""PPO: several epochs of clipped policy-gradient updates on every rollout.

Paper: Schulman 2017, "Proximal Policy Optimization Algorithms", arXiv 1707.06347, eq. 7 and 9, algorithm 1.
Notation: ratio = pi(a|x) / behaviour(a|x); advantages by GAE (arXiv 1506.02438).
Deviations: (1) advantages are normalised over the whole batch of all ranks, not per minibatch, so that ranks agree;
(2) the value loss is not clipped; (3) inputs may be normalised by running statistics. A recurrent policy's minibatches
are whole unrolls, begun from the stored state, instead of single steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from parcade.algorithms.base import (
    AlgorithmConfig,
    AlgorithmContext,
    bootstrap_value,
    normalized,
    rewards_with_truncation,
    shuffled_minibatches,
    update_statistics,
)
from parcade.exchange.base import Exchange, OptimizerFactory, learning_rate_of
from parcade.experience.batch import Batch
from parcade.rl.losses import approximate_kl, clipped_surrogate_loss, entropy_of, log_prob_of, squared_error_loss
from parcade.rl.returns import generalized_advantages
from parcade.rl.schedules import linear


@dataclass(frozen=True)
class PPOConfig(AlgorithmConfig):
    """Hyper-parameters of PPO."""

    num_envs: int = 32
    """Environments over all ranks."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    final_learning_rate: float = 1e-3
    """What the step size falls to in a straight line."""
    unroll_length: int = 128
    """T: steps per environment between learning turns."""
    epochs: int = 3
    """Passes over a batch."""
    num_minibatches: int = 4
    """Updates per pass."""
    gae_lambda: float = 0.95
    """GAE's lambda."""
    clip: float = 0.2
    """How far the ratio may move the surrogate."""
    entropy_weight: float = 0.01
    """Weight of the entropy bonus (c2 in the paper)."""
    final_entropy_weight: float = 0.01
    """What the weight falls to in a straight line."""
    schedule_share: float = 1.0
    """The share of total_frames over which step size and entropy weight fall."""
    value_weight: float = 0.5
    """Weight of the squared error of V (c1 in the paper)."""
    max_grad_norm: float | None = 0.5
    """Gradients longer than this are shortened to it."""


class PPO:
    """Epochs of minibatch updates on every rollout."""

    source_kind: ClassVar[str] = "rollout"
    head: ClassVar[str] = "actor_critic"

    def __init__(self, context: AlgorithmContext, config: PPOConfig) -> None:
        self.policy = context.policy
        self.precision = context.precision
        self.device = context.device
        self.generator = context.generator
        self.config = config

    def optimizer(self) -> OptimizerFactory:
        return lambda parameters: torch.optim.Adam(parameters, self.config.learning_rate, eps=1e-5)

    def update(self, batch: Batch, exchange: Exchange, progress: float) -> dict[str, Tensor]:
        c, policy = self.config, self.policy
        learning_rate_of(
            exchange.optimizer, linear(c.learning_rate, c.final_learning_rate, progress, until=c.schedule_share)
        )
        advantages, returns = self._targets(batch)
        advantages = normalized(advantages, exchange)
        entropy_weight = linear(c.entropy_weight, c.final_entropy_weight, progress, until=c.schedule_share)
        totals: dict[str, Tensor] = {}
        columns = (batch.observations, batch.starts, batch.actions, batch.behaviour_log_prob, advantages, returns)
        for _ in range(c.epochs):
            for part in shuffled_minibatches(batch, columns, c.num_minibatches, self.generator):
                for name, value in self._update_minibatch(*part, entropy_weight, exchange).items():
                    totals[name] = totals.get(name, 0.0) + value
        update_statistics(policy, batch.observations, exchange)
        return {name: total / (c.epochs * c.num_minibatches) for name, total in totals.items()}

    def _targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Advantages and value targets ``[T, B]``, from the values the behaviour policy gave when it acted."""
        c, policy = self.config, self.policy
        state = None
        with torch.no_grad(), self.precision.autocast(self.device):
            if batch.initial_policy_state is not None:
                state = policy(batch.observations, batch.initial_policy_state, batch.starts).state
            v_T = bootstrap_value(batch, policy, state)
            rewards = rewards_with_truncation(batch, policy, c.gamma)
        values = batch.behaviour_values
        advantages = generalized_advantages(rewards, batch.discounts(c.gamma), values, v_T, c.gae_lambda)
        return advantages, advantages + values

    def _update_minibatch(
        self,
        observations: Tensor,
        starts: Tensor,
        actions: Tensor,
        behaviour_log_prob: Tensor,
        advantages: Tensor,
        returns: Tensor,
        state: Tensor | None,
        entropy_weight: float,
        exchange: Exchange,
    ) -> dict[str, Tensor]:
        c = self.config
        with self.precision.autocast(self.device):
            scores, values, _ = self.policy(observations, state, starts)
        log_prob = log_prob_of(scores, actions)
        policy_loss = clipped_surrogate_loss(log_prob, behaviour_log_prob, advantages, c.clip)
        value_loss = squared_error_loss(values, returns)
        entropy = entropy_of(scores).mean()
        exchange.step(policy_loss + c.value_weight * value_loss - entropy_weight * entropy)  # eq. 9
        return {
            "loss/policy": policy_loss.detach(),
            "loss/value": value_loss.detach(),
            "policy/entropy": entropy.detach(),
            "policy/kl": approximate_kl(log_prob.detach(), behaviour_log_prob),
            "policy/clipped": ((log_prob.detach() - behaviour_log_prob).exp() - 1).abs().gt(c.clip).float().mean(),
        }
