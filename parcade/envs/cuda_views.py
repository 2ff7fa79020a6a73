"""The views of ``views.py`` for environments on a GPU, which return tensors."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from parcade.envs.settings import EnvSettings
from parcade.envs.views import PONG_BACKGROUND_GREYS, ActionSubset, KarpathyView


def karpathy_difference(frames: Tensor) -> Tensor:
    """Compute ``views.karpathy_difference`` with tensors.

    Shapes: frames ``[n, 2, 210, 160]`` uint8; returns ``[n, 80, 80]`` int8.
    """
    small = frames[:, :, 35:195:2, ::2]
    drawn = small != 0
    for grey in PONG_BACKGROUND_GREYS:
        drawn &= small != grey
    drawn = drawn.to(torch.int8)
    had_frame = frames[:, 0, 35, 0] != 0
    return (drawn[:, 1] - drawn[:, 0]) * had_frame.to(torch.int8)[:, None, None]


class DescribesUse:
    """A view of an environment that describes its use of the GPU."""

    _env: Any

    def describe_use(self, steps_per_second: float) -> dict[str, Any]:
        """See ``CudaNativeVectorEnv.describe_use``."""
        use: dict[str, Any] = self._env.describe_use(steps_per_second)
        return use


class CudaKarpathyView(DescribesUse, KarpathyView):
    """Observe ``karpathy_difference`` of two frames, computed on the GPU."""

    difference = staticmethod(karpathy_difference)


class CudaActionSubset(DescribesUse, ActionSubset):
    """Restrict the agent to a subset of the game's actions, with action tensors on the GPU."""

    def __init__(self, env: VectorEnv, subset: tuple[int, ...], device: torch.device) -> None:
        super().__init__(env, subset)
        self._subset = torch.tensor(subset, device=device)

    def chosen(self, actions: Tensor) -> Tensor:
        return self._subset[actions.clamp(0, len(self._subset) - 1)]  # as the consoles do


def seen_on_gpu(env: Any, settings: EnvSettings) -> VectorEnv:
    """Wrap an environment on a GPU in the views that its settings require."""
    device = env.device
    if settings.observations == "karpathy_2016":
        env = CudaKarpathyView(env)
    return CudaActionSubset(env, settings.action_subset, device) if settings.action_subset else env
