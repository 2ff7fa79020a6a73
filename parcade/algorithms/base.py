"""What every algorithm is: a policy, an optimiser and one ``update``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from parcade.exchange.base import Exchange, OptimizerFactory
from parcade.experience.batch import Batch
from parcade.policy import NetworkConfig, Policy, PolicyOutput
from parcade.precision import Precision


@dataclass(frozen=True)
class AlgorithmConfig:
    """Hyper-parameters every algorithm has. Steps are decisions, not frames."""

    num_envs: int = 32
    """Environments over all ranks."""
    network: NetworkConfig = NetworkConfig()
    """The policy's network."""
    learning_rate: float = 1e-3
    """Optimiser step size."""
    gamma: float = 0.99
    """Discount per step."""


@dataclass(frozen=True)
class AlgorithmContext:
    """What an algorithm is given beside its own hyper-parameters."""

    policy: Policy
    precision: Precision
    device: str
    generator: torch.Generator
    """Draws minibatch orders; saved with a checkpoint. Different on every rank."""


class Algorithm:
    """Learns a policy from batches. Knows no environment and no other process; each file of this folder has one."""

    source_kind: ClassVar[Literal["rollout", "staggered", "games", "replay", "population"]]
    """The experience source it takes."""
    head: ClassVar[Literal["actor_critic", "q"]]
    """What the policy's scores are."""
    acts_greedily: ClassVar[bool] = False
    """Whether the policy that is learned takes the best action, and draws none."""

    def __init__(self, context: AlgorithmContext, config: AlgorithmConfig) -> None:
        self.policy = context.policy
        self.precision = context.precision
        self.device = context.device
        self.generator = context.generator
        self.config = config

    def optimizer(self) -> OptimizerFactory:
        """Makes the optimiser for the flat parameter vector."""
        raise NotImplementedError

    def update(self, batch: Batch, exchange: Exchange, progress: float) -> dict[str, Tensor]:
        """Learn from one batch; progress is the share of the run that is over. Returns metrics, left on their device."""
        raise NotImplementedError

    def get_state(self) -> dict[str, Tensor]:
        """What the algorithm itself carries from update to update beside policy and optimiser: nothing, for most."""
        return {}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Take what ``get_state`` gave."""

    @torch.no_grad()
    def bootstrap(self, batch: Batch, policy: Policy | None = None) -> tuple[Tensor, Tensor]:
        """What lies beyond the rollout, by the policy as it is now, or by another network.

        Returns: the batch's rewards ``[T, B]`` with gamma * V(final observation) added where a step was truncated, and
        V(x_T) ``[B]``.
        """
        policy, state = policy or self.policy, None
        with self.precision.autocast(self.device):
            if batch.initial_policy_state is not None:
                state = policy(batch.observations, batch.initial_policy_state, batch.starts).state
            v_T = policy(batch.bootstrap_observations[None], state, batch.bootstrap_starts[None]).values[0]
            if not len(batch.truncated_at):
                return batch.rewards, v_T
            values = policy(batch.truncated_observations[None], batch.truncated_states).values[0]
        rewards = batch.rewards.clone()
        t, b = batch.truncated_at.unbind(1)
        rewards[t, b] += self.config.gamma * values
        return rewards, v_T


# A batch of prepared observations larger than this is prepared minibatch by minibatch instead.
PREPARED_LIMIT_BYTES = 1 << 30


def prepared_once(policy: Policy, observations: Tensor) -> tuple[Tensor, Callable[..., PolicyOutput]]:
    """What several epochs over a batch go through, and what evaluates a part of it.

    Normalising 4,096 stacks of 42x42 costs as much as a fifth of the learning from them, so it is done once a batch,
    as long as the result, four times the size of the bytes it is made from, stays within bounds.
    """
    if 4 * observations.numel() > PREPARED_LIMIT_BYTES:
        return observations, policy
    return policy.prepare(observations), policy.evaluate


def update_statistics(policy: Policy, observations: Tensor, exchange: Exchange) -> None:
    """Let the policy's input statistics see ``[T, B, ...]`` observations of every rank.

    Called after the updates from a batch: until then the batch is seen as the behaviour policy saw it, and the first
    ratio of PPO is 1.
    """
    if policy.statistics is not None:
        exchange.merge_statistics(policy.statistics, policy.input_moments(observations))


def normalized(x: Tensor, exchange: Exchange, mask: Tensor | None = None) -> Tensor:
    """x ``[T, B]`` with mean 0 and deviation 1 over the real steps of the whole batch of every rank."""
    real = x if mask is None else x[mask]
    # Put together on the device: nothing is read back.
    count = torch.full((), real.numel(), dtype=torch.float64, device=x.device)
    moments = torch.stack([count, real.sum().double(), real.square().sum().double()])
    count, total, squares = exchange.sum(moments)
    mean = total / count
    deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
    return (x - mean.float()) / (deviation.float() + 1e-8)


def _permutation(n: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Drawn on the host, so that a run takes the same minibatches on every device."""
    return torch.randperm(n, generator=generator).to(device, non_blocking=True)


def shuffled(batch: Batch, num_minibatches: int, generator: torch.Generator) -> Iterator[Tensor]:
    """One pass over a batch in random order: what each minibatch is made of, for ``minibatch``.

    A feed-forward policy's minibatches are steps, of T * B; a recurrent one's are whole unrolls, of B. Shapes ``[n]``
    int64, equal but for the rest of a division.
    """
    T, B = batch.actions.shape
    items = T * B if batch.initial_policy_state is None else B
    yield from _permutation(items, generator, batch.actions.device).tensor_split(num_minibatches)


def minibatch(index: Tensor, state: Tensor | None, *columns: Tensor) -> tuple[Tensor | None, ...]:
    """The chosen part of the columns ``[T, B, ...]`` of a batch: its state, then its columns.

    Without a state ``[2, B, H]`` before the batch it is single steps ``[1, n, ...]``, else unrolls ``[T, n, ...]`` with the
    state ``[2, n, H]`` they began from.
    """
    if state is None:
        return None, *(column.flatten(0, 1).index_select(0, index)[None] for column in columns)
    return state[:, index], *(column[:, index] for column in columns)
