"""The views of ``views.py`` for environments on a GPU, which return tensors."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from parcade.envs.native_cuda import check_tensor
from parcade.envs.settings import EnvSettings
from parcade.envs.views import PONG_BACKGROUND_GREYS, ActionSubset, KarpathyView


def karpathy_difference(frames: Tensor) -> Tensor:
    """Compute ``views.karpathy_difference`` with tensors.

    Shapes: frames ``[n, 2, 210, 160]`` uint8; returns ``[n, 80, 80]`` int8.
    """
    return _difference(_cropped(frames))


def _cropped(frames: Tensor) -> Tensor:
    return frames[:, :, 35:195:2, ::2]


def _difference(small: Tensor) -> Tensor:
    """Compute the difference of cropped frames ``[n, 2, 80, 80]``."""
    drawn = small != 0
    for grey in PONG_BACKGROUND_GREYS:
        drawn &= small != grey
    drawn = drawn.to(torch.int8)
    had_frame = small[:, 0, 0, 0] != 0
    return (drawn[:, 1] - drawn[:, 0]) * had_frame.to(torch.int8)[:, None, None]


class OnGpu:
    """A view of an environment on a GPU, with its device and a description of its use of the GPU."""

    _env: Any

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        device: torch.device = self._env.device
        return device

    def describe_use(self, steps_per_second: float) -> dict[str, Any]:
        """See ``CudaNativeVectorEnv.describe_use``."""
        use: dict[str, Any] = self._env.describe_use(steps_per_second)
        return use


class CudaKarpathyView(OnGpu, KarpathyView):
    """Observe ``karpathy_difference`` of two frames, computed on the GPU."""

    difference = staticmethod(karpathy_difference)

    def shown(self, result: tuple[Any, ...]) -> tuple[Any, ...]:
        """Compute both differences of a step at once: final observations are always present on a GPU."""
        observations, *outcome, infos = result
        small = torch.cat([_cropped(observations), _cropped(infos["final_obs"])])
        observations, final = _difference(small).chunk(2)
        return observations, *outcome, {**infos, "final_obs": final}


class CudaActionSubset(OnGpu, ActionSubset):
    """Restrict the agent to a subset of the game's actions, with action tensors on the GPU."""

    def __init__(self, env: VectorEnv, subset: tuple[int, ...]) -> None:
        super().__init__(env, subset)
        self._subset = torch.tensor(subset, device=self.device)

    def chosen(self, actions: Tensor) -> Tensor:
        """Return the game's actions, int64; as by the consoles, an action out of range is clamped.

        Errors: UsageError for actions of another type, shape or device.
        """
        check_tensor(actions, self.num_envs, self.device)
        return self._subset[actions.long().clamp(0, len(self._subset) - 1)]


def seen_on_gpu(env: Any, settings: EnvSettings) -> VectorEnv:
    """Wrap an environment on a GPU in the views that its settings require."""
    if settings.observations == "karpathy_2016":
        env = CudaKarpathyView(env)
    return CudaActionSubset(env, settings.action_subset) if settings.action_subset else env
