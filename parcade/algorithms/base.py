"""The interface of an algorithm: a policy, an optimiser and one ``update``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from parcade.errors import UsageError, in_short
from parcade.exchange.base import Exchange, OptimizerFactory
from parcade.experience.batch import Batch
from parcade.files.state import behind, part_of
from parcade.model import optimizers
from parcade.model.parameters import copy_module_state, state_tensors
from parcade.model.policy import NetworkConfig, Policy, PolicyOutput
from parcade.model.precision import Precision
from parcade.ranges import Count, Fraction, Positive, check_ranges

# Larger batches of observations are prepared minibatch by minibatch.
PREPARED_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True)
class AlgorithmConfig:
    """Hyper-parameters of every algorithm. Steps are decisions, not frames."""

    num_envs: Count = 32
    """Number of environments, over all ranks."""
    network: NetworkConfig = NetworkConfig()
    """The policy's network."""
    learning_rate: Positive = 1e-3
    """Learning rate of the optimiser."""
    gamma: Fraction = 0.99
    """Discount per step."""
    max_grad_norm: Positive | None = None
    """Clip the norm of gradients to this; None disables clipping."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class AlgorithmContext:
    """Constructor arguments common to all algorithms."""

    policy: Policy
    precision: Precision
    device: str
    generator: torch.Generator
    """Draws the order of minibatches. Saved in checkpoints; seeded differently on every rank."""


class Algorithm:
    """Learns a policy from batches. Independent of environments and of other processes."""

    source_kind: ClassVar[Literal["rollout", "staggered", "games", "replay", "population"]]
    """The kind of experience source it learns from."""
    head: ClassVar[Literal["actor_critic", "q"]]
    """The meaning of the policy's scores: logits (``actor_critic``) or Q values (``q``)."""
    acts_greedily: ClassVar[bool] = False
    """Whether the learned policy takes the best action instead of sampling one."""
    continuous: ClassVar[bool] = False
    """Whether it also learns continuous actions (``Box`` action spaces)."""
    distributional: ClassVar[bool] = False
    """Whether it also learns distributions of returns (the other value heads than ``mean``)."""
    needs_critic: ClassVar[bool] = False
    """Whether it learns from the policy's own estimates V, besides actions."""
    shares_state: ClassVar[bool] = True
    """Whether ``get_state`` is the same on all ranks. If not, a resume on another number of ranks begins
    without it."""

    def __init__(self, context: AlgorithmContext, config: AlgorithmConfig) -> None:
        self.policy = context.policy
        self.precision = context.precision
        self.device = context.device
        self.generator = context.generator
        self.config = config
        self._inputs: Tensor | None = None  # of the latest batch

    def optimizer(self) -> OptimizerFactory:
        """Return a function that makes the optimiser for the flat parameter vector."""
        raise NotImplementedError

    def explore(self, progress: float) -> None:
        """Set the policy's exploration, if it has any that changes, for this progress of the run.

        ``update`` calls this; a learner that restarts in the middle of a run calls it before it plays.
        """

    def update(self, batch: Batch, exchange: Exchange, progress: float) -> dict[str, Tensor]:
        """Learn from one batch and return metrics, which stay on their device.

        ``progress`` is the completed fraction of the run, in [0, 1].
        """
        raise NotImplementedError

    def get_state(self) -> dict[str, Tensor]:
        """Return the state kept between updates besides policy and optimiser; empty for most algorithms."""
        return {}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Restore a state returned by ``get_state``."""

    @torch.no_grad()
    def bootstrap(self, batch: Batch, policy: Policy | None = None) -> tuple[Tensor, Tensor]:
        """Compute bootstrap values with the current policy, or with another network given as ``policy``.

        Returns: rewards of ``completed_rewards`` ``[T, B]``, and V(x_T) ``[B]``. A loss of complete unrolls
        reaches the recurrent state before x_T by itself, and calls ``next_values`` instead.
        """
        policy, state = policy or self.policy, None
        if batch.initial_policy_state is not None:
            with self.precision.autocast(self.device):
                state = policy(batch.observations, batch.initial_policy_state, batch.starts).state
        v_T = self.next_values(state, batch.bootstrap_observations, batch.bootstrap_starts, policy)
        return self.completed_rewards(batch, policy), v_T

    @torch.no_grad()
    def next_values(
        self, state: Tensor | None, observations: Tensor, starts: Tensor, policy: Policy | None = None
    ) -> Tensor:
        """Compute V ``[B]`` of observations ``[B, ...]`` from the recurrent state before them."""
        with self.precision.autocast(self.device):
            return (policy or self.policy)(observations[None], state, starts[None]).values[0]

    @torch.no_grad()
    def completed_rewards(self, batch: Batch, policy: Policy | None = None) -> Tensor:
        """Return the rewards ``[T, B]`` of a batch, at truncated steps plus gamma * V(final observation)."""
        if not len(batch.truncated_at):
            return batch.rewards
        policy = policy or self.policy
        with self.precision.autocast(self.device):
            values = policy(batch.truncated_observations[None], batch.truncated_states).values[0]
        rewards = batch.rewards.clone()
        t, b = batch.truncated_at.unbind(1)
        if getattr(self.config, "reset_at_points", False):
            values = values * (rewards[t, b] == 0)  # the point ends the return
        rewards[t, b] += self.config.gamma * values
        return rewards

    def prepared_once(self, observations: Tensor) -> tuple[Tensor, Callable[..., PolicyOutput]]:
        """Return network inputs for several epochs over observations ``[T, B, ...]``, and their evaluation.

        Normalising is done once per batch. So is the conversion to the network's format, which autocast
        would repeat for every minibatch, if the network begins with a layer that autocast converts. In
        float32 the inputs are four times as large as uint8 observations; if that exceeds
        ``PREPARED_LIMIT_BYTES``, the result is the observations themselves and the policy, which normalises
        every minibatch. The next call may overwrite the inputs.
        """
        policy = self.policy
        if 4 * observations.numel() > PREPARED_LIMIT_BYTES:
            return observations, policy
        inputs = policy.prepare(observations, policy.input_format(self.precision.dtype), memory=self._inputs)
        if self.device == "cpu":  # where fresh memory comes in small pages, which take longer than filling it
            self._inputs = inputs
        return inputs, policy.evaluate


def checked_metrics(algorithm: Algorithm, metrics: Any) -> dict[str, Tensor]:
    """Return what ``update`` returned. Errors: UsageError unless these are numbers by name."""
    source = f"{type(algorithm).__name__}.update"
    if not isinstance(metrics, dict):
        raise UsageError(
            f"{source} returned {in_short(metrics)}; expected a dict of metrics: return what "
            "exchange.minimize returns, or {}"
        )
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise UsageError(f"{source} returned a metric named {in_short(repr(name))}; expected a string")
        if isinstance(value, Tensor):
            is_number, got = value.ndim == 0 and not value.is_complex(), f"shape {list(value.shape)}"
        elif isinstance(value, np.ndarray):
            is_number, got = value.ndim == 0 and value.dtype.kind in "biuf", f"shape {list(value.shape)}"
        else:
            is_number, got = isinstance(value, Real | np.bool_), f"a {type(value).__name__}"
        if not is_number:
            raise UsageError(
                f"{source} returned {got} as metric {name!r}; expected a number, or a tensor of shape []: "
                "take its mean, or leave it out"
            )
    return metrics


def checked_optimizer(algorithm: Algorithm) -> OptimizerFactory:
    """Return ``optimizer()``. Errors: UsageError unless it is a function."""
    make = algorithm.optimizer()
    if not callable(make):
        raise UsageError(
            f"{type(algorithm).__name__}.optimizer returned a {type(make).__name__}; expected a function "
            "that makes the optimiser, such as lambda parameters: torch.optim.Adam(parameters, lr=1e-3)"
        )
    return make


class TargetNetwork:
    """A copy of the policy, in ``network``, that ``follow`` renews every ``period`` updates.

    The first ``follow`` copies too: ranks receive the weights of rank 0 only after this is made.
    """

    def __init__(self, policy: Policy, period: int) -> None:
        self.network = copy.deepcopy(policy)
        self.period = period
        # The network's version, on the host, where reading it needs no device sync. At first a copy is due.
        self._version = -period

    def follow(self, policy: Policy, version: int) -> None:
        """Copy the policy of ``version`` updates, unless the last copy is older and still within its period.

        After a rollback of a parameter server, the last copy is newer.
        """
        if not self._version < version < self._version + self.period:
            copy_module_state(policy, self.network)
            self._version = version

    def get_state(self) -> dict[str, Tensor]:
        """Return the weights as ``target.*``."""
        return behind("target.", state_tensors(self.network))

    def set_state(self, state: dict[str, Tensor | np.ndarray]) -> None:
        """Restore a state returned by ``get_state``."""
        tensors = {name: torch.as_tensor(value) for name, value in part_of(state, "target.").items()}
        self.network.load_state_dict(tensors)
        self._version = int(tensors["version"])


def adam_or_rmsprop(config: AlgorithmConfig, rmsprop_eps: float = 1e-5) -> OptimizerFactory:
    """Return the maker of the optimiser that the config names."""
    if config.optimizer == "adam":
        return lambda parameters: optimizers.Adam(parameters, config.learning_rate, eps=1e-5)
    return lambda parameters: optimizers.RMSprop(
        parameters, config.learning_rate, alpha=0.99, eps=rmsprop_eps
    )


def update_statistics(policy: Policy, observations: Tensor, exchange: Exchange) -> None:
    """Add observations ``[T, B, ...]`` of every rank to the policy's input statistics.

    Call this after the updates from a batch. Until then the batch is normalised as it was for the behaviour
    policy, so that the first ratio of PPO is 1.
    """
    if policy.statistics is not None:
        exchange.merge_statistics(policy.statistics, policy.input_moments(observations))


def normalized(x: Tensor, exchange: Exchange, mask: Tensor | None = None) -> Tensor:
    """Normalise x ``[T, B]`` to mean 0 and standard deviation 1 over the real steps of all ranks.

    A single step is left as it is; its normalised value would always be 0.
    """
    real = x if mask is None else x[mask]
    # Assembled on the device, without a read-back.
    count = torch.full((), real.numel(), dtype=torch.float64, device=x.device)
    real = real.double()
    moments = torch.stack([count, real.sum(), real.square().sum()])
    count, total, squares = exchange.sum(moments)
    mean = torch.where(count > 1, total / count, 0.0)
    deviation = torch.where(count > 1, (squares / count - mean.square()).clamp(min=0).sqrt(), 1.0)
    return (x - mean.float()) / (deviation.float() + 1e-8)


def largest(x: Tensor, exchange: Exchange) -> Tensor:
    """Return the maximum of x over all ranks, on its device."""
    maxima = x.new_zeros(exchange.world_size)
    maxima[exchange.rank] = x.max()
    # A sum, since ``Exchange.maximum`` would read x back from its device.
    return exchange.sum(maxima).max()


def _permutation(n: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Draw a permutation on the host, so that the minibatches are the same on every device."""
    order = torch.randperm(n, generator=generator)
    if device.type == "cuda":  # a copy of more than 64 kB from other memory waits for all work queued before
        order = order.pin_memory()
    return order.to(device, non_blocking=True)


def shuffled(batch: Batch, num_minibatches: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the indices of each minibatch for one pass over a batch in random order; see ``minibatch``.

    Indices count the T * B steps for a feed-forward policy, and the B unrolls for a recurrent one. Shapes
    ``[n]`` int64; sizes differ by at most one.
    """
    T, B = batch.rewards.shape
    items = T * B if batch.initial_policy_state is None else B
    yield from _permutation(items, generator, batch.actions.device).tensor_split(num_minibatches)


def minibatch(index: Tensor, state: Tensor | None, *columns: Tensor) -> tuple[Tensor | None, ...]:
    """Select a minibatch of the columns ``[T, B, ...]`` of a batch. Returns its state, then its columns.

    Without a ``state``, the minibatch consists of single steps ``[1, n, ...]``. With the state ``[2, B, H]``
    before the batch, it consists of unrolls ``[T, n, ...]`` and their initial state ``[2, n, H]``.
    """
    if state is None:
        return None, *(column.flatten(0, 1).index_select(0, index)[None] for column in columns)
    return state[:, index], *(column[:, index] for column in columns)
