"""The Gaussian distribution with a diagonal covariance, for D continuous actions.

Scores ``[..., 2 D]`` are D means, then D logarithms of standard deviations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# The largest float32 below 1 is 1 - 2^-24. Beyond it the inverse of the distribution function is infinite.
SMALLEST_UNIFORM = 2.0**-24
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def gaussian_log_prob(scores: Tensor, actions: Tensor) -> Tensor:
    """Return log pi(a|x). Shapes: scores ``[..., 2 D]``, actions ``[..., D]``; result ``[...]``."""
    mean, log_deviation = scores.chunk(2, -1)
    z = (actions - mean) * (-log_deviation).exp()
    return -(0.5 * z.square() + log_deviation + HALF_LOG_2PI).sum(-1)


def gaussian_entropy(scores: Tensor) -> Tensor:
    """Return the differential entropy in nats. Shapes: scores ``[..., 2 D]``; result ``[...]``."""
    log_deviation = scores.chunk(2, -1)[1]
    return (log_deviation + 0.5 + HALF_LOG_2PI).sum(-1)


def gaussian_sample(scores: Tensor, uniforms: Tensor) -> Tensor:
    """Return the actions ``[..., D]`` at quantiles ``uniforms`` ``[..., D]`` in [0, 1].

    Quantiles are limited to 2^-24 and 1 - 2^-24, so an action is at most 5.3 deviations from its mean.
    """
    mean, log_deviation = scores.chunk(2, -1)
    z = torch.special.ndtri(uniforms.clamp(SMALLEST_UNIFORM, 1 - SMALLEST_UNIFORM))
    actions: Tensor = mean + log_deviation.exp() * z
    return actions
