"""V-trace on staggered groups of environments: an update every few steps, for thousands of consoles.

Papers: Dalton & Frosio 2020, "Accelerating Reinforcement Learning through GPU Atari Emulation",
arXiv 1907.08467, section 5 (the schedule, ``experience/staggered.py``); Espeholt 2018, "IMPALA",
arXiv 1802.01561, section 4 (the loss).
Notation as in ``rl/vtrace.py``.
Deviations: (1) Adam is available as well as RMSProp; (2) losses are means over the batch, where IMPALA uses
sums; RMSProp's epsilon is hence the first paper's 1e-5, not IMPALA's; (3) inputs may be normalised by
running statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from parcade.algorithms.base import Algorithm, AlgorithmConfig, adam_or_rmsprop, update_statistics
from parcade.exchange.base import Exchange, OptimizerFactory, set_learning_rate
from parcade.experience.batch import Batch
from parcade.ranges import Count, Fraction, NonNegative, Positive
from parcade.rl.losses import explained_variance, policy_gradient_loss, squared_error_loss
from parcade.rl.schedules import linear
from parcade.rl.vtrace import vtrace_returns


@dataclass(frozen=True)
class VTraceLossConfig(AlgorithmConfig):
    """Hyper-parameters of every algorithm that learns by V-trace."""

    learning_rate: Positive = 1e-3
    """Learning rate of the optimiser."""
    final_learning_rate: NonNegative | None = None
    """Learning rate at the end of a linear decay over total_frames; None keeps the learning rate constant."""
    unroll_length: Count = 20
    """T: steps per environment in an unroll."""
    rho_clip: Positive = 1.0
    """Upper bound of the ratios in the value targets and in the policy gradient."""
    c_clip: Positive = 1.0
    """Upper bound of the ratios in the traces."""
    trace_lambda: Fraction = 1.0
    """Factor of the traces; the paper uses 1."""
    entropy_weight: NonNegative = 0.01
    """Weight of the entropy bonus."""
    value_weight: NonNegative = 0.5
    """Weight of the squared error of V."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimiser; the paper uses RMSProp."""
    max_grad_norm: Positive | None = 0.5
    """Clip the norm of gradients to this."""


@dataclass(frozen=True)
class VTraceConfig(VTraceLossConfig):
    """Hyper-parameters of V-trace on staggered groups."""

    num_envs: Count = 40
    """Number of environments, over all ranks."""
    num_groups: Count = 5
    """G: groups whose unrolls end one after another. There is one update every unroll_length / G steps, from
    num_envs / G unrolls."""


class VTraceLearner(Algorithm):
    """One V-trace actor-critic update per batch of unrolls, from any source."""

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
            batch.behaviour_log_prob,
            self.completed_rewards(batch),
            batch.discounts(c.gamma),
            batch.bootstrap_observations,
            batch.bootstrap_starts,
        )
        figures = exchange.minimize(self._loss, batch.initial_policy_state, *columns)
        update_statistics(self.policy, batch.observations, exchange)
        return figures

    def _loss(
        self,
        state: Tensor | None,
        observations: Tensor,
        starts: Tensor,
        actions: Tensor,
        behaviour_log_prob: Tensor,
        rewards: Tensor,
        discounts: Tensor,
        observations_T: Tensor,
        starts_T: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics of a batch of unrolls."""
        c = self.config
        with self.precision.autocast(self.device):
            scores, values, state_T = self.policy(observations, state, starts)
        v_T = self.next_values(state_T, observations_T, starts_T)
        log_prob = self.policy.actions.log_prob(scores, actions)
        log_ratios = log_prob.detach() - behaviour_log_prob
        targets, advantages = vtrace_returns(
            log_ratios,
            rewards,
            discounts,
            values.detach(),
            v_T,
            lambda_=c.trace_lambda,
            rho_clip=c.rho_clip,
            c_clip=c.c_clip,
            pg_rho_clip=c.rho_clip,
        )
        policy_loss = policy_gradient_loss(log_prob, advantages)
        value_loss = squared_error_loss(values, targets)
        entropy = self.policy.actions.entropy(scores).mean()
        return policy_loss + c.value_weight * value_loss - c.entropy_weight * entropy, {
            "loss/policy": policy_loss.detach(),
            "loss/value": value_loss.detach(),
            "policy/entropy": entropy.detach(),
            "policy/explained_variance": explained_variance(values.detach(), targets),
            "policy/clipped": (log_ratios.exp() > c.rho_clip).float().mean(),
        }


class VTrace(VTraceLearner):
    """One V-trace update per group of unrolls."""

    source_kind: ClassVar[str] = "staggered"
