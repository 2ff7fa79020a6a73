"""Any Gymnasium environment, stepped sequentially, with the infos of the Atari backends."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from parcade.actions import actions_of
from parcade.envs.attributes import SharedAttributes
from parcade.errors import UsageError


class GymVectorEnv(SharedAttributes, VectorEnv):
    """``num_envs`` copies of a registered environment. One step counts as one frame; there are no lives."""

    autoreset_mode = AutoresetMode.SAME_STEP

    def __init__(self, game: str, num_envs: int) -> None:
        make_one = lambda: gymnasium.make(game)  # noqa: E731
        try:
            self._env = SyncVectorEnv([make_one] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        except (gymnasium.error.Error, ImportError) as error:
            raise UsageError(f"cannot create {game}: {error}") from error
        self.num_envs = num_envs
        self.single_observation_space = self._env.single_observation_space
        self.single_action_space = self._env.single_action_space
        self.observation_space = self._env.observation_space
        self.action_space = self._env.action_space
        self.metadata = {"autoreset_mode": self.autoreset_mode}
        try:
            actions_of(self.single_action_space)
        except UsageError as error:
            raise UsageError(f"{game} has {error}") from None
        if not isinstance(self.single_observation_space, Box):
            raise UsageError(
                f"{game} has observations {self.single_observation_space}; expected Box observations"
            )

    def reset(
        self, *, seed: int | np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Reset every environment. ``seed`` ``[n]`` seeds each."""
        if isinstance(seed, np.ndarray):
            seed = [int(s) for s in seed]
        observations, _ = self._env.reset(seed=seed, options=options)
        zeros = np.zeros(self.num_envs, np.int64)
        return observations, {"lives": zeros, "frames": zeros, "reset_frames": zeros}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Step every environment; ``make_vec`` documents the results."""
        observations, rewards, terminated, truncated, raw = self._env.step(actions)
        zeros = np.zeros(self.num_envs, np.int64)
        infos = {"lives": zeros, "frames": np.ones(self.num_envs, np.int64), "reset_frames": zeros}
        ended = terminated | truncated
        if ended.any():
            final = observations.copy()
            for i in np.flatnonzero(ended):
                final[i] = raw["final_obs"][i]
            infos["final_obs"] = final
            infos["_final_obs"] = ended
        return observations, rewards, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Close the wrapped environments."""
        self._env.close(**kwargs)
