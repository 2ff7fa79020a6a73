"""IMPALA: V-trace actor-critic on unrolls from many actors.

Paper: Espeholt 2018, "IMPALA", arXiv 1802.01561, sections 3 and 4. Notation as in ``rl/vtrace.py``.
Deviations: (1) Adam is offered beside RMSProp; (2) losses are means over the batch, where the paper sums, so the paper's
step sizes and gradient norms do not carry over; (3) inputs may be normalised by running statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from parcade.algorithms.base import Algorithm, AlgorithmConfig, update_statistics
from parcade.exchange.base import Exchange, OptimizerFactory, set_learning_rate
from parcade.experience.batch import Batch
from parcade.rl.losses import entropy_of, log_prob_of, policy_gradient_loss, squared_error_loss
from parcade.rl.schedules import linear
from parcade.rl.vtrace import vtrace_returns


@dataclass(frozen=True)
class ImpalaConfig(AlgorithmConfig):
    """Hyper-parameters of IMPALA."""

    num_envs: int = 32
    """Environments over all actors."""
    learning_rate: float = 1e-3
    """Optimiser step size."""
    final_learning_rate: float = 1e-3
    """What the step size falls to, in a straight line over total_frames."""
    unroll_length: int = 20
    """T: steps per environment in an unroll."""
    unrolls_per_update: int = 1
    """Unrolls, each of all environments of one actor, in one learner's update."""
    rho_clip: float = 1.0
    """Where ratios are cut in the value targets and in the policy gradient."""
    c_clip: float = 1.0
    """Where ratios are cut in the traces."""
    trace_lambda: float = 1.0
    """Scales the traces; 1 is the paper's choice for its experiments."""
    entropy_weight: float = 0.01
    """Weight of the entropy bonus."""
    value_weight: float = 0.5
    """Weight of the squared error of V."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """RMSProp is the paper's."""
    max_grad_norm: float | None = 0.5
    """Gradients longer than this are shortened to it."""


class Impala(Algorithm):
    """One V-trace update from every batch of unrolls."""

    source_kind: ClassVar[str] = "rollout"
    head: ClassVar[str] = "actor_critic"

    def optimizer(self) -> OptimizerFactory:
        if self.config.optimizer == "adam":
            return lambda parameters: torch.optim.Adam(parameters, self.config.learning_rate, eps=1e-5)
        return lambda parameters: torch.optim.RMSprop(parameters, self.config.learning_rate, alpha=0.99, eps=1e-2)

    def update(self, batch: Batch, exchange: Exchange, progress: float) -> dict[str, Tensor]:
        c, policy = self.config, self.policy
        set_learning_rate(exchange.optimizer, linear(c.learning_rate, c.final_learning_rate, progress))
        with self.precision.autocast(self.device):
            scores, values, _ = policy(batch.observations, batch.initial_policy_state, batch.starts)
        log_prob = log_prob_of(scores, batch.actions)
        rewards, v_T = self.bootstrap(batch)
        log_ratios = log_prob.detach() - batch.behaviour_log_prob
        targets, advantages = vtrace_returns(
            log_ratios,
            rewards,
            batch.discounts(c.gamma),
            values.detach(),
            v_T,
            lambda_=c.trace_lambda,
            rho_clip=c.rho_clip,
            c_clip=c.c_clip,
            pg_rho_clip=c.rho_clip,
        )
        policy_loss = policy_gradient_loss(log_prob, advantages)
        value_loss = squared_error_loss(values, targets)
        entropy = entropy_of(scores).mean()
        exchange.step(policy_loss + c.value_weight * value_loss - c.entropy_weight * entropy)
        update_statistics(policy, batch.observations, exchange)
        return {
            "loss/policy": policy_loss.detach(),
            "loss/value": value_loss.detach(),
            "policy/entropy": entropy.detach(),
            "policy/clipped": log_ratios.gt(torch.tensor(c.rho_clip).log()).float().mean(),
        }
