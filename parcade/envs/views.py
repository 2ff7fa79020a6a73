"""Views: observations derived from the stack of grey frames, and subsets of actions."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from parcade.env_checks import checked_actions
from parcade.envs.settings import KARPATHY_SHAPE
from parcade.errors import UsageError

StepResult = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]

# Pong's two background colours as grey levels of ale-py's palette; Karpathy erased red levels 144 and 109.
PONG_BACKGROUND_GREYS = (87, 107)


def karpathy_difference(frames: np.ndarray) -> np.ndarray:
    """Compute Karpathy's observation: crop, take every other pixel, binarise, subtract the previous frame.

    The first observation of an episode is all zero: it has no previous frame (ale-py's stack holds black).

    Shapes: frames ``[n, 2, 210, 160]`` uint8, oldest first; returns ``[n, 80, 80]`` int8 in {-1, 0, 1}.
    Source: Karpathy 2016, "Deep Reinforcement Learning: Pong from Pixels".
    """
    small = frames[:, :, 35:195:2, ::2]
    drawn = small != 0
    for grey in PONG_BACKGROUND_GREYS:
        drawn &= small != grey
    drawn = drawn.view(np.int8)
    difference = drawn[:, 1] - drawn[:, 0]
    # The court is never black, so a black pixel there means that there is no previous frame.
    difference[frames[:, 0, 35, 0] == 0] = 0
    return difference


class EnvView(VectorEnv):
    """Base class of views of a vector environment; passes everything through."""

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
        """Whether ``step`` accepts a second argument, the mask of environments to step."""
        return getattr(self._env, "can_rest", False)

    @property
    def gives_state(self) -> bool:
        """Whether ``get_state`` and ``set_state`` are supported."""
        return getattr(self._env, "gives_state", False)

    @property
    def can_render(self) -> bool:
        """Whether ``render`` returns frames."""
        return getattr(self._env, "can_render", False)

    def get_state(self) -> dict[str, np.ndarray]:
        return self._env.get_state()

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        return self._env.set_state(state)

    def step(self, actions: np.ndarray, *playing: np.ndarray) -> StepResult:
        return self._env.step(actions, *playing)

    def render(self) -> tuple[np.ndarray, ...]:
        return self._env.render()

    def close_extras(self, **kwargs: Any) -> None:
        self._env.close(**kwargs)


class KarpathyView(EnvView):
    """Observe ``karpathy_difference`` of two frames, ``[n, 80, 80]`` int8."""

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
    """Restrict the agent to a subset of the game's actions: its action k is the game's ``subset[k]``."""

    def __init__(self, env: VectorEnv, subset: tuple[int, ...]) -> None:
        super().__init__(env)
        available = int(env.single_action_space.n)
        if not all(0 <= action < available for action in subset):
            raise UsageError(f"action_subset={subset}: expected actions of this game, 0 to {available - 1}")
        self._subset = np.array(subset)
        self.single_action_space = Discrete(len(subset))

    def step(self, actions: np.ndarray, *playing: np.ndarray) -> StepResult:
        actions = checked_actions(actions, self.num_envs, len(self._subset))
        return self._env.step(self._subset[actions], *playing)
