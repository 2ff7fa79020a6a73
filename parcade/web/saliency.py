"""What a decision depends on: the pixels of an observation to which the policy's scores are sensitive.

``gradient``: the absolute gradient of the score of the action taken (Simonyan 2013, arXiv 1312.6034), one
backward pass. ``occlusion``: how much all scores change when a patch is replaced by the mean of the image
(Zeiler & Fergus 2013, arXiv 1311.2901), one forward pass of all patches. Both sum over the frames of the
stack, and both answer for this policy at this state only; a dark region may matter a moment later.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from parcade.model.policy import Policy

PATCHES = 10
"""Patches along each side of an image."""
BRIGHTEST_SHARE = 0.995

Saliency = Callable[[Policy, Tensor, Tensor | None, Tensor, int], np.ndarray | None]


def _is_image(observed: Tensor, inputs: Tensor) -> bool:
    """Return whether prepared inputs ``[1, 1, ...]`` are an image ``[height, width]``, or a stack of them.

    Bytes with two axes are a stack of RAM; an image with two axes is Karpathy's, int8.
    """
    return inputs.ndim in (5, 6) or (inputs.ndim == 4 and observed.dtype != torch.uint8)


def _pixels(inputs: Tensor) -> Tensor:
    """Return a view ``[N, height, width, ...]`` of ``[N, ...]``: stacks of colours have frames first."""
    return inputs.movedim(1, 3) if inputs.ndim == 5 else inputs


def _levels(heat: Tensor) -> np.ndarray:
    """Scale a map ``[height, width]`` to uint8, its brightest half per cent to 255."""
    top = torch.quantile(heat.flatten(), BRIGHTEST_SHARE)
    return (heat / top.clamp_min(1e-12)).clamp(0, 1).mul(255).to(torch.uint8).numpy()


def gradient(
    policy: Policy, observed: Tensor, state: Tensor | None, starts: Tensor, action: int
) -> np.ndarray | None:
    """Return the map ``[height, width]`` uint8, or None if the observation ``[1, ...]`` is no image."""
    inputs = policy.prepare(observed[None])
    if not _is_image(observed, inputs):
        return None
    with torch.enable_grad():
        inputs = inputs.requires_grad_()
        score = policy.evaluate(inputs, state, starts[None]).scores[0, 0, action]
        (slope,) = torch.autograd.grad(score, inputs)
    slope = _pixels(slope[0])[0].abs()
    return _levels(slope.reshape(*slope.shape[:2], -1).sum(-1))


def occlusion(
    policy: Policy, observed: Tensor, state: Tensor | None, starts: Tensor, action: int
) -> np.ndarray | None:
    """Return the map ``[height, width]`` uint8, or None if the observation ``[1, ...]`` is no image."""
    inputs = policy.prepare(observed[None])
    if not _is_image(observed, inputs):
        return None
    image = _pixels(inputs[0])[0]  # [height, width], or with axes of frames and colours
    height, width = image.shape[:2]
    mean = image.mean((0, 1), keepdim=True)
    rows = np.linspace(0, height, PATCHES + 1).astype(int)
    columns = np.linspace(0, width, PATCHES + 1).astype(int)
    patches = [
        (slice(top, bottom), slice(left, right))
        for top, bottom in zip(rows[:-1], rows[1:], strict=True)
        for left, right in zip(columns[:-1], columns[1:], strict=True)
    ]
    covered = inputs[0].repeat(len(patches) + 1, *[1] * image.ndim)  # the last one stays as it is
    for pixels, patch in zip(_pixels(covered), patches, strict=False):
        pixels[patch] = mean
    states = None if state is None else state.expand(-1, len(covered), -1).contiguous()
    scores = policy.evaluate(covered[None], states, starts.expand(1, len(covered))).scores[0]
    change = (scores[:-1] - scores[-1]).norm(dim=-1)
    heat = torch.zeros(height, width)
    for value, patch in zip(change, patches, strict=True):
        heat[patch] = value
    return _levels(heat)


SALIENCIES: dict[str, Saliency] = {"gradient": gradient, "occlusion": occlusion}
