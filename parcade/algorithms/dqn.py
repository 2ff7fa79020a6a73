"""DQN: n-step (double) Q-learning from a replay, with a target network.

Papers: Mnih 2015, "Human-level control through deep reinforcement learning", Nature 518:529, algorithm 1; van Hasselt
2016, arXiv 1509.06461 (double); Schaul 2016, arXiv 1511.05952 (prioritised); Wang 2016, arXiv 1511.06581 (dueling).
Notation as in ``rl/q_learning.py``.
Deviations from Mnih 2015: (1) Adam is the default optimiser, RMSProp is offered; (2) ``num_envs`` games are played side
by side, and ``batch_size`` grows with them, so that a step is still learned from eight times; (3) returns may span
``n_step`` steps, without correction for the older policy's actions; (4) the two streams of a dueling network share
the dense layer.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from parcade import optimizers
from parcade.algorithms.base import Algorithm, AlgorithmConfig, AlgorithmContext, update_statistics
from parcade.exchange.base import Exchange, OptimizerFactory, set_learning_rate
from parcade.experience.replay import TransitionBatch
from parcade.parameters import copy_module_state, state_tensors
from parcade.policy import NetworkConfig
from parcade.rl.q_learning import (
    double_q_targets,
    importance_weights,
    q_targets,
    value_of,
    weighted_huber_loss,
)
from parcade.rl.schedules import linear
from parcade.state import behind, part_of


@dataclass(frozen=True)
class DQNConfig(AlgorithmConfig):
    """Hyper-parameters of DQN."""

    num_envs: int = 8
    """Environments over all ranks."""
    network: NetworkConfig = NetworkConfig(normalize_input=False)
    """The policy's network."""
    learning_rate: float = 2.5e-4
    """Optimiser step size."""
    final_learning_rate: float | None = None
    """What the step size falls to, in a straight line over total_frames; None keeps it."""
    unroll_length: int = 1
    """T: steps per environment between updates."""
    batch_size: int = 64
    """Transitions of an update, over all ranks."""
    replay_capacity: int = 100_000
    """Entries kept, over all ranks: one for each step, and a few for each episode."""
    replay_spill: str = ""
    """A directory for the replay's frames: what memory has no room for stays on disk there. Empty keeps all in memory."""
    save_replay: bool = True
    """Checkpoints hold the replay; without it a resumed run begins with an empty one."""
    learning_starts: int = 5_000
    """Steps played before the first update, over all ranks."""
    n_step: int = 3
    """Steps of a return before it bootstraps."""
    double: bool = True
    """The online network chooses the action that the target network values."""
    priority_exponent: float = 0.0
    """alpha of prioritised replay; 0 samples uniformly."""
    importance_exponent: float = 0.4
    """beta of prioritised replay's importance weights at the start; it rises to 1."""
    target_period: int = 500
    """Updates between copies to the target network."""
    epsilon_start: float = 1.0
    """Share of random actions at the first frame."""
    epsilon_end: float = 0.01
    """Share of random actions once it has fallen."""
    epsilon_until: float = 0.1
    """The share of the run over which epsilon falls."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """RMSProp is the paper's."""
    max_grad_norm: float | None = 10.0
    """Gradients longer than this are shortened to it."""


class DQN(Algorithm):
    """One update from every sampled batch of transitions."""

    source_kind: ClassVar[str] = "replay"
    head: ClassVar[str] = "q"

    def __init__(self, context: AlgorithmContext, config: DQNConfig) -> None:
        super().__init__(context, config)
        self.policy.epsilon.fill_(config.epsilon_start)
        self.target = copy.deepcopy(self.policy)
        self._target_version = 0  # the target's, known without asking its device

    def optimizer(self) -> OptimizerFactory:
        c = self.config
        if c.optimizer == "rmsprop":
            # The paper's 0.01 stands inside the root of squared sums over 32 transitions, this one outside of that of means.
            return lambda parameters: optimizers.RMSprop(
                parameters, c.learning_rate, alpha=0.95, eps=0.1 / 32, centered=True
            )
        return lambda parameters: optimizers.Adam(parameters, c.learning_rate, eps=1e-4)

    def update(self, batch: TransitionBatch, exchange: Exchange, progress: float) -> dict[str, Tensor]:
        c, policy = self.config, self.policy
        set_learning_rate(exchange.optimizer, linear(c.learning_rate, c.final_learning_rate, progress))
        policy.epsilon.fill_(linear(c.epsilon_start, c.epsilon_end, progress, until=c.epsilon_until))
        if exchange.version - self._target_version >= c.target_period:
            copy_module_state(policy, self.target)
            self._target_version = exchange.version
        beta = linear(c.importance_exponent, 1.0, progress)
        weights = importance_weights(batch.probabilities, batch.size, beta).float()
        columns = (batch.observations, batch.next_observations, batch.actions, batch.returns, batch.discounts)
        figures = exchange.minimize(self._loss, weights, *columns)
        batch.priorities = figures.pop("errors").abs()
        update_statistics(policy, batch.observations[None], exchange)
        return {
            **figures,
            "policy/epsilon": policy.epsilon.clone(),
            "replay/size": torch.tensor(float(batch.size)),
        }

    def _loss(
        self,
        weights: Tensor,
        observations: Tensor,
        next_observations: Tensor,
        actions: Tensor,
        returns: Tensor,
        discounts: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Of N transitions; the figure ``errors`` ``[N]`` is what their priorities are made from."""
        with self.precision.autocast(self.device):
            q = value_of(self.policy(observations[None]).scores[0], actions)
        errors = q - self._targets(next_observations[None], returns, discounts)
        loss = weighted_huber_loss(errors, weights)
        return loss, {
            "loss/value": loss.detach(),
            "policy/q_mean": q.detach().mean(),
            "errors": errors.detach(),
        }

    @torch.no_grad()
    def _targets(self, following: Tensor, returns: Tensor, discounts: Tensor) -> Tensor:
        """Targets ``[N]`` by the target network, from the observations ``[1, N, ...]`` n steps later."""
        with self.precision.autocast(self.device):
            q_target = self.target(following).scores[0]
            if not self.config.double:
                return q_targets(returns, discounts, q_target)
            q_online = self.policy(following).scores[0]
        return double_q_targets(returns, discounts, q_online, q_target)

    def get_state(self) -> dict[str, Tensor]:
        return behind("target.", state_tensors(self.target))

    def set_state(self, state: dict[str, Tensor | np.ndarray]) -> None:
        tensors = {name: torch.as_tensor(value) for name, value in part_of(state, "target.").items()}
        self.target.load_state_dict(tensors)
        self._target_version = int(tensors["version"])
