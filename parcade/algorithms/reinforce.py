"""REINFORCE on complete episodes: Karpathy's Pong learner, in parallel.

Papers: Williams 1992, "Simple statistical gradient-following algorithms"; Karpathy 2016, "Deep Reinforcement
Learning: Pong from Pixels" (http://karpathy.github.io/2016/05/31/rl/).
Notation: G_t is the discounted return up to the end of the point.
Deviations from Karpathy: (1) a softmax over two actions replaces the sigmoid; (2) the episodes of one update
are played in parallel instead of one after another; (3) the learning rate is 1e-3, that of the parallel
learner ppg-pong, and not 1e-4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from parcade.algorithms.base import Algorithm, AlgorithmConfig, normalized, update_statistics
from parcade.errors import UsageError
from parcade.exchange.base import Exchange, OptimizerFactory
from parcade.experience.batch import Batch
from parcade.model import optimizers
from parcade.model.policy import NetworkConfig
from parcade.ranges import Count, Fraction, NonNegative, Positive
from parcade.rl.returns import discounted_returns


@dataclass(frozen=True)
class ReinforceConfig(AlgorithmConfig):
    """Hyper-parameters of REINFORCE; the defaults are Karpathy's, except for the learning rate."""

    num_envs: Count = 10
    """Number of environments, over all ranks."""
    network: NetworkConfig = NetworkConfig(network="karpathy_mlp", normalize_input=False)
    """The policy's network."""
    learning_rate: Positive = 1e-3
    """Learning rate of RMSProp; Karpathy's is 1e-4."""
    rmsprop_decay: Fraction = 0.99
    """Decay of RMSProp's running mean of squared gradients."""
    games_per_update: Count = 10
    """Complete episodes per update, over all ranks."""
    reset_at_points: bool = True
    """End returns at each point scored; for games whose rallies do not depend on one another."""
    standardize_over: Literal["game", "batch"] = "game"
    """Standardise returns to mean 0 and standard deviation 1 over each episode (game, as Karpathy) or over
    the batch of all ranks.

    With game, an episode that consists of a single point gives no useful learning signal."""
    entropy_weight: NonNegative = 0.0
    """Weight of the entropy bonus; Karpathy had none."""
    chunk_steps: Count = 4096
    """Steps per forward pass; limits memory and does not affect results."""


class Reinforce(Algorithm):
    """One update per batch of complete episodes."""

    source_kind: ClassVar[str] = "games"
    head: ClassVar[str] = "actor_critic"
    continuous: ClassVar[bool] = True

    def optimizer(self) -> OptimizerFactory:
        c = self.config
        return lambda parameters: optimizers.RMSprop(
            parameters, c.learning_rate, alpha=c.rmsprop_decay, eps=1e-5
        )

    def update(self, batch: Batch, exchange: Exchange, progress: float) -> dict[str, Tensor]:
        advantages = self._advantages(batch, exchange)
        if exchange.updates == 0:
            self._check_signal(batch, advantages, exchange)
        loss_total, entropy_total = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for chunk in self._chunks(batch, advantages):
            figures = exchange.accumulate(self._loss, exchange.world_size, *chunk)
            loss_total += figures["loss"] / batch.num_steps
            entropy_total += figures["entropy"] / batch.num_steps
        exchange.apply()
        if self.policy.statistics is not None:
            update_statistics(self.policy, batch.observations[batch.mask][None].to(self.device), exchange)
        return {"loss/policy": loss_total, "policy/entropy": entropy_total}

    def _loss(
        self, world_size: int, observations: Tensor, actions: Tensor, advantages: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics of a chunk, summed over its steps."""
        with self.precision.autocast(self.device):
            scores = self.policy(observations).scores
        entropy = self.policy.actions.entropy(scores).sum()
        loss = -(advantages * self.policy.actions.log_prob(scores, actions)).sum()
        # The exchange averages over ranks; the factor world_size gives Karpathy's sum over all steps.
        return (loss - self.config.entropy_weight * entropy) * world_size, {
            "loss": loss.detach(),
            "entropy": entropy.detach(),
        }

    def _advantages(self, batch: Batch, exchange: Exchange) -> Tensor:
        """Return standardised returns ``[T, B]``; values in the padding are meaningless."""
        c = self.config
        discounts = batch.discounts(c.gamma, c.reset_at_points)
        returns = discounted_returns(batch.rewards, discounts, torch.zeros(batch.rewards.shape[1]))
        if c.standardize_over == "batch":
            return normalized(returns, exchange, batch.mask)
        # In float32 the mean of equal returns is none of them; their deviation would scale the difference.
        steps, returns = batch.mask.sum(0), returns.double()
        mean = (returns * batch.mask).sum(0) / steps
        deviation = (((returns - mean) * batch.mask).square().sum(0) / steps).sqrt()
        return ((returns - mean) / deviation.clamp(min=1e-6)).float()

    def _check_signal(self, batch: Batch, advantages: Tensor, exchange: Exchange) -> None:
        """Refuse settings under which equal returns of all steps cancel. Collective. Errors: UsageError."""
        scored = batch.rewards != 0
        found = [scored & batch.mask, ~scored & batch.mask, (advantages != 0) & batch.mask]
        any_scored, any_unscored, any_differs = exchange.maximum(np.array([float(x.any()) for x in found]))
        if any_differs or not any_scored:
            return
        if not any_unscored:
            raise UsageError(
                "all standardised returns are equal, so nothing can be learned: the game rewards every step, "
                "and returns end at each reward; use --no-reset-at-points --standardize-over batch"
            )
        if self.config.standardize_over == "game":
            raise UsageError(
                "the steps of every episode have equal returns, so nothing can be learned: standardised over "
                "the episode, they are 0; use --standardize-over batch"
            )
        # Standardised over the batch, returns are equal by chance, e.g. if every point was lost.

    def _chunks(self, batch: Batch, advantages: Tensor):
        """Yield observations, actions and advantages of real steps, in chunks ``[1, n, ...]`` on device."""
        columns = [column[batch.mask] for column in (batch.observations, batch.actions, advantages)]
        for part in zip(*(column.split(self.config.chunk_steps) for column in columns), strict=True):
            yield tuple(column[None].to(self.device) for column in part)
