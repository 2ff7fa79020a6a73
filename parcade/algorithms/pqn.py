"""PQN: Q(lambda) from rollouts of many environments, without replay or target network.

Paper: Gallici 2024, "Simplifying Deep Temporal Difference Learning", arXiv 2407.04811, algorithm 1.
Notation: targets are lambda-returns over max_a Q(x_{t+1}, a); layer normalisation replaces the target
network.
Like the paper's code, targets use the Q values that the behaviour policy computed when it acted; only the
bootstrap values of the last step of a rollout and of truncated steps are computed by the current policy.
Deviations: (1) images are normalised over channels, rows and columns, where the paper's code normalises the
channels of each position; weights start orthogonal, and the learning rate may decay; (2) inputs may
be normalised by running statistics; (3) returns may end at points; (4) a recurrent policy can refresh its
memory on the previous rollout (``burn_in``), as replays of unrolls do in Kapturowski 2019, "Recurrent
Experience Replay in Distributed Reinforcement Learning"; the paper's recurrent agent learns from those steps
once more instead.
The minibatches of a recurrent policy are complete unrolls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from parcade.algorithms.base import (
    Algorithm,
    AlgorithmConfig,
    AlgorithmContext,
    minibatch,
    shuffled,
    update_statistics,
)
from parcade.capture import Fixed
from parcade.errors import UsageError
from parcade.exchange.base import Exchange, OptimizerFactory, set_learning_rate
from parcade.experience.batch import Batch
from parcade.model import optimizers
from parcade.model.policy import NetworkConfig, PolicyOutput
from parcade.ranges import Count, Fraction, NonNegative, Positive
from parcade.rl.losses import squared_error_loss
from parcade.rl.q_learning import value_of
from parcade.rl.returns import q_lambda_returns
from parcade.rl.schedules import linear


@dataclass(frozen=True)
class PQNConfig(AlgorithmConfig):
    """Hyper-parameters of PQN."""

    num_envs: Count = 32
    """Number of environments, over all ranks."""
    network: NetworkConfig = NetworkConfig(layer_norm=True)
    """The policy's network."""
    learning_rate: Positive = 1e-3
    """Learning rate of RAdam."""
    final_learning_rate: NonNegative | None = None
    """Learning rate at the end of a linear decay over total_frames; None keeps the learning rate constant."""
    unroll_length: Count = 32
    """T: steps per environment per iteration."""
    epochs: Count = 2
    """Passes over a batch."""
    num_minibatches: Count = 4
    """Updates per pass."""
    reset_at_points: bool = False
    """End returns at each point scored; for games whose rallies do not depend on one another."""
    q_lambda: Fraction = 0.65
    """lambda of the lambda-returns."""
    epsilon_start: Fraction = 1.0
    """Probability of a random action at the first frame."""
    epsilon_end: Fraction = 0.001
    """Probability of a random action after the decay."""
    epsilon_until: Positive = 0.1
    """Fraction of the run over which epsilon decays."""
    max_grad_norm: Positive | None = 10.0
    """Clip the norm of gradients to this."""
    burn_in: bool = False
    """With --lstm: replay the previous rollout with the current weights before learning from a rollout, which
    then starts from an up-to-date memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.burn_in and not self.network.lstm:
            raise UsageError("burn_in refreshes an LSTM; got lstm=0; use e.g. --lstm 128, or --no-burn-in")


class PQN(Algorithm):
    """Several epochs of minibatch regression to Q(lambda) targets per rollout."""

    source_kind: ClassVar[str] = "rollout"
    head: ClassVar[str] = "q"
    shares_state: ClassVar[bool] = False  # the previous rollout is that of this rank's environments

    def __init__(self, context: AlgorithmContext, config: PQNConfig) -> None:
        super().__init__(context, config)
        self.explore(0.0)
        # With burn_in: observations, starts and the state before the previous rollout.
        self._previous: dict[str, Tensor] = {}

    def optimizer(self) -> OptimizerFactory:
        return lambda parameters: optimizers.RAdam(parameters, self.config.learning_rate)

    def explore(self, progress: float) -> None:
        c = self.config
        self.policy.epsilon.fill_(linear(c.epsilon_start, c.epsilon_end, progress, until=c.epsilon_until))

    def update(self, batch: Batch, exchange: Exchange, progress: float) -> dict[str, Tensor]:
        c, policy = self.config, self.policy
        set_learning_rate(exchange.optimizer, linear(c.learning_rate, c.final_learning_rate, progress))
        self.explore(progress)
        if c.burn_in:
            batch = self._with_fresh_memory(batch)
        targets = self._targets(batch)
        inputs, evaluate = self.prepared_once(batch.observations)
        loss_total = torch.zeros((), device=batch.rewards.device)
        columns = Fixed(inputs, batch.starts, batch.actions, targets)
        for _ in range(c.epochs):
            for index in shuffled(batch, c.num_minibatches, self.generator):
                figures = exchange.minimize(self._loss, evaluate, index, batch.initial_policy_state, columns)
                loss_total += figures["loss/value"]
        update_statistics(policy, batch.observations, exchange)
        return {
            "loss/value": loss_total / (c.epochs * c.num_minibatches),
            "policy/q_mean": batch.behaviour_values.mean(),
            "policy/epsilon": policy.epsilon.clone(),
        }

    def _loss(
        self, evaluate: Callable[..., PolicyOutput], index: Tensor, state: Tensor | None, *columns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics of minibatch ``index`` of the columns."""
        state, inputs, starts, actions, targets = minibatch(index, state, *columns)
        with self.precision.autocast(self.device):
            q = evaluate(inputs, state, starts).scores
        loss = squared_error_loss(value_of(q, actions), targets)
        return loss, {"loss/value": loss.detach()}

    @torch.no_grad()
    def _with_fresh_memory(self, batch: Batch) -> Batch:
        """Return the batch, starting from the state that the current weights reach on the previous one."""
        previous = self._previous
        self._previous = {
            "observations": batch.observations.clone(),
            "starts": batch.starts.clone(),
            "state": batch.initial_policy_state.clone(),
        }
        if not previous:
            return batch
        with self.precision.autocast(self.device):
            state = self.policy(previous["observations"], previous["state"], previous["starts"]).state
        return dataclasses.replace(batch, initial_policy_state=state)

    def get_state(self) -> dict[str, Tensor]:
        return dict(self._previous)

    def set_state(self, state: dict[str, Tensor]) -> None:
        self._previous = {name: torch.as_tensor(value).to(self.device) for name, value in state.items()}

    def _targets(self, batch: Batch) -> Tensor:
        """Return Q(lambda) targets ``[T, B]``."""
        c = self.config
        rewards, q_T = self.bootstrap(batch)
        max_q_tp1 = torch.cat([batch.behaviour_values[1:], q_T[None]])
        return q_lambda_returns(rewards, batch.discounts(c.gamma, c.reset_at_points), max_q_tp1, c.q_lambda)
