"""The ale backend: ale-py's C++ ``AtariVectorEnv`` with parcade's settings and infos.

ale-py's episodic life and reward clipping are off: the learner handles lost lives and clips rewards, and
scores must be raw points of complete episodes.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from parcade.atari.games import load_games, snake_case
from parcade.atari.joystick import FIRE
from parcade.envs.checks import Checked, check_memory, refuse_copy
from parcade.envs.settings import EnvSettings, described
from parcade.errors import UsageError

BYTES_PER_CONSOLE = 900_000  # measured with ale-py 0.12 and stacks of 28 KB


def check_settings(game: str, settings: EnvSettings) -> None:
    """Check that ale-py's vector env supports the settings of a game. Errors: UsageError."""
    legal_actions = load_games()[snake_case(game)].get("legal_actions", [FIRE])
    if settings.continuous_actions and FIRE not in legal_actions:
        raise UsageError(
            f"continuous_actions: ale-py's vector env waits for ever when {game} is sent a pressed button; "
            "use backend 'native'"
        )
    if settings.mode is not None or settings.difficulty is not None:
        raise UsageError(
            f"mode={settings.mode}, difficulty={settings.difficulty}: ale-py's vector env can set neither; "
            "leave both out, or use backend 'native'"
        )
    if settings.observations == "ram":
        raise UsageError(
            "observations=ram: ale-py's vector env returns only images; "
            "use backend 'native', which plays identical episodes"
        )


def check_consoles_fit(num_envs: int, settings: EnvSettings) -> None:
    """Check that the consoles fit into memory, before any is made. Errors: UsageError."""
    check_memory(num_envs, BYTES_PER_CONSOLE + 3 * math.prod(settings.stack_shape))


class AleVectorEnv(Checked, VectorEnv):
    """``num_envs`` consoles emulated by ale-py on a thread pool. ``make_vec`` documents the infos."""

    autoreset_mode = AutoresetMode.SAME_STEP
    largest_seed = 2**31 - 1
    __reduce__ = refuse_copy

    def __init__(self, game: str, num_envs: int, settings: EnvSettings, *, num_threads: int = 0) -> None:
        import ale_py
        from ale_py.vector_env import AtariVectorEnv

        check_settings(game, settings)
        check_consoles_fit(num_envs, settings)
        self.description = described(game, settings)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._env = AtariVectorEnv(
            game,
            num_envs,
            num_threads=min(num_threads, num_envs),
            max_num_frames_per_episode=settings.frame_limit,
            repeat_action_probability=settings.sticky_actions,
            full_action_space=settings.full_action_set,
            continuous=settings.continuous_actions,
            continuous_action_threshold=settings.action_threshold,
            autoreset_mode=AutoresetMode.SAME_STEP,
            img_height=settings.image_height,
            img_width=settings.image_width,
            grayscale=settings.observations != "rgb",
            stack_num=settings.frame_stack,
            frameskip=settings.frame_skip,
            maxpool=settings.max_pool,
            noop_max=settings.noop_max,
            episodic_life=False,
            life_loss_info=False,
            reward_clipping=False,
            use_fire_reset=settings.fire_reset,
        )
        self.num_envs = num_envs
        self.single_observation_space = self._env.single_observation_space
        self.single_action_space = self._env.single_action_space
        self.observation_space = self._env.observation_space
        self.action_space = self._env.action_space
        self.metadata = {"autoreset_mode": self.autoreset_mode, "render_fps": settings.steps_per_second}
        self._frame_number = np.zeros(num_envs, np.int64)
        self._process = os.getpid()

    def check_open(self, what: str) -> None:
        """Check that the environment is open, in the process that made it. Errors: UsageError."""
        super().check_open(what)
        if os.getpid() != self._process:
            raise UsageError(
                f"{what} in a forked process, which has none of ale-py's threads; make the environment there"
            )

    def reset(
        self, *, seed: int | np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Start a new episode in every environment.

        ``seed`` ``[n]`` int32 seeds each console; an int seeds environment i with seed + i.
        """
        seeds = self.check_reset(seed, options)
        observations, infos = self._env.reset(seed=seeds)
        self._frame_number = infos["frame_number"].astype(np.int64)
        started = {
            "lives": infos["lives"],
            "frames": np.zeros(self.num_envs, np.int64),
            "reset_frames": infos["episode_frame_number"].astype(np.int64),
        }
        return observations, started

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Step every environment; ``make_vec`` documents the results.

        Shapes: actions ``[n]`` int, or ``[n, 3]`` float if continuous.
        """
        dtype = self.single_action_space.dtype
        checked = np.ascontiguousarray(self.check_actions(actions), dtype)
        observations, rewards, terminated, truncated, raw = self._env.step(checked)
        ended = terminated | truncated
        frame_number = raw["frame_number"].astype(np.int64)
        # After a restart ale-py reports the new episode's frame numbers; exclude the frames of the restart.
        reset_frames = np.where(ended, raw["episode_frame_number"], 0).astype(np.int64)
        infos = {
            "lives": raw["lives"],
            "frames": frame_number - self._frame_number - reset_frames,
            "reset_frames": reset_frames,
        }
        self._frame_number = frame_number
        if ended.any():
            infos["final_obs"] = raw["final_obs"]
            infos["_final_obs"] = ended
        return observations, rewards, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Drop ale-py's object, whose C++ threads end with it."""
        self._env = None
