"""The policy: input statistics, network, memory and heads in one module, for acting and learning.

Shapes: T steps, B environments, S scores (one per action; for continuous actions see ``actions.py``), H
recurrent width. A recurrent state is ``[2, B, H]`` (hidden and cell); a feed-forward policy has none.
``starts[t]`` ``[B]`` is true where observation t begins an episode.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from parcade.model import pixels
from parcade.model.actions import BoxActions, actions_of
from parcade.model.image_networks import orthogonal
from parcade.model.networks import NetworkConfig, build_torso
from parcade.model.precision import autocast_dtype, full_precision
from parcade.model.value_heads import value_head_of

PREPARED_ROWS = 64
"""Observations that a CPU normalises at once. 32 to 128 of 42x42x4 or 84x84x4 are fastest."""


class RunningStatistics(nn.Module):
    """Running mean and standard deviation of the inputs, stored as buffers of the policy.

    Buffers: ``count`` scalar float64; ``mean`` and ``sum_of_squares`` (about the mean) ``[*shape]`` float64;
    ``offset`` and ``scale`` ``[*shape]`` float32, which normalisation reads. Before the first ``merge``,
    inputs are only multiplied by ``initial_scale``. Merging of parts: Chan, Golub & LeVeque 1979, eq. 2.1.
    """

    def __init__(self, shape: tuple[int, ...], *, initial_scale: float, floor: float) -> None:
        super().__init__()
        self.floor = floor
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("sum_of_squares", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("offset", torch.zeros(shape))
        self.register_buffer("scale", torch.full(shape, initial_scale))

    def reset(self) -> None:
        """Discard all statistics."""
        for buffer in (self.count, self.mean, self.sum_of_squares):
            buffer.zero_()

    def moments_of(self, x: Tensor) -> Tensor:
        """Return count, sums and sums of squares of x, for summing over ranks: ``[1 + 2 * size]`` float64.

        Those of bytes are exact.
        """
        x = x.flatten(end_dim=x.ndim - self.mean.ndim - 1)
        total = torch.zeros_like(self.mean)
        squares = torch.zeros_like(self.mean)
        # Sums of the squares of 256 bytes are exact in float32. Large numbers need the digits of float64.
        wide = torch.float32 if x.dtype == torch.uint8 else torch.float64
        for part in x.split(256):
            part = part.to(wide)
            total += part.sum(0)
            squares += part.square().sum(0)
        count = torch.full((1,), float(x.shape[0]), dtype=torch.float64, device=x.device)
        return torch.cat([count, total.flatten(), squares.flatten()])

    def moments(self) -> Tensor:
        """Return count, sums and sums of squares of all that was merged, as ``moments_of`` does."""
        squares = self.sum_of_squares + self.count * self.mean.square()
        return torch.cat([self.count.reshape(1), (self.count * self.mean).flatten(), squares.flatten()])

    def merge(self, moments: Tensor) -> None:
        """Add moments that are already summed over ranks."""
        count = moments[0]
        total, squares = moments[1:].view(2, *self.mean.shape)
        mean = total / count
        delta = mean - self.mean
        merged = self.count + count
        self.sum_of_squares += (
            squares - count * mean.square() + delta.square() * (self.count * count / merged)
        )
        self.mean += delta * (count / merged)
        self.count.copy_(merged)
        # The floor bounds the scale of an input that hardly varies.
        variance = (self.sum_of_squares / merged).clamp(min=0) + self.floor**2
        self.offset.copy_(self.mean)
        self.scale.copy_(variance.rsqrt())


class PolicyOutput(NamedTuple):
    """Scores ``[T, B, S]`` (logits or Q values), values ``[T, B]``, recurrent state after the last step."""

    scores: Tensor
    values: Tensor
    state: Tensor | None


class Acted(NamedTuple):
    """One decision: actions ``[B]`` int64, or ``[B, D]`` float32 if continuous; their log_prob, value and
    score ``[B]``; next recurrent state."""

    actions: Tensor
    log_prob: Tensor
    values: Tensor
    scores: Tensor
    state: Tensor | None


class Policy(nn.Module):
    """A network with input normalisation, optional LSTM and heads.

    Args:
        observation_shape: shape of one observation, e.g. ``(4, 42, 42)``.
        observation_dtype: numpy dtype; uint8 inputs are scaled to [0, 1] if the input is not normalised.
        actions: the environment's action space, or a number of alternatives.
        config: the network's settings.
        head: ``actor_critic``: scores are parameters of the distribution from which actions are sampled:
            logits, or means and deviations; ``q``: scores are Q values, the expectations of the config's
            value head, and actions are epsilon-greedy.
        is_stack: the first axis of uint8 images counts frames, as in Atari games, and not colours.
    """

    version: Tensor
    epsilon: Tensor

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        observation_dtype: np.dtype,
        actions: Space | int,
        config: NetworkConfig,
        head: Literal["actor_critic", "q"],
        *,
        is_stack: bool = True,
    ) -> None:
        super().__init__()
        self.head = head
        self.actions = actions_of(actions)
        self.observation_shape = observation_shape
        self.torso = build_torso(config, observation_shape)
        num_features = self.torso.num_features
        self.lstm = None
        if config.lstm:
            self.lstm = nn.LSTMCell(num_features, config.lstm)
            for name, parameter in self.lstm.named_parameters():
                nn.init.zeros_(parameter) if "bias" in name else nn.init.orthogonal_(parameter)
            num_features = config.lstm
        plain = config.network == "karpathy_mlp"
        self.value_head = value_head_of(config) if head == "q" else None
        width = 1 if self.value_head is None else self.value_head.size
        self.actor = orthogonal(
            nn.Linear(num_features, self.actions.count * width, bias=not plain),
            0.01 if head == "actor_critic" else 1.0,
        )
        if plain:
            # The difference of two scores has the deviation of Karpathy's single score, 1 / sqrt(inputs).
            nn.init.normal_(self.actor.weight, std=1 / math.sqrt(2 * num_features))
        # The deviation of continuous actions does not depend on the observation; it starts at 1.
        is_box = isinstance(self.actions, BoxActions)
        self.log_deviation = nn.Parameter(torch.zeros(self.actions.count)) if is_box else None
        self.critic = None
        if head == "actor_critic" and not plain:
            self.critic = orthogonal(nn.Linear(num_features, 1), 1.0)
        self.duel = None
        if config.dueling and head == "q":
            self.duel = orthogonal(nn.Linear(num_features, width), 1.0)
        is_bytes = np.dtype(observation_dtype) == np.uint8
        self.byte_scale = 1 / 255 if is_bytes else 1.0
        # A pixel has the same mean and deviation in every frame of a stack. A single image is a stack of one.
        is_image = is_bytes and len(observation_shape) >= 3
        self.is_stack = is_image and (is_stack or observation_shape[0] == 1)
        self.statistics = None
        if config.normalize_input and not plain:
            floor = 1.0 if is_bytes else 1e-2  # one grey level
            shape = observation_shape[1:] if self.is_stack else observation_shape
            self.statistics = RunningStatistics(shape, initial_scale=self.byte_scale, floor=floor)
        self.input_clip = config.input_clip
        self.register_buffer("version", torch.zeros((), dtype=torch.int64))
        self.register_buffer("epsilon", torch.zeros(()))

    def initial_state(self, batch_size: int) -> Tensor | None:
        """Return the recurrent state at the start of an episode, ``[2, B, H]`` zeros; None without LSTM."""
        if self.lstm is None:
            return None
        return torch.zeros(2, batch_size, self.lstm.hidden_size, device=self.version.device)

    def input_moments(self, observations: Tensor) -> Tensor:
        """Return the moments of observations ``[T, B, ...]``; in a frame stack, of the newest frame only."""
        return self.statistics.moments_of(observations[:, :, -1] if self.is_stack else observations)

    def input_format(self, autocast: torch.dtype) -> torch.dtype:
        """Return the type of inputs that leaves ``evaluate`` under autocast to this format its results.

        Inputs are converted only for a network whose first layer would convert them.
        """
        return autocast if getattr(self.torso, "begins_with_autocast", False) else torch.float32

    def prepare(
        self, observations: Tensor, dtype: torch.dtype = torch.float32, memory: Tensor | None = None
    ) -> Tensor:
        """Scale or normalise observations ``[T, B, ...]`` in float32; return network inputs of this type.

        Images become channels last, ``[T, B, height, width, C]``: convolutions on CPUs are then 1.2 to 1.6
        times as fast. Statistics change only between batches, so all epochs over a batch can share inputs.
        An earlier result as ``memory`` is overwritten, if it has the size and type of the new one.
        """
        x = observations.flatten(0, 1)
        if memory is not None:
            memory = memory.flatten(0, 1) if memory.dtype == dtype and memory.numel() == x.numel() else None
        if pixels.can_normalize(x) and (self.is_stack or self.statistics is None):
            inputs = pixels.normalized(x, *self._normalization(x.shape[2:]), dtype, memory)
            return inputs.unflatten(0, observations.shape[:2])
        if x.ndim == 4:
            x = x.permute(0, 2, 3, 1)
        # A CPU normalises a few rows at a time, which stay in its cache. A traced graph cannot branch on it.
        if torch.compiler.is_compiling() or x.device.type != "cpu" or len(x) <= PREPARED_ROWS:
            inputs = self._normalize(x).to(dtype)
        else:
            inputs = torch.empty(x.shape, dtype=dtype) if memory is None else memory.view(x.shape)
            for rows, inputs_out in zip(x.split(PREPARED_ROWS), inputs.split(PREPARED_ROWS), strict=True):
                inputs_out.copy_(self._normalize(rows))
        return inputs.unflatten(0, observations.shape[:2])

    def _normalization(self, shape: torch.Size) -> tuple[Tensor, Tensor, float]:
        """Return offset and scale, of this shape, and the clipping of normalisation."""
        if self.statistics is None:
            return torch.zeros(shape), torch.full(shape, self.byte_scale), math.inf
        return self.statistics.offset, self.statistics.scale, self.input_clip

    def _normalize(self, x: Tensor) -> Tensor:
        """Return rows ``[N, ...]``, images channels last, scaled or normalised, float32 and contiguous."""
        # Bytes are reordered before they become floats, which is faster.
        x = x.contiguous().to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        if self.statistics is None:
            return x.mul_(self.byte_scale)
        offset, scale = self.statistics.offset, self.statistics.scale
        if x.ndim == 4 and self.is_stack:
            # Repeated in memory: broadcasting over a stack of 4 takes six times as long.
            offset, scale = (each.unsqueeze(-1).expand(x.shape[1:]).contiguous() for each in (offset, scale))
        elif x.ndim == 4:
            offset, scale = (each.permute(1, 2, 0) for each in (offset, scale))
        return x.sub_(offset).mul_(scale).clamp_(-self.input_clip, self.input_clip)

    def forward(
        self, observations: Tensor, state: Tensor | None = None, starts: Tensor | None = None
    ) -> PolicyOutput:
        """Return scores and values of T steps.

        Shapes: observations ``[T, B, ...]``, state ``[2, B, H]``, starts ``[T, B]``.
        """
        inputs = self.prepare(observations, self.input_format(autocast_dtype(observations.device.type)))
        return self.evaluate(inputs, state, starts)

    def evaluate(
        self, inputs: Tensor, state: Tensor | None = None, starts: Tensor | None = None
    ) -> PolicyOutput:
        """Run ``forward`` on inputs returned by ``prepare``, also if they were converted to bfloat16."""
        features, state = self._features(inputs, state, starts)
        # The heads stay in float32: in bfloat16, a logit of 5 and so PPO's ratio are off by up to 0.02.
        with full_precision(features.device.type):
            features = features.float()
            if self.value_head is not None:
                scores = self.value_head.expectation(self._distributions(features))
                return PolicyOutput(scores, scores.amax(-1), state)
            scores = self.actor(features)
            if self.log_deviation is not None:
                scores = torch.cat([scores, self.log_deviation.expand_as(scores)], -1)
            no_critic = self.critic is None
            values = torch.zeros_like(scores[..., 0]) if no_critic else self.critic(features).squeeze(-1)
        return PolicyOutput(scores, values, state)

    def distributions(self, observations: Tensor) -> Tensor:
        """Return what the value head of a Q policy without LSTM predicts, z of ``value_heads.py``.

        Shapes: observations ``[T, B, ...]``; result ``[T, B, A, K]``.
        """
        features, _ = self._features(self.prepare(observations), None, None)
        with full_precision(features.device.type):
            return self._distributions(features.float())

    def _distributions(self, features: Tensor) -> Tensor:
        """Return z ``[T, B, A, K]`` of features ``[T, B, F]``."""
        z = self.actor(features).unflatten(-1, (self.actions.count, -1))
        if self.duel is not None:
            # Wang 2016, eq. 9, for each of the K numbers (Hessel 2018, arXiv 1710.02298, "Rainbow").
            z = self.duel(features).unsqueeze(-2) + z - z.mean(-2, keepdim=True)
        return z

    def _features(
        self, inputs: Tensor, state: Tensor | None, starts: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return features ``[T, B, F]`` of inputs returned by ``prepare``, and the next recurrent state."""
        T, B = inputs.shape[:2]
        x = inputs.flatten(0, 1)
        features = self.torso(x.permute(0, 3, 1, 2) if x.ndim == 4 else x).unflatten(0, (T, B))
        if self.lstm is None:
            return features, state
        return self._remember(features, state, starts)

    def _remember(
        self, features: Tensor, state: Tensor | None, starts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        T, B = features.shape[:2]
        hidden, cell = self.initial_state(B) if state is None else state
        outputs = []
        for t in range(T):
            if starts is not None:
                carried = (~starts[t]).unsqueeze(-1)
                hidden, cell = hidden * carried, cell * carried
            # The recurrent state stays float32 on every device.
            with full_precision(features.device.type):
                hidden, cell = self.lstm(features[t].float(), (hidden, cell))
            outputs.append(hidden)
        return torch.stack(outputs), torch.stack([hidden, cell])

    @torch.no_grad()
    def act(
        self,
        observations: Tensor,
        uniforms: Tensor | None,
        state: Tensor | None = None,
        starts: Tensor | None = None,
        epsilon: Tensor | None = None,
    ) -> Acted:
        """Choose one action for each of B environments.

        Shapes: observations ``[B, ...]``, uniforms ``[B, actions.noise_columns]`` in [0, 1] (None acts
        greedily), starts ``[B]`` bool, epsilon ``[B]``, which replaces the policy's epsilon.
        """
        scores, values, state = self(observations[None], state, None if starts is None else starts[None])
        scores, values = scores[0], values[0]
        if uniforms is None:
            actions = self.actions.best(scores)
        elif self.head == "q":
            # A float64 just below 1 rounds to 1 in float32.
            explored = (uniforms[:, 1] * self.actions.count).long().clamp_(max=self.actions.count - 1)
            actions = torch.where(
                uniforms[:, 0] < (self.epsilon if epsilon is None else epsilon),
                explored,
                self.actions.best(scores),
            )
        else:
            actions = self.actions.sample(scores, uniforms)
        log_prob, taken = self.actions.log_prob(scores, actions), self.actions.score(scores, actions)
        return Acted(actions, log_prob, values, taken, state)
