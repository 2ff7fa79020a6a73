"""``output="torch"``: tensors that share the memory of the environment's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from parcade.envs.checks import as_array
from parcade.envs.views import EnvView, StepResult


class TorchView(EnvView):
    """Return tensors on the CPU instead of arrays, without a copy. Actions and masks may be tensors."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self.device = torch.device("cpu")

    def chosen(self, actions: Tensor) -> np.ndarray:
        return as_array("actions", actions)

    def reset(self, **kwargs: Any) -> tuple[Tensor, dict[str, Tensor]]:
        observations, infos = self._env.reset(**kwargs)
        return torch.from_numpy(observations), _tensors(infos)

    def shown(self, result: StepResult) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Tensor]]:
        *arrays, infos = result
        return (*map(torch.from_numpy, arrays), _tensors(infos))

    def restore(self, read: Any) -> Tensor:
        return torch.from_numpy(super().restore(read))


def _tensors(infos: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in infos.items()}
