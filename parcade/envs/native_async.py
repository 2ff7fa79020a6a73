"""The native backend's asynchronous mode, with the interface of EnvPool: ``async_reset``, ``send``, ``recv``.

The learner computes actions for the environments that finished first, while the others still play. EnvPool is
described in Weng 2022, https://arxiv.org/abs/2206.10558.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parcade.envs.checks import Checked, as_array, checked_of_space, refuse_copy
from parcade.envs.native import action_space_of, build_consoles, infos_of
from parcade.envs.settings import EnvSettings, described
from parcade.envs.views import StepResult
from parcade.errors import UsageError


class AsyncNativeVectorEnv(Checked, VectorEnv):
    """``num_envs`` consoles on ``num_threads`` threads, of which ``recv`` returns ``batch_size``, B below.

    An environment plays the episodes that ``NativeVectorEnv`` would play with its seed and its actions.
    ``observation_space`` and ``action_space`` are those of a batch.
    """

    autoreset_mode = AutoresetMode.SAME_STEP
    to_render = "leave out batch_size"
    __reduce__ = refuse_copy

    def __init__(
        self,
        game: str,
        num_envs: int,
        settings: EnvSettings,
        *,
        batch_size: int,
        num_threads: int = 0,
        ale_compat: bool = False,
    ) -> None:
        from parcade.atari.queued import QueuedConsoles

        self._consoles = build_consoles(
            QueuedConsoles, game, num_envs, settings,
            num_threads=num_threads, ale_compat=ale_compat, batch_size=batch_size,
        )  # fmt: skip
        self.description = described(game, settings, ale_compat=ale_compat, batch_size=batch_size)
        self.num_envs = num_envs
        self.batch_size = batch_size
        self.single_observation_space = Box(0, 255, settings.stack_shape, np.uint8)
        self.single_action_space = action_space_of(settings, len(self._consoles.action_set))
        self.observation_space = batch_space(self.single_observation_space, batch_size)
        self.action_space = batch_space(self.single_action_space, batch_size)
        self.metadata = {"autoreset_mode": self.autoreset_mode}

    def async_reset(self, seed: int | np.ndarray | None = None) -> None:
        """Start a new episode in every environment and return at once; ``recv`` returns the first to finish.

        ``seed`` ``[n]`` seeds each console; an int seeds environment i with seed + i; None continues the
        random streams. Results that were not received are dropped. Errors: UsageError.
        """
        self._restart(self.check_reset(seed, None))

    def _restart(self, seeds: np.ndarray | None) -> None:
        try:
            self._consoles.restart(seeds)
        except ValueError as error:
            raise UsageError(str(error)) from error

    def send(self, actions: np.ndarray, env_id: np.ndarray) -> None:
        """Queue a step of some environments and return at once.

        Shapes: actions ``[k]`` int, or ``[k, 3]`` float if continuous; env_id ``[k]`` int.

        Environments play in the order of the calls. Errors: UsageError for an environment that has not been
        received since its last action, and for numbers out of range; no environment is then stepped.
        """
        self.check_open("send")
        ids = as_array("env_id", env_id)
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
            raise UsageError(f"env_id is {ids.dtype} {ids.shape}; expected integers [k], one per action")
        if ids.min() < 0 or ids.max() >= self.num_envs:
            outside = ids[(ids < 0) | (ids >= self.num_envs)][0]
            raise UsageError(f"env_id contains {outside}; expected 0 to {self.num_envs - 1}")
        ids = ids.astype(np.int64)
        if np.bincount(ids).max() > 1:
            raise UsageError("env_id contains an environment twice; send one action per environment")
        actions = checked_of_space(actions, len(ids), self.single_action_space)
        try:
            self._consoles.send(actions, ids)
        except ValueError as error:
            raise UsageError(str(error)) from error

    def recv(self) -> StepResult:
        """Wait for the B environments that finish first; return their results, as ``step`` does.

        Shapes: observations ``[B, ...]``, rewards, terminated and truncated ``[B]``. ``infos["env_id"]``
        ``[B]`` are the environments, first finished first. The first result of an environment after
        ``async_reset`` is its first observation, with reward 0.
        Errors: UsageError if fewer than B environments have been sent actions or started.
        """
        self.check_open("recv")
        try:
            env_id, result = self._consoles.receive()
        except ValueError as error:
            raise UsageError(str(error)) from error
        infos = {**infos_of(result), "env_id": env_id}
        return result.observations, result.rewards, result.terminated, result.truncated, infos

    def reset(
        self, *, seed: int | np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """``async_reset`` and ``recv``: return the first B observations and infos. Errors: UsageError."""
        self._restart(self.check_reset(seed, options))
        observations, *_, infos = self.recv()
        return observations, infos

    def step(self, actions: np.ndarray, env_id: np.ndarray) -> StepResult:
        """``send`` and ``recv``: the results are those of other environments than ``env_id``, in general."""
        self.send(actions, env_id)
        return self.recv()

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads after the steps that they are playing, and free the consoles."""
        self._consoles.close()
        del self._consoles
