"""Any Gymnasium environment, stepped sequentially, with the infos of the Atari backends."""

from __future__ import annotations

import functools
import math
import re
import traceback
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from parcade.envs.checks import Checked, check_memory
from parcade.errors import UsageError, in_short
from parcade.model.actions import actions_of

BYTES_PER_ENVIRONMENT = 2_500  # measured with CartPole-v1; most others need more


# Types of rewards and ends that need no further look, apart from infinity.
NUMBERS = frozenset({float, int, np.float64, np.float32})
BOOLS = frozenset({bool, np.bool_})


class CheckedEnv(gymnasium.Wrapper):
    """Checks what an environment returns before it becomes an entry of an array, which casts it silently.

    Errors: UsageError with the environment's name.
    """

    def __init__(self, env: gymnasium.Env, game: str) -> None:
        super().__init__(env)
        self._game = game
        self._shape, self._dtype = env.observation_space.shape, env.observation_space.dtype

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        try:
            observation, info = self.env.reset(seed=seed, options=options)
        except (AssertionError, TypeError, ValueError) as error:
            self._refuse_other_interface("reset", error)
            raise
        self._check_observation("reset", observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environment."""
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except (AssertionError, TypeError, ValueError) as error:
            self._refuse_other_interface("step", error)
            raise
        # Usual values need no call: calls would add 5 % to a step of CartPole, and 40 % with NumPy's scalars.
        if (
            type(observation) is not np.ndarray
            or observation.dtype is not self._dtype
            or observation.shape != self._shape
        ):
            self._check_observation("step", observation)
        if type(reward) not in NUMBERS or not -math.inf < reward < math.inf:
            self._check_number("reward", reward, "a finite number", most_axes=0)
        if type(terminated) not in BOOLS:
            self._check_number("terminated", terminated, "True or False")
        if type(truncated) not in BOOLS:
            self._check_number("truncated", truncated, "True or False")
        return observation, reward, terminated, truncated, info

    def _check_observation(self, call: str, observation: Any) -> None:
        expected = f"expected {self._shape}, the shape of its observation_space"
        try:
            given = np.asarray(observation)
        except ValueError as error:  # such as lists of several lengths
            raise UsageError(
                f"{self._game} returned an observation from {call} that is no array ({error}); {expected}"
            ) from error
        if given.shape != self._shape:
            got = "None" if observation is None else f"an observation of shape {given.shape}"
            raise UsageError(f"{self._game} returned {got} from {call}; {expected}")
        if given.dtype != self._dtype and not np.can_cast(given.dtype, self._dtype, "same_kind"):
            raise UsageError(
                f"{self._game} returned an observation of {given.dtype} from {call}; "
                f"expected {self._dtype}, as its observation_space"
            )

    def _check_number(self, name: str, value: Any, expected: str, most_axes: int = 1) -> None:
        number = np.asarray(value)
        is_one = number.size == 1 and number.ndim <= most_axes
        if not is_one or number.dtype.kind not in "biuf" or not np.isfinite(number).all():
            raise UsageError(
                f"{self._game} returned {name} {in_short(repr(value))} from step; expected {expected}"
            )

    def _refuse_other_interface(self, call: str, error: Exception) -> None:
        """Refuse the environment if Gymnasium raised the error, and no code of the environment's own."""
        modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
        ours = re.compile(rf"{re.escape(__name__)}$|gymnasium\.(?!envs\.)")  # its envs are environments, too
        if all(map(ours.match, modules)):
            reason = str(error).strip().partition("\n")[0]
            raise UsageError(
                f"{self._game} does not follow the interface of gymnasium.Env.{call} ({reason})"
            ) from error


def _make_one(game: str) -> CheckedEnv:
    return CheckedEnv(gymnasium.make(game), game)


class GymVectorEnv(Checked, VectorEnv):
    """``num_envs`` copies of a registered environment. One step counts as one frame; there are no lives."""

    largest_seed = 2**63 - 1
    autoreset_mode = AutoresetMode.SAME_STEP

    def __init__(self, game: str, num_envs: int) -> None:
        check_memory(num_envs, BYTES_PER_ENVIRONMENT)
        self.description = (game,)
        make_one = functools.partial(_make_one, game)  # which can be pickled, as environments may be
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
                f"{game} has observations {self.single_observation_space}; expected Box observations; "
                "wrap the environment, e.g. in gymnasium.wrappers.FlattenObservation"
            )

    def reset(
        self, *, seed: int | np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Reset every environment. ``seed`` ``[n]`` seeds each; ``options`` are the environment's own."""
        if options is not None and not isinstance(options, dict):
            raise UsageError(f"options={in_short(options)}: expected a dict of the environment's own options")
        seeds = self.check_reset(seed, None)
        observations, _ = self._env.reset(seed=None if seeds is None else seeds.tolist(), options=options)
        return observations, self._infos(0)

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Step every environment; ``make_vec`` documents the results."""
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

    def _infos(self, frames: int) -> dict[str, np.ndarray]:
        counts = {"lives": 0, "frames": frames, "reset_frames": 0}
        return {name: np.full(self.num_envs, count, np.int64) for name, count in counts.items()}

    def close_extras(self, **kwargs: Any) -> None:
        """Close the wrapped environments."""
        self._env.close(**kwargs)
