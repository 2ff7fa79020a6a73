"""Tiny built-in tasks: vector environments in a few lines of numpy, which an agent learns in seconds.

They follow the same conventions as the Atari backends (SAME_STEP autoreset, the infos of ``make_vec``) and
save and restore their state exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parcade.envs.checks import Checked, check_memory
from parcade.errors import UsageError
from parcade.random import uniforms


class TinyVectorEnv(Checked, VectorEnv):
    """Base class of the built-in tasks: step counters, random numbers and autoreset.

    A task sets ``observation_shape`` and ``single_action_space`` and implements ``_start``, ``_advance`` and
    ``_observe``.
    State: ``key`` ``[n]`` uint64 (the seed), ``episode`` ``[n]`` int64, ``clock`` ``[n]`` int64 (steps since
    the start of the episode), and the task's own arrays, named in ``state_names``.
    """

    observation_shape: tuple[int, ...]
    single_action_space: Space
    state_names: tuple[str, ...] = ()
    autoreset_mode = AutoresetMode.SAME_STEP
    can_rest = True
    gives_state = True

    def __init__(self, num_envs: int) -> None:
        check_memory(num_envs, 10 * int(np.prod(self.observation_shape)) + 100)
        self.num_envs = num_envs
        self.single_observation_space = Box(0, 255, self.observation_shape, np.uint8)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": self.autoreset_mode}
        self.key = np.arange(num_envs, dtype=np.uint64)
        self.episode = np.zeros(num_envs, np.int64)
        self.clock = np.zeros(num_envs, np.int64)
        for name in self.state_names:
            setattr(self, name, np.zeros(num_envs, np.int64))

    def _start(self, which: np.ndarray, u: np.ndarray) -> None:
        """Start an episode in the envs of mask ``which`` ``[n]``; ``u`` ``[n]`` are uniform numbers."""
        raise NotImplementedError

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Advance all envs by one step; return rewards, terminated, truncated ``[n]``."""
        raise NotImplementedError

    def _observe(self) -> np.ndarray:
        """Return the observations of all envs, ``[n, *observation_shape]`` uint8."""
        raise NotImplementedError

    def _begin(self, which: np.ndarray) -> None:
        self.episode[which] += 1
        self.clock[which] = 0
        self._start(which, uniforms(self.key, self.episode, 1)[:, 0])

    def reset(
        self, *, seed: int | np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Start an episode in every env, or where ``options["reset_mask"]``, bool ``[n]``, is true.

        ``seed`` is ``[n]``, or an int, which seeds env i with seed + i.
        """
        mask = self.check_mask(options)
        seeds = self.check_reset(seed, None)
        which = np.ones(self.num_envs, bool) if mask is None else mask
        if seeds is not None:
            self.key[which] = seeds.astype(np.uint64)[which]
            self.episode[which] = 0
        self._begin(which)
        return self._observe(), self._infos(0)

    def step(
        self, actions: np.ndarray, playing: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Advance every env, or those of mask ``playing`` ``[n]``, by one step.

        Finished episodes restart in the same step. An env that is not playing keeps its state.
        """
        actions = self.check_actions(actions, playing)
        playing = np.ones(self.num_envs, bool) if playing is None else np.asarray(playing)
        before = self.get_state()
        self.clock += 1
        rewards, terminated, truncated = self._advance(actions)
        for name, array in before.items():
            getattr(self, name)[~playing] = array[~playing]
        rewards, terminated, truncated = rewards * playing, terminated & playing, truncated & playing
        infos = self._infos(playing)
        ended = terminated | truncated
        if ended.any():
            infos["final_obs"] = self._observe()
            infos["_final_obs"] = ended
            self._begin(ended)
        return self._observe(), rewards, terminated, truncated, infos

    def _infos(self, frames: np.ndarray | int) -> dict[str, np.ndarray]:
        counts = {"lives": 0, "frames": frames, "reset_frames": 0}
        return {name: np.zeros(self.num_envs, np.int64) + count for name, count in counts.items()}

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the complete state, as arrays ``[n]``."""
        return {name: getattr(self, name).copy() for name in ("key", "episode", "clock", *self.state_names)}

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Restore a state from ``get_state``; return its observations ``[n, ...]``. Errors: UsageError."""
        before = self.get_state()
        for name, saved in self.check_state(state, before).items():
            getattr(self, name)[...] = saved
        try:
            observations = self._observe()
        except IndexError:
            for name, array in before.items():
                getattr(self, name)[...] = array
            raise UsageError("saved state: positions lie outside the board; was it changed?") from None
        self.is_reset = True
        return observations


class TinyCatch(TinyVectorEnv):
    """Move the paddle (left, stay, right) under a ball that falls down a 6x5 board.

    The score is -1 or 1; a random policy averages -0.6.
    """

    observation_shape = (1, 6, 5)
    single_action_space = Discrete(3)
    state_names = ("ball", "paddle")

    def _start(self, which: np.ndarray, u: np.ndarray) -> None:
        self.ball[which] = (u * 5).astype(np.int64)[which]
        self.paddle[which] = 2

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.paddle = np.clip(self.paddle + actions - 1, 0, 4)
        terminated = self.clock >= 5
        rewards = np.where(terminated, np.where(self.ball == self.paddle, 1.0, -1.0), 0.0)
        return rewards, terminated, np.zeros(self.num_envs, bool)

    def _observe(self) -> np.ndarray:
        board = np.zeros((self.num_envs, 1, 6, 5), np.uint8)
        envs = np.arange(self.num_envs)
        board[envs, 0, 5, self.paddle] = 128
        board[envs, 0, np.minimum(self.clock, 5), self.ball] = 255
        return board


class TinyMemory(TinyVectorEnv):
    """Name a cue that was shown once, three blank steps earlier.

    The score is -1 or 1; a policy without memory averages 0 at best.
    """

    observation_shape = (4,)
    single_action_space = Discrete(2)
    state_names = ("cue",)

    def _start(self, which: np.ndarray, u: np.ndarray) -> None:
        self.cue[which] = (u * 2).astype(np.int64)[which]

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        terminated = self.clock >= 4
        rewards = np.where(terminated, np.where(actions == self.cue, 1.0, -1.0), 0.0)
        return rewards, terminated, np.zeros(self.num_envs, bool)

    def _observe(self) -> np.ndarray:
        shown = np.zeros((self.num_envs, 4), np.uint8)
        envs = np.arange(self.num_envs)
        at_start = self.clock == 0
        shown[envs[at_start], self.cue[at_start]] = 255
        shown[self.clock == 3, 2] = 255
        shown[:, 3] = 255
        return shown


class TinyAim(TinyVectorEnv):
    """Point at a target with two real numbers: one of five cues c in -1, -0.5, ..., 1 asks for (c, -c).

    A step's reward is 1 minus the distance, at best 1. An episode has four steps. Random actions within the
    space average a score of -0.2, the point (0, 0) averages 0.6.
    """

    observation_shape = (5,)
    single_action_space = Box(-1.0, 1.0, (2,), np.float32)
    state_names = ("cue",)

    def _start(self, which: np.ndarray, u: np.ndarray) -> None:
        self.cue[which] = (u * 5).astype(np.int64)[which]

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        target = np.stack([self.cue / 2 - 1, 1 - self.cue / 2], axis=1)
        rewards = 1 - np.hypot(*(actions.astype(np.float64) - target).T)
        self.cue = (self.cue + 2) % 5
        return rewards, self.clock >= 4, np.zeros(self.num_envs, bool)

    def _observe(self) -> np.ndarray:
        shown = np.zeros((self.num_envs, 5), np.uint8)
        shown[np.arange(self.num_envs), self.cue] = 255
        return shown


class TinyForever(TinyVectorEnv):
    """Reward 1 per step, truncated after ten steps: V is 1 / (1 - gamma) with correct truncation, not 10."""

    observation_shape = (2,)
    single_action_space = Discrete(2)

    def _start(self, which: np.ndarray, u: np.ndarray) -> None:
        pass

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.ones(self.num_envs), np.zeros(self.num_envs, bool), self.clock >= 10

    def _observe(self) -> np.ndarray:
        return np.full((self.num_envs, 2), 255, np.uint8)


TINY_TASKS: dict[str, type[TinyVectorEnv]] = {
    "tiny_catch": TinyCatch,
    "tiny_memory": TinyMemory,
    "tiny_forever": TinyForever,
    "tiny_aim": TinyAim,
}
