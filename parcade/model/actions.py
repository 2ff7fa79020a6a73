"""The two kinds of actions: one of A alternatives (Discrete spaces), or D real numbers (Box spaces).

A kind knows its distribution, whose parameters are the policy's scores ``[..., S]``, and the form of actions
in batches and in environments. Actions are ``[..., *shape]``; log-probabilities and entropies are ``[...]``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from torch import Tensor

from parcade.errors import UsageError
from parcade.rl.gaussian import gaussian_entropy, gaussian_log_prob, gaussian_sample
from parcade.rl.losses import entropy_of, log_prob_of


class DiscreteActions:
    """One of ``count`` actions, from a categorical distribution. Scores are A logits or Q values."""

    shape: tuple[int, ...] = ()
    dtype = torch.int64
    noise_columns = 2
    """Uniform numbers per decision: one samples; with epsilon, one decides and one explores."""

    def __init__(self, count: int) -> None:
        self.count = count

    def log_prob(self, scores: Tensor, actions: Tensor) -> Tensor:
        return log_prob_of(scores, actions)

    def entropy(self, scores: Tensor) -> Tensor:
        return entropy_of(scores)

    def score(self, scores: Tensor, actions: Tensor) -> Tensor:
        """Return the score of the actions: the logit, or the Q value."""
        return scores.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def best(self, scores: Tensor) -> Tensor:
        """Return the likeliest actions."""
        return scores.argmax(-1)

    def sample(self, scores: Tensor, uniforms: Tensor) -> Tensor:
        """Return actions ``[n]`` drawn with the first column of uniforms ``[n, 2]``."""
        cumulative = scores.softmax(-1).cumsum(-1)
        below = cumulative < uniforms[:, :1] * cumulative[:, -1:]
        return below.sum(-1).clamp_(max=self.count - 1)

    def for_env(self, actions: np.ndarray) -> np.ndarray:
        """Return actions ``[n]`` in the form the environments take."""
        return actions

    def random(self, generator: np.random.Generator, n: int) -> np.ndarray:
        """Return actions ``[n]`` for environments, each alternative as likely as another."""
        return generator.integers(0, self.count, n)

    def random_of(self, uniforms: np.ndarray) -> np.ndarray:
        """The same from uniform numbers ``[n, noise_columns]``, of which the first column counts."""
        return (uniforms[:, 0] * self.count).astype(np.int64)


class BoxActions:
    """D real numbers from a Gaussian with a diagonal covariance; only the environment sees them clipped.

    Scores are D means, then D logarithms of standard deviations. Log-probabilities are those of the unclipped
    actions, which batches hold. If all bounds of the space are finite, and any are not symmetric, such as 0
    to 1, the environment gets all of them scaled: -1 and 1 are the bounds.
    """

    dtype = torch.float32

    def __init__(self, space: Box) -> None:
        self.space = space
        self.count = math.prod(space.shape)
        self.shape = (self.count,)
        self.noise_columns = self.count
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        self._middle = self._unit = None
        if np.isfinite(low).all() and np.isfinite(high).all() and (low != -high).any():
            self._middle, self._unit = (low + high) / 2, (high - low) / 2

    def log_prob(self, scores: Tensor, actions: Tensor) -> Tensor:
        return gaussian_log_prob(scores, actions)

    def entropy(self, scores: Tensor) -> Tensor:
        return gaussian_entropy(scores)

    def score(self, scores: Tensor, actions: Tensor) -> Tensor:
        """Return the log-density of the actions."""
        return gaussian_log_prob(scores, actions)

    def best(self, scores: Tensor) -> Tensor:
        """Return the means."""
        return scores[..., : self.count]

    def sample(self, scores: Tensor, uniforms: Tensor) -> Tensor:
        """Return actions ``[n, D]`` drawn with uniforms ``[n, D]``."""
        return gaussian_sample(scores, uniforms)

    def for_env(self, actions: np.ndarray) -> np.ndarray:
        """Return actions ``[n, D]`` scaled and clipped, ``[n, *space.shape]`` in the dtype of the space."""
        shaped = self.scaled(actions).reshape(-1, *self.space.shape)
        return np.clip(shaped, self.space.low, self.space.high).astype(self.space.dtype, copy=False)

    def scaled(self, actions: Any) -> Any:
        """Return actions ``[..., D]``, an array or a tensor, in the units of the space."""
        if self._unit is None:
            return actions
        unit, middle = self._unit.reshape(-1), self._middle.reshape(-1)
        if isinstance(actions, Tensor):
            return actions * torch.as_tensor(unit).to(actions) + torch.as_tensor(middle).to(actions)
        return actions * unit + middle

    def random(self, generator: np.random.Generator, n: int) -> np.ndarray:
        """Return actions ``[n, *space.shape]`` for environments, drawn as by a new policy and clipped."""
        return self.for_env(generator.standard_normal((n, self.count)))

    def random_of(self, uniforms: np.ndarray) -> np.ndarray:
        """The same from uniform numbers ``[n, noise_columns]``."""
        scores = torch.zeros(len(uniforms), 2 * self.count)
        return self.for_env(self.sample(scores, torch.from_numpy(uniforms).float()).numpy())


Actions = DiscreteActions | BoxActions


def actions_of(space: Space | int) -> Actions:
    """Return the kind of actions of an environment's action space, or of a number of alternatives.

    Errors: UsageError for other spaces than ``Discrete`` and ``Box`` of floats.
    """
    if isinstance(space, int):
        return DiscreteActions(space)
    if isinstance(space, Discrete) and space.start == 0:
        return DiscreteActions(int(space.n))
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        return BoxActions(space)
    raise UsageError(f"actions {space}: expected Discrete actions from 0, or Box actions of floats")
