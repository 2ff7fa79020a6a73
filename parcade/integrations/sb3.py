"""Stable-Baselines3: ``make_vec(game, num_envs)`` returns its ``VecEnv`` over parcade's environments.

``PPO("CnnPolicy", make_vec("pong", 8)).learn(1_000_000)`` trains on them; docs/integrations.md has more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium import Wrapper
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv

from parcade import envs
from parcade.envs.views import EnvView, StepResult
from parcade.errors import UsageError, missing_extra

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise missing_extra("stable-baselines3", "sb3", "parcade.integrations.sb3") from error


def make_vec(
    game: str,
    num_envs: int,
    *,
    clip_rewards: bool = False,
    terminal_on_life_loss: bool = False,
    **settings: Any,
) -> VecEnv:
    """Environments of ``parcade.make_vec`` as a ``VecEnv``, with the episode infos that SB3 logs.

    Args:
        clip_rewards: the sign of rewards, as from SB3's ``AtariWrapper``; episode infos keep raw scores.
        terminal_on_life_loss: a lost life is ``done`` for the learner and the episode continues, as from
            SB3's ``AtariWrapper``; episode infos are of complete episodes.
        settings: arguments of ``parcade.make_vec``, such as ``backend``, ``preset`` or ``image_height``.

    Stacks of k frames in colour are ``[3k, height, width]``, as ``CnnPolicy`` expects them.
    Errors: UsageError, as ``parcade.make_vec``.
    """
    for name, why in (("batch_size", "steps all environments"), ("output", "takes NumPy arrays")):
        if settings.get(name):
            raise UsageError(f"{name} is not for Stable-Baselines3, which {why}; leave it out")
    if settings.get("device") == "cuda":
        raise UsageError("device 'cuda' is not for Stable-Baselines3, which takes NumPy arrays; use 'cpu'")
    if terminal_on_life_loss and settings.get("ale_compat"):
        raise UsageError(
            "ale_compat ends an episode at a lost life, terminal_on_life_loss continues it; leave one out"
        )
    env = envs.make_vec(game, num_envs, **settings)
    if ColourChannels.fits(env):
        env = ColourChannels(env)
    return ParcadeVecEnv(env, clip_rewards=clip_rewards, terminal_on_life_loss=terminal_on_life_loss)


class ColourChannels(EnvView):
    """Observe stacks of frames in colour, ``[n, k, height, width, 3]``, as ``[n, 3k, height, width]``.

    Channels are ordered as in parcade's own CNNs: the colours of the oldest frame come first.
    """

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        frames, height, width, colours = _shape_of(env)
        self._shape = (frames * colours, height, width)
        self.single_observation_space = Box(0, 255, self._shape, np.uint8)

    @staticmethod
    def fits(env: VectorEnv) -> bool:
        """Whether the observations are stacks of frames in colour."""
        shape = _shape_of(env)
        return len(shape) == 4 and shape[-1] == 3 and env.single_observation_space.dtype == np.uint8

    def merged(self, observations: np.ndarray) -> np.ndarray:
        """Merge the axes of frames and colours of ``[n, k, height, width, 3]``."""
        return observations.transpose(0, 1, 4, 2, 3).reshape(len(observations), *self._shape)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        observations, infos = self._env.reset(**kwargs)
        return self.merged(observations), infos

    def shown(self, result: StepResult) -> StepResult:
        observations, rewards, terminated, truncated, infos = result
        if "final_obs" in infos:
            infos["final_obs"] = self.merged(infos["final_obs"])
        return self.merged(observations), rewards, terminated, truncated, infos

    def restore(self, read: Any) -> np.ndarray:
        return self.merged(super().restore(read))


def _shape_of(env: VectorEnv) -> tuple[int, ...]:
    return env.single_observation_space.shape or ()


class ParcadeVecEnv(VecEnv):
    """SB3's interface over a vector environment of parcade that restarts within the step."""

    def __init__(self, env: Any, *, clip_rewards: bool = False, terminal_on_life_loss: bool = False) -> None:
        self.env = env
        self.clip_rewards = clip_rewards
        self.terminal_on_life_loss = terminal_on_life_loss
        self._lives = np.zeros(env.num_envs, np.int64)
        self._actions = np.zeros(env.num_envs, np.int64)
        self._scores = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, np.int64)
        env.render_mode = "rgb_array" if getattr(env, "can_render", False) else None  # SB3 reads it here
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self.metadata = env.metadata

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env!r})"

    def set_options(self, options: Sequence[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """Keep the options of the next ``reset``, which all environments share. Errors: UsageError."""
        if isinstance(options, Sequence):
            if any(row != options[0] for row in options):
                raise UsageError("options differ between environments, which share them; pass one dict")
            options = options[0] if options else None
        super().set_options(options)

    def reset(self) -> np.ndarray:
        """Start new episodes, from the seeds of ``seed()`` if it was called before; return ``[n, ...]``."""
        seeds = None
        if any(seed is not None for seed in self._seeds):
            largest = getattr(self.env, "largest_seed", 2**32 - 1)  # SB3 draws seeds up to 2**32 - 1
            seeds = np.array([int(seed or 0) % (largest + 1) for seed in self._seeds], np.int64)
        observations: np.ndarray
        options = self._options[0] or {}
        observations, raw = self.env.reset(seed=seeds, options=options or None)
        self._lives = np.array(raw["lives"])
        self._reset_seeds()
        self._reset_options()
        begun = options.get("reset_mask", slice(None))
        self._scores[begun] = 0
        self._lengths[begun] = 0
        self.reset_infos = [{"lives": int(lives)} for lives in self._lives]
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions ``[n]`` for ``step_wait``."""
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Play the step; return observations ``[n, ...]``, rewards and dones ``[n]``, and n dicts.

        At the end of an episode its dict has ``terminal_observation``, ``TimeLimit.truncated``, ``episode``;
        at a lost life that counts as an end, ``terminal_observation``, the observation returned.
        """
        observations, rewards, terminated, truncated, raw = self.env.step(self._actions)
        dones = terminated | truncated
        self._scores += rewards
        self._lengths += 1
        infos: list[dict[str, Any]] = [{"lives": int(lives)} for lives in raw["lives"]]
        for i in np.flatnonzero(dones):
            infos[i]["terminal_observation"] = raw["final_obs"][i]
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
            infos[i]["episode"] = {"r": float(self._scores[i]), "l": int(self._lengths[i])}
        self._scores[dones] = 0
        self._lengths[dones] = 0
        before, self._lives = self._lives, np.array(raw["lives"])
        if self.terminal_on_life_loss:
            # Some games play their last life at 0 lives; SB3 counts no end there either.
            lost = (self._lives < before) & (self._lives > 0) & ~dones
            for i in np.flatnonzero(lost):
                infos[i]["terminal_observation"] = observations[i].copy()
            dones |= lost
        shown = np.sign(rewards) if self.clip_rewards else rewards
        return observations, shown.astype(np.float32), dones, infos

    def close(self) -> None:
        """Stop the threads."""
        self.env.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return the current frames in colour."""
        return list(self.env.render())

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        """Return an attribute of each of the given environments. Errors: AttributeError."""
        if not hasattr(self.env, attr_name):
            raise AttributeError(f"{type(self.env).__name__} has no attribute {attr_name!r}")
        values = self.env.call(attr_name)
        return [values[i] for i in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        """Set an attribute of the vector environment, which all environments share. Errors: UsageError."""
        chosen = sorted(set(self._get_indices(indices)))
        if chosen != list(range(self.num_envs)):
            raise UsageError(
                f"{attr_name} for environments {chosen} of {self.num_envs}: all environments share it; "
                "leave out indices"
            )
        setattr(self.env, attr_name, value)

    def env_method(
        self, method_name: str, *args: Any, indices: int | Iterable[int] | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of the vector environment once; return the result of each given environment.

        After ``set_state``, scores and lengths of episodes count from there.
        """
        results = self.env.call(method_name, *args, **kwargs)
        if method_name == "set_state":
            self._lives[:] = self._scores[:] = self._lengths[:] = 0  # no life is lost by restoring fewer
        return [results[i] for i in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[Wrapper], indices: int | Iterable[int] | None = None
    ) -> list[bool]:
        """Say whether each environment is in a wrapper: only in SB3's ``Monitor``, whose infos these have."""
        return [issubclass(wrapper_class, Monitor) for _ in self._get_indices(indices)]
