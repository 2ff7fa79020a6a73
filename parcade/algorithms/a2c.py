"""A2C: the synchronous form of A3C, with one update per rollout.

Paper: Mnih 2016, "Asynchronous Methods for Deep Reinforcement Learning", arXiv 1602.01783, section 4 and
algorithm S3.
Notation: R_t is the longest n-step return available in the rollout; A_t = R_t - V(x_t).
Deviations: (1) GAE's lambda mixes the n-step returns; lambda 1 is the paper. (2) Adam is available as well as
RMSProp, and advantages may be normalised. (3) Returns may end at points. (4) Losses are means over the
rollout, where the paper adds the gradients of its steps. (5) RMSProp adds its epsilon, 1e-5, outside the
root; the paper adds one that it does not name inside. (6) The value loss has weight 0.25 and gradients are
clipped, by default. Left out: asynchrony (``a3c``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from parcade.algorithms.base import Algorithm, AlgorithmConfig, adam_or_rmsprop, normalized, update_statistics
from parcade.exchange.base import Exchange, OptimizerFactory, set_learning_rate
from parcade.experience.batch import Batch
from parcade.ranges import Count, Fraction, NonNegative, Positive
from parcade.rl.losses import explained_variance, policy_gradient_loss, squared_error_loss
from parcade.rl.returns import generalized_advantages
from parcade.rl.schedules import linear


@dataclass(frozen=True)
class A2CConfig(AlgorithmConfig):
    """Hyper-parameters of A2C."""

    num_envs: Count = 32
    """Number of environments, over all ranks."""
    learning_rate: Positive = 7e-4
    """Learning rate of the optimiser."""
    final_learning_rate: NonNegative | None = None
    """Learning rate at the end of a linear decay over total_frames; None keeps the learning rate constant."""
    unroll_length: Count = 8
    """T: steps per environment between updates."""
    reset_at_points: bool = False
    """End returns at each point scored; for games whose rallies do not depend on one another."""
    gae_lambda: Fraction = 1.0
    """GAE's lambda; 1 is the n-step return."""
    entropy_weight: NonNegative = 0.01
    """Weight of the entropy bonus."""
    value_weight: NonNegative = 0.25
    """Weight of the squared error of V."""
    normalize_advantages: bool = False
    """Normalise advantages to mean 0 and standard deviation 1 over the batch of all ranks."""
    optimizer: Literal["adam", "rmsprop"] = "rmsprop"
    """Optimiser; the paper uses RMSProp."""
    max_grad_norm: Positive | None = 0.5
    """Clip the norm of gradients to this."""


class A2C(Algorithm):
    """One policy-gradient update per rollout."""

    source_kind: ClassVar[str] = "rollout"
    head: ClassVar[str] = "actor_critic"
    needs_critic: ClassVar[bool] = True
    continuous: ClassVar[bool] = True

    def optimizer(self) -> OptimizerFactory:
        return adam_or_rmsprop(self.config)

    def update(self, batch: Batch, exchange: Exchange, progress: float) -> dict[str, Tensor]:
        c = self.config
        set_learning_rate(exchange.optimizer, linear(c.learning_rate, c.final_learning_rate, progress))
        columns = (
            batch.observations,
            batch.starts,
            batch.actions,
            self.completed_rewards(batch),
            batch.discounts(c.gamma, c.reset_at_points),
            batch.bootstrap_observations,
            batch.bootstrap_starts,
        )
        figures = exchange.minimize(self._loss, exchange, batch.initial_policy_state, *columns)
        update_statistics(self.policy, batch.observations, exchange)
        return figures

    def _loss(
        self,
        exchange: Exchange,
        state: Tensor | None,
        observations: Tensor,
        starts: Tensor,
        actions: Tensor,
        rewards: Tensor,
        discounts: Tensor,
        observations_T: Tensor,
        starts_T: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics of a complete rollout."""
        c = self.config
        with self.precision.autocast(self.device):
            scores, values, state_T = self.policy(observations, state, starts)
        v_T = self.next_values(state_T, observations_T, starts_T)
        advantages = generalized_advantages(rewards, discounts, values.detach(), v_T, c.gae_lambda)
        returns = advantages + values.detach()
        if c.normalize_advantages:
            advantages = normalized(advantages, exchange)
        policy_loss = policy_gradient_loss(self.policy.actions.log_prob(scores, actions), advantages)
        value_loss = squared_error_loss(values, returns)
        entropy = self.policy.actions.entropy(scores).mean()
        return policy_loss + c.value_weight * value_loss - c.entropy_weight * entropy, {
            "loss/policy": policy_loss.detach(),
            "loss/value": value_loss.detach(),
            "policy/entropy": entropy.detach(),
            "policy/explained_variance": explained_variance(values.detach(), returns),
        }
