"""Observations other than the grey stack, made from it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from parcade.envs.settings import KARPATHY_SHAPE
from parcade.errors import UsageError

StepResult = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]

# The two background colours of Pong, as grey values of ale-py's palette: Karpathy erased them as 144 and 109 in red.
PONG_BACKGROUND_GREYS = (87, 107)


def karpathy_difference(frames: np.ndarray) -> np.ndarray:
    """Karpathy's observation: crop, take every other pixel, binarise, subtract the frame before.

    A game's first observation has no frame before it (ale-py's stack holds a black one) and is all zero.

    Shapes: frames ``[n, 2, 210, 160]`` uint8, oldest first; returns ``[n, 80, 80]`` int8 in {-1, 0, 1}.
    Source: Karpathy 2016, "Deep Reinforcement Learning: Pong from Pixels".
    """
    small = frames[:, :, 35:195:2, ::2]
    drawn = small != 0
    for grey in PONG_BACKGROUND_GREYS:
        drawn &= small != grey
    drawn = drawn.view(np.int8)
    difference = drawn[:, 1] - drawn[:, 0]
    # The court is never black, so a black pixel there means a frame that was never drawn.
    difference[frames[:, 0, 35, 0] == 0] = 0
    return difference


class EnvView(VectorEnv):
    """A vector env seen differently; here everything passes through."""

    def __init__(self, env: VectorEnv) -> None:
        self._env = env
        self.num_envs = env.num_envs
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.metadata = env.metadata

    @property
    def observation_space(self) -> Space:
        return batch_space(self.single_observation_space, self.num_envs)

    @property
    def action_space(self) -> Space:
        return batch_space(self.single_action_space, self.num_envs)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return self._env.reset(**kwargs)

    @property
    def can_rest(self) -> bool:
        """Whether ``step`` takes a second argument, which games play."""
        return getattr(self._env, "can_rest", False)

    @property
    def gives_state(self) -> bool:
        """Whether ``get_state`` and ``set_state`` can be used."""
        return getattr(self._env, "gives_state", False)

    def get_state(self) -> dict[str, np.ndarray]:
        return self._env.get_state()

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        return self._env.set_state(state)

    def step(self, actions: np.ndarray, *playing: np.ndarray) -> StepResult:
        return self._env.step(actions, *playing)

    def close_extras(self, **kwargs: Any) -> None:
        self._env.close(**kwargs)


class KarpathyView(EnvView):
    """Observations become ``karpathy_difference`` of two frames, ``[n, 80, 80]`` int8."""

    difference = staticmethod(karpathy_difference)

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self.single_observation_space = Box(-1, 1, KARPATHY_SHAPE, np.int8)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        observations, infos = self._env.reset(**kwargs)
        return self.difference(observations), infos

    def step(self, actions: np.ndarray, *playing: np.ndarray) -> StepResult:
        observations, rewards, terminated, truncated, infos = self._env.step(actions, *playing)
        if "final_obs" in infos:
            infos["final_obs"] = self.difference(infos["final_obs"])
        return self.difference(observations), rewards, terminated, truncated, infos

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        return self.difference(self._env.set_state(state))


class ActionSubset(EnvView):
    """The agent chooses among some of the game's actions: its action k is the env's ``subset[k]``."""

    def __init__(self, env: VectorEnv, subset: tuple[int, ...]) -> None:
        super().__init__(env)
        available = int(env.single_action_space.n)
        if not all(0 <= action < available for action in subset):
            raise UsageError(f"action_subset={subset}: this game's actions are 0 to {available - 1}")
        self._subset = np.array(subset)
        self.single_action_space = Discrete(len(subset))

    def step(self, actions: np.ndarray, *playing: np.ndarray) -> StepResult:
        return self._env.step(self._subset[actions], *playing)
