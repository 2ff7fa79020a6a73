"""PPO: several epochs of clipped policy-gradient updates per rollout.

Paper: Schulman 2017, "Proximal Policy Optimization Algorithms", arXiv 1707.06347, eq. 7 and 9, algorithm 1.
Notation: ratio = pi(a|x) / behaviour(a|x); advantages are computed by GAE (arXiv 1506.02438).
Deviations: (1) advantages are normalised over the batches of all ranks, not per minibatch, so that ranks
agree; (2) the value loss is not clipped; (3) inputs may be normalised by running statistics; (4) the learning
rate may follow the KL divergence, like the coefficient of the paper's adaptive penalty (section 4);
(5) returns may end at points; (6) the norm of gradients is clipped, by default.
The minibatches of a recurrent policy are complete unrolls from the stored initial state instead of single
steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from parcade.algorithms.base import (
    Algorithm,
    AlgorithmConfig,
    minibatch,
    normalized,
    shuffled,
    update_statistics,
)
from parcade.capture import Fixed
from parcade.exchange.base import Exchange, OptimizerFactory, learning_rate, set_learning_rate, step_size
from parcade.experience.batch import Batch
from parcade.model import optimizers
from parcade.model.policy import PolicyOutput
from parcade.ranges import Count, Fraction, NonNegative, Positive
from parcade.rl.losses import (
    approximate_kl,
    clipped_surrogate_loss,
    explained_variance,
    squared_error_loss,
)
from parcade.rl.returns import generalized_advantages
from parcade.rl.schedules import linear

# Bounds of the learning rate when it follows the KL divergence.
SLOWEST, FASTEST = 1e-5, 5e-3


@dataclass(frozen=True)
class PPOConfig(AlgorithmConfig):
    """Hyper-parameters of PPO."""

    num_envs: Count = 32
    """Number of environments, over all ranks."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam."""
    final_learning_rate: NonNegative | None = None
    """Learning rate at the end of a linear decay; None keeps the learning rate constant. Without effect if
    target_kl is set."""
    unroll_length: Count = 128
    """T: steps per environment per iteration."""
    epochs: Count = 3
    """Passes over a batch."""
    num_minibatches: Count = 4
    """Updates per pass."""
    gae_lambda: Fraction = 0.95
    """GAE's lambda."""
    reset_at_points: bool = False
    """End returns at each point scored; for games whose rallies do not depend on one another."""
    clip: Positive = 0.2
    """Clip range of the ratio (epsilon in the paper)."""
    entropy_weight: NonNegative = 0.01
    """Weight of the entropy bonus (c2 in the paper)."""
    final_entropy_weight: NonNegative | None = None
    """Entropy weight at the end of a linear decay; None keeps the weight constant."""
    target_kl: Positive | None = None
    """Adapt the learning rate to the KL divergence of each iteration: divide it by 1.5 if the divergence
    exceeds twice this value, multiply it by 1.5 if the divergence is below half of it. None uses the linear
    schedule."""
    schedule_share: Positive = 1.0
    """Fraction of total_frames over which learning rate and entropy weight decay to their final values, where
    these are set."""
    value_weight: NonNegative = 0.5
    """Weight of the squared error of V (c1 in the paper)."""
    max_grad_norm: Positive | None = 0.5
    """Clip the norm of gradients to this."""


class PPO(Algorithm):
    """Several epochs of minibatch updates per rollout."""

    source_kind: ClassVar[str] = "rollout"
    head: ClassVar[str] = "actor_critic"
    needs_critic: ClassVar[bool] = True
    continuous: ClassVar[bool] = True

    def optimizer(self) -> OptimizerFactory:
        return lambda parameters: optimizers.Adam(parameters, self.config.learning_rate, eps=1e-5)

    def update(self, batch: Batch, exchange: Exchange, progress: float) -> dict[str, Tensor]:
        c, policy = self.config, self.policy
        if c.target_kl is None:
            rate = linear(c.learning_rate, c.final_learning_rate, progress, until=c.schedule_share)
            set_learning_rate(exchange.optimizer, rate)
        advantages, returns = self._targets(batch)
        advantages = normalized(advantages, exchange)
        entropy_weight = linear(c.entropy_weight, c.final_entropy_weight, progress, until=c.schedule_share)
        totals: dict[str, Tensor] = {}
        entropy_weight = torch.full((), entropy_weight, device=advantages.device)
        inputs, evaluate = self.prepared_once(batch.observations)
        columns = Fixed(inputs, batch.starts, batch.actions, batch.behaviour_log_prob, advantages, returns)
        for _ in range(c.epochs):
            for index in shuffled(batch, c.num_minibatches, self.generator):
                figures = exchange.minimize(
                    self._loss, evaluate, entropy_weight, index, batch.initial_policy_state, columns
                )
                if totals:
                    torch._foreach_add_(list(totals.values()), list(figures.values()))
                else:
                    totals = figures
        update_statistics(policy, batch.observations, exchange)
        metrics = {name: total / (c.epochs * c.num_minibatches) for name, total in totals.items()}
        if c.target_kl is not None:
            self._follow_kl(metrics["policy/kl"], exchange)
        return {
            **metrics,
            "policy/learning_rate": step_size(exchange.optimizer),
            "policy/explained_variance": explained_variance(batch.behaviour_values, returns),
        }

    def _follow_kl(self, kl: Tensor, exchange: Exchange) -> None:
        """Adapt the learning rate to the mean KL divergence of the iteration over all ranks."""
        kl = float(exchange.sum(kl.double().reshape(1))) / exchange.world_size
        rate = learning_rate(exchange.optimizer)
        if kl > 2 * self.config.target_kl:
            rate = max(rate / 1.5, min(rate, SLOWEST))
        elif kl < self.config.target_kl / 2:
            rate = min(rate * 1.5, max(rate, FASTEST))
        set_learning_rate(exchange.optimizer, rate)

    def _targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return advantages and value targets ``[T, B]``, from the behaviour policy's values."""
        c, values = self.config, batch.behaviour_values
        rewards, v_T = self.bootstrap(batch)
        advantages = generalized_advantages(
            rewards, batch.discounts(c.gamma, c.reset_at_points), values, v_T, c.gae_lambda
        )
        return advantages, advantages + values

    def _loss(
        self,
        evaluate: Callable[..., PolicyOutput],
        entropy_weight: Tensor,
        index: Tensor,
        state: Tensor | None,
        *columns: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics of minibatch ``index`` of the columns."""
        c = self.config
        state, inputs, starts, actions, behaviour_log_prob, advantages, returns = minibatch(
            index, state, *columns
        )
        with self.precision.autocast(self.device):
            scores, values, _ = evaluate(inputs, state, starts)
        log_prob = self.policy.actions.log_prob(scores, actions)
        policy_loss = clipped_surrogate_loss(log_prob, behaviour_log_prob, advantages, c.clip)
        value_loss = squared_error_loss(values, returns)
        entropy = self.policy.actions.entropy(scores).mean()
        return policy_loss + c.value_weight * value_loss - entropy_weight * entropy, {  # eq. 9
            "loss/policy": policy_loss.detach(),
            "loss/value": value_loss.detach(),
            "policy/entropy": entropy.detach(),
            "policy/kl": approximate_kl(log_prob.detach(), behaviour_log_prob),
            "policy/clipped": (
                ((log_prob.detach() - behaviour_log_prob).exp() - 1).abs().gt(c.clip).float().mean()
            ),
        }
