"""Asynchronous Q-learning: one-step Q, n-step Q and one-step Sarsa on many actor-learners without replay.

Paper: Mnih 2016, "Asynchronous Methods for Deep Reinforcement Learning", arXiv 1602.01783, section 4,
algorithms 1 and S2.
Each learner explores with its own epsilon. This decorrelates the updates, as a replay would.
Deviations: (1) a learner steps several environments in parallel; (2) Sarsa uses the next action taken, except
at the last step of a rollout, where it uses the expected value under the epsilon-greedy policy; (3) a
truncated step bootstraps from the maximum, also in Sarsa; (4) losses are means over the rollout, where the
paper adds the gradients of its steps; (5) RMSProp's epsilon, for which the paper names no value, is 1e-3, and
outside the root; (6) gradients are clipped, by default; (7) each learner has a target network of its own,
copied at its first update after the period, where the paper's threads share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from parcade.algorithms.base import (
    Algorithm,
    AlgorithmConfig,
    AlgorithmContext,
    TargetNetwork,
    adam_or_rmsprop,
    update_statistics,
)
from parcade.exchange.base import Exchange, OptimizerFactory, set_learning_rate
from parcade.experience.batch import Batch
from parcade.model.policy import NetworkConfig
from parcade.ranges import Count, Fraction, NonNegative, Positive
from parcade.rl.losses import squared_error_loss
from parcade.rl.q_learning import epsilon_greedy_value, value_of
from parcade.rl.returns import discounted_returns
from parcade.rl.schedules import linear

# Final epsilons in the paper's experiments, and their probabilities.
FINAL_EPSILONS, THEIR_SHARES = (0.1, 0.01, 0.5), (0.4, 0.3, 0.3)


@dataclass(frozen=True)
class AsyncQConfig(AlgorithmConfig):
    """Hyper-parameters of asynchronous Q-learning."""

    num_envs: Count = 16
    """Number of environments, over all learners."""
    network: NetworkConfig = NetworkConfig(normalize_input=False)
    """The policy's network."""
    method: Literal["one_step", "n_step", "sarsa"] = "one_step"
    """Targets: one-step Q-learning, the longest n-step return in the rollout, or one-step Sarsa."""
    learning_rate: Positive = 7e-4
    """Learning rate of the optimiser."""
    final_learning_rate: NonNegative | None = None
    """Learning rate at the end of a linear decay over total_frames; None keeps the learning rate constant."""
    unroll_length: Count = 8
    """T: steps per environment between updates."""
    target_period: Count = 500
    """Updates of the server between copies to the target network."""
    epsilon_start: Fraction = 1.0
    """Probability of a random action at the first frame."""
    epsilon_end: Fraction = 0.01
    """Probability of a random action after the decay, without different_epsilons."""
    epsilon_until: Positive = 0.1
    """Fraction of the run over which epsilon decays."""
    different_epsilons: bool = True
    """Draw the final epsilon of each learner from the paper's three values: 0.1, 0.01 and 0.5."""
    optimizer: Literal["adam", "rmsprop"] = "rmsprop"
    """Optimiser; the paper uses RMSProp."""
    max_grad_norm: Positive | None = 10.0
    """Clip the norm of gradients to this."""


class AsyncQ(Algorithm):
    """One Q-learning update per rollout."""

    source_kind: ClassVar[str] = "rollout"
    head: ClassVar[str] = "q"

    def __init__(self, context: AlgorithmContext, config: AsyncQConfig) -> None:
        super().__init__(context, config)
        self.final_epsilon = config.epsilon_end
        if config.different_epsilons:
            draw = torch.rand((), generator=self.generator)
            self.final_epsilon = FINAL_EPSILONS[int(np.searchsorted(np.cumsum(THEIR_SHARES), float(draw)))]
        self.explore(0.0)
        self.target = TargetNetwork(self.policy, config.target_period)

    def optimizer(self) -> OptimizerFactory:
        return adam_or_rmsprop(self.config, rmsprop_eps=1e-3)

    def explore(self, progress: float) -> None:
        c = self.config
        epsilon = linear(c.epsilon_start, self.final_epsilon, progress, until=c.epsilon_until)
        self.policy.epsilon.fill_(epsilon)

    def update(self, batch: Batch, exchange: Exchange, progress: float) -> dict[str, Tensor]:
        c, policy = self.config, self.policy
        set_learning_rate(exchange.optimizer, linear(c.learning_rate, c.final_learning_rate, progress))
        self.target.follow(policy, exchange.version)
        columns = (batch.observations, batch.starts, batch.actions, self._targets(batch))
        figures = exchange.minimize(self._loss, batch.initial_policy_state, *columns)
        update_statistics(policy, batch.observations, exchange)
        self.explore(progress)
        return {**figures, "policy/epsilon": policy.epsilon.clone()}

    def _loss(
        self, state: Tensor | None, observations: Tensor, starts: Tensor, actions: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics of a complete rollout."""
        with self.precision.autocast(self.device):
            q = value_of(self.policy(observations, state, starts).scores, actions)
        loss = squared_error_loss(q, targets)
        return loss, {"loss/value": loss.detach(), "policy/q_mean": q.detach().mean()}

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        """Return targets ``[T, B]`` computed with the target network."""
        c = self.config
        discounts = batch.discounts(c.gamma)
        if c.method == "n_step":
            rewards, best_T = self.bootstrap(batch, self.target.network)
            return discounted_returns(rewards, discounts, best_T)  # algorithm S2
        rewards = self.completed_rewards(batch, self.target.network)
        following = torch.cat([batch.observations[1:], batch.bootstrap_observations[None]])
        with self.precision.autocast(self.device):
            q_tp1 = self.target.network(following).scores
        if c.method == "one_step":
            return rewards + discounts * q_tp1.amax(-1)  # algorithm 1
        taken = value_of(q_tp1[:-1], batch.actions[1:])
        expected = epsilon_greedy_value(q_tp1[-1], self.policy.epsilon)
        return rewards + discounts * torch.cat([taken, expected[None]])

    def get_state(self) -> dict[str, Tensor]:
        return self.target.get_state()

    def set_state(self, state: dict[str, Tensor | np.ndarray]) -> None:
        self.target.set_state(state)
