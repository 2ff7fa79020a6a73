"""Any Gymnasium environment, stepped sequentially, with the infos of the Atari backends."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from parcade.envs.checks import Checked, check_memory
from parcade.errors import UsageError, in_short
from parcade.model.actions import actions_of

BYTES_PER_ENVIRONMENT = 2_500  # measured with CartPole-v1; most others need more


class GymVectorEnv(Checked, VectorEnv):
    """``num_envs`` copies of a registered environment. One step counts as one frame; there are no lives."""

    largest_seed = 2**63 - 1
    autoreset_mode = AutoresetMode.SAME_STEP

    def __init__(self, game: str, num_envs: int) -> None:
        check_memory(num_envs, BYTES_PER_ENVIRONMENT)
        self._game = game
        make_one = functools.partial(gymnasium.make, game)  # which can be pickled, as environments may be
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
        """Reset every environment. ``seed`` ``[n]`` seeds each; ``options`` are the environment's own."""
        if options is not None and not isinstance(options, dict):
            raise UsageError(f"options={in_short(options)}: expected a dict of the environment's own options")
        seeds = self.check_reset(seed, None)
        with self._shapes_checked("reset"):
            observations, _ = self._env.reset(seed=None if seeds is None else seeds.tolist(), options=options)
        return observations, self._infos(0)

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Step every environment; ``make_vec`` documents the results."""
        with self._shapes_checked("step"):
            observations, rewards, terminated, truncated, raw = self._env.step(self.check_actions(actions))
        infos = self._infos(1)
        ended = terminated | truncated
        if ended.any():
            final = observations.copy()
            for i in np.flatnonzero(ended):
                final[i] = raw["final_obs"][i]
            infos["final_obs"] = final
            infos["_final_obs"] = ended
        return observations, rewards, terminated, truncated, infos

    @contextlib.contextmanager
    def _shapes_checked(self, call: str) -> Iterator[None]:
        """Name an observation that does not fit its space. Errors: UsageError in place of NumPy's error."""
        try:
            yield
        except ValueError as error:
            if not str(error).startswith("Output array"):  # raised by the environment, not by concatenate
                raise
            expected = self.single_observation_space.shape
            for shape in map(np.shape, self._env._env_obs):
                if shape != expected:
                    raise UsageError(
                        f"{self._game} returned an observation of shape {shape} from {call}; "
                        f"expected {expected}, the shape of its observation_space"
                    ) from error
            raise

    def _infos(self, frames: int) -> dict[str, np.ndarray]:
        counts = {"lives": 0, "frames": frames, "reset_frames": 0}
        return {name: np.full(self.num_envs, count, np.int64) for name, count in counts.items()}

    def close_extras(self, **kwargs: Any) -> None:
        """Close the wrapped environments."""
        self._env.close(**kwargs)
