"""DQN: n-step (double) Q-learning from a replay, with a target network.

Papers: Mnih 2015, "Human-level control through deep reinforcement learning", Nature 518:529, algorithm 1; van
Hasselt 2016, arXiv 1509.06461 (double); Schaul 2016, arXiv 1511.05952 (prioritised); Wang 2016,
arXiv 1511.06581 (dueling); Bellemare 2017, arXiv 1707.06887, and Dabney 2018, arXiv 1710.10044 (distributions
of returns, ``value_heads.py``); Hessel 2018, arXiv 1710.02298 (all together: Rainbow).
Notation: ``discounts`` ``[N]`` are gamma^n, or 0 where the episode ended within the n steps; ``returns``
``[N]`` are the discounted sums of n rewards; z ``[N, A, K]`` as in ``value_heads.py``, K = 1 for Q values.
Deviations from Mnih 2015: (1) Adam is the default optimiser, RMSProp is available, and the norm of gradients
is clipped, by default; (2) ``num_envs`` environments run in parallel, and ``batch_size`` is larger in
proportion, so that each step is still sampled eight times on average; (3) returns may span ``n_step`` steps,
without correction for the older policy's actions. From Wang 2016: (4) the two streams of a dueling network
share the dense layer; (5) the gradients that meet there are not scaled by 1/sqrt(2). From Hessel 2018:
(6) exploration is epsilon-greedy, without noisy layers; (7) the priority of C51 is the cross-entropy, not the
KL divergence.
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
    largest,
    update_statistics,
)
from parcade.errors import UsageError
from parcade.exchange.base import Exchange, OptimizerFactory, set_learning_rate
from parcade.experience.replay import TransitionBatch
from parcade.model import optimizers
from parcade.model.policy import NetworkConfig
from parcade.ranges import Count, Fraction, Natural, NonNegative, Positive
from parcade.rl.q_learning import distribution_of, importance_weights
from parcade.rl.schedules import linear


@dataclass(frozen=True)
class DQNConfig(AlgorithmConfig):
    """Hyper-parameters of DQN."""

    num_envs: Count = 8
    """Number of environments, over all ranks."""
    network: NetworkConfig = NetworkConfig(normalize_input=False)
    """The policy's network."""
    learning_rate: Positive = 2.5e-4
    """Learning rate of the optimiser."""
    final_learning_rate: NonNegative | None = None
    """Learning rate at the end of a linear decay over total_frames; None keeps the learning rate constant."""
    unroll_length: Count = 1
    """T: steps per environment between updates."""
    batch_size: Count = 64
    """Transitions per update, over all ranks."""
    replay_capacity: Count = 100_000
    """Entries of the replay, over all ranks: one per step, and a few more per episode."""
    replay_spill: str = ""
    """Directory of a memory-mapped file for the replay's frames, which may then exceed memory. Empty keeps
    them in memory."""
    save_replay: bool = True
    """Save the replay in checkpoints; without it a resumed run starts with an empty replay."""
    learning_starts: Natural = 5_000
    """Steps before the first update, over all ranks."""
    n_step: Count = 3
    """Number of rewards in a return before it bootstraps."""
    double: bool = True
    """Double Q-learning: the online network selects the action, the target network evaluates it."""
    priority_exponent: Fraction = 0.0
    """alpha of prioritised replay; 0 samples uniformly."""
    importance_exponent: Fraction = 0.4
    """Initial beta of the importance weights of prioritised replay; it rises to 1."""
    target_period: Count = 500
    """Updates between copies to the target network."""
    epsilon_start: Fraction = 1.0
    """Probability of a random action at the first frame."""
    epsilon_end: Fraction = 0.01
    """Probability of a random action after the decay."""
    epsilon_until: Positive = 0.1
    """Fraction of the run over which epsilon decays."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimiser; the paper uses RMSProp."""
    adam_epsilon: Positive = 1e-4
    """Adam's epsilon; without effect on RMSProp."""
    max_grad_norm: Positive | None = 10.0
    """Clip the norm of gradients to this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        beta, default = self.importance_exponent, DQNConfig.importance_exponent
        if beta != default and self.priority_exponent == 0:
            raise UsageError(
                f"importance_exponent={beta:g} weighs prioritised samples; got priority_exponent 0; "
                f"use e.g. --priority-exponent 0.5, or leave it at {default:g}"
            )


class DQN(Algorithm):
    """One update per sampled batch of transitions."""

    source_kind: ClassVar[str] = "replay"
    head: ClassVar[str] = "q"
    distributional: ClassVar[bool] = True

    def __init__(self, context: AlgorithmContext, config: DQNConfig) -> None:
        super().__init__(context, config)
        self.explore(0.0)
        self.target = TargetNetwork(self.policy, config.target_period)

    def optimizer(self) -> OptimizerFactory:
        c = self.config
        if c.optimizer == "rmsprop":
            # The paper adds 0.01 inside the square root, to gradients summed over 32 transitions. Gradients
            # here are means: 0.01 / 32^2.
            return lambda parameters: optimizers.CenteredRMSprop(
                parameters, c.learning_rate, alpha=0.95, eps=0.1 / 32
            )
        return lambda parameters: optimizers.Adam(parameters, c.learning_rate, eps=c.adam_epsilon)

    def explore(self, progress: float) -> None:
        c = self.config
        self.policy.epsilon.fill_(linear(c.epsilon_start, c.epsilon_end, progress, until=c.epsilon_until))

    def update(self, batch: TransitionBatch, exchange: Exchange, progress: float) -> dict[str, Tensor]:
        c, policy = self.config, self.policy
        set_learning_rate(exchange.optimizer, linear(c.learning_rate, c.final_learning_rate, progress))
        self.explore(progress)
        self.target.follow(policy, exchange.version)
        beta = linear(c.importance_exponent, 1.0, progress)
        weights = importance_weights(batch.probabilities, batch.size, beta)
        # Without priorities all weights are equal, so ranks have nothing to compare.
        divisor = self._largest(weights, batch, beta, exchange) if c.priority_exponent else weights.max()
        weights = (weights / divisor).float()
        columns = (batch.observations, batch.next_observations, batch.actions, batch.returns, batch.discounts)
        figures = exchange.minimize(self._loss, weights, *columns)
        batch.priorities = figures.pop("errors").abs()
        update_statistics(policy, batch.observations[None], exchange)
        return {
            **figures,
            "policy/epsilon": policy.epsilon.clone(),
            "replay/size": torch.tensor(float(batch.size)),
        }

    def _largest(self, weights: Tensor, batch: TransitionBatch, beta: float, exchange: Exchange) -> Tensor:
        if batch.lowest_probability is not None:  # also of the other shards of a replay
            weights = importance_weights(batch.lowest_probability, batch.size, beta)
        return largest(weights, exchange)

    def _loss(
        self,
        weights: Tensor,
        observations: Tensor,
        next_observations: Tensor,
        actions: Tensor,
        returns: Tensor,
        discounts: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics of N transitions; ``errors`` ``[N]`` are for the priorities."""
        value_head = self.policy.value_head
        with self.precision.autocast(self.device):
            z = distribution_of(self.policy.distributions(observations[None])[0], actions)
        losses, errors = value_head.losses(z, self._targets(next_observations[None], returns, discounts))
        loss = (weights * losses).mean()
        return loss, {
            "loss/value": loss.detach(),
            "policy/q_mean": value_head.expectation(z.detach()).mean(),
            "errors": errors.detach(),
        }

    @torch.no_grad()
    def _targets(self, following: Tensor, returns: Tensor, discounts: Tensor) -> Tensor:
        """Return targets ``[N, K]`` of the target network, from observations ``[1, N, ...]`` n steps later.

        The returns span n steps as in Hessel 2018, "multi-step learning".
        """
        value_head = self.policy.value_head
        with self.precision.autocast(self.device):
            z_target = self.target.network.distributions(following)[0]
            if self.config.double:  # the online network selects the action (van Hasselt 2016, eq. 4)
                q = self.policy(following).scores[0]
        if not self.config.double:  # the target network does (Mnih 2015, algorithm 1), in float32
            q = value_head.expectation(z_target)
        return value_head.targets(returns, discounts, distribution_of(z_target, q.argmax(-1)))

    def get_state(self) -> dict[str, Tensor]:
        return self.target.get_state()

    def set_state(self, state: dict[str, Tensor | np.ndarray]) -> None:
        self.target.set_state(state)
