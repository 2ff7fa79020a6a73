"""The native backend on a GPU: the environments of ``native.py`` as torch tensors that stay on the device.

With the same seeds and actions, observations, rewards and flags are byte-identical to the CPU. ``step`` does
not wait for the device: it launches kernels and returns tensors on the memory that they write. The next step
overwrites them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from parcade.envs.checks import Checked, refuse_copy
from parcade.envs.mixed import MixedVectorEnv, portions_of
from parcade.envs.native import check_game_switches, console_settings
from parcade.envs.settings import EnvSettings, described
from parcade.errors import UsageError, missing_extra
from parcade.machine.devices import is_stand_in

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def make_threads() -> Any:
    """Return the threads of the current CUDA device, or of the CPU if it replaces a GPU.

    Errors: UsageError that names what is missing.
    """
    try:
        from parcade.atari.cuda import driver, engine
    except ImportError as error:
        raise missing_extra(error.name or "numba", "cuda", "device 'cuda'") from error
    if is_stand_in():
        return engine.HostThreads()
    try:
        return engine.GpuThreads()
    except driver.DeviceUnavailable as error:
        raise UsageError(str(error)) from error


def check_tensor(actions: Any, num_envs: int, device: torch.device) -> None:
    """Check type, shape and device of actions, without reading their values. Errors: UsageError."""
    if (
        isinstance(actions, Tensor)
        and actions.device.type == device.type
        and actions.shape == (num_envs,)
        and actions.dtype in INTEGERS
    ):
        return
    got = type(actions).__name__
    if isinstance(actions, Tensor):
        got = f"{actions.dtype} {tuple(actions.shape)} on {actions.device.type!r}"
    raise UsageError(f"actions are {got}; expected a torch.int64 tensor ({num_envs},) on {device.type!r}")


def check_games_fit(games: list[str], num_envs: int, settings: EnvSettings) -> None:
    """Check that consoles of several games fit into the memory of the device together. Errors: UsageError."""
    free = make_threads().free_bytes()
    if free is None:
        return
    from parcade.atari.cuda import engine, layout, vector
    from parcade.atari.engine_cpu import build_machine
    from parcade.atari.settings import VectorSettings

    how = VectorSettings(**console_settings(settings))
    sizes = [vector.size_of(how, build_machine(game).height) for game in games]

    def needed(count: int) -> int:
        portions = portions_of(count, len(games))
        return sum(layout.environment_bytes(*each) for each in zip(portions, sizes, strict=True))

    try:
        engine.check_fits(num_envs, needed, free)
    except MemoryError as error:
        raise UsageError(str(error)) from error


class CudaNativeVectorEnv(Checked, VectorEnv):
    """``num_envs`` consoles on a GPU.

    ``make_vec`` documents the infos; here all values are tensors and ``final_obs`` is always present.
    ``threads`` runs the kernels; None uses the current CUDA device.
    """

    autoreset_mode = AutoresetMode.SAME_STEP
    gives_state = True
    to_render = "use device 'cpu'"
    __reduce__ = refuse_copy

    def __init__(self, game: str, num_envs: int, settings: EnvSettings, *, threads: Any = None) -> None:
        check_game_switches(game, settings)
        threads = threads or make_threads()
        from parcade.atari.cuda.vector import DeviceConsoles

        try:
            self._consoles = DeviceConsoles(
                game, num_envs, threads, **console_settings(settings), reward_clipping=False
            )
        except (ValueError, MemoryError) as error:
            raise UsageError(str(error)) from error
        self.description = described(game, settings)
        self.num_envs = num_envs
        shape = settings.stack_shape
        self.single_observation_space = Box(0, 255, shape, np.uint8)
        self.single_action_space = Discrete(len(self._consoles.action_set))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": self.autoreset_mode}
        self.device = torch.device(threads.name)
        share = self._share
        seen, outcome = self._consoles.seen, self._consoles.outcome
        self._observations = share(seen.observations).view(num_envs, *shape)
        self._final = share(seen.final_observations).view(num_envs, *shape)
        self._actions, self._rewards = share(outcome.actions), share(outcome.rewards)
        self._terminated, self._truncated, self._over = (
            share(outcome.terminated), share(outcome.truncated), share(outcome.over),
        )  # fmt: skip
        self._counts, self._counters = share(outcome.counts), share(outcome.counters)

    def _share(self, array: Any) -> Tensor:
        return torch.as_tensor(array, device=self.device)

    def reset(
        self, *, seed: int | np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Start a new episode in every environment. Errors: UsageError.

        ``seed`` ``[n]`` int32 seeds each console; an int seeds environment i with seed + i.
        """
        seeds = self.check_reset(seed, options)
        self._consoles.reset(seeds)
        frames = torch.zeros(self.num_envs, dtype=torch.int32, device=self.device)
        return self._observations, {
            "lives": self._counters[:, 0],
            "frames": frames,
            "reset_frames": self._counters[:, 2].clone(),
        }

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Step every environment. Shapes: actions ``[n]`` int64 on the device, clamped to the valid range.

        Errors: UsageError before the first reset, after ``close``, or for actions of another type or device.
        """
        self.check_step()
        check_tensor(actions, self.num_envs, self.device)
        self._actions.copy_(actions)
        self._consoles.step()
        ended = self._over
        return (
            self._observations,
            self._rewards,
            self._terminated,
            self._truncated,
            {
                "lives": self._counters[:, 0],
                "frames": self._counts[:, 1],
                "reset_frames": self._counters[:, 2] * ended,
                "final_obs": self._final,
                "_final_obs": ended,
            },
        )

    def describe_use(self, steps_per_second: float) -> dict[str, Any]:
        """Return GPU utilisation metrics for a measured speed, in steps of single environments per second.

        See ``parcade/atari/cuda/usage.py``.
        """
        self.check_open("describe_use")
        from parcade.atari.cuda.usage import use_of

        return use_of(self._consoles, steps_per_second)

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the complete state in host memory, in the format of the CPU's ``get_state``.

        Errors: UsageError before the first reset.
        """
        self.check_started()
        state = self._consoles.get_state()
        frame_number = self._consoles.threads.fetch(self._consoles.outcome.counters)[:, 1].astype(np.int64)
        return {**state, "frame_number": frame_number}

    def set_state(self, state: dict[str, np.ndarray]) -> Tensor:
        """Restore a state from ``get_state`` of the GPU or CPU backend; return its observations ``[n, ...]``.

        Errors: UsageError if the state has another game, size, mode, difficulty or probability of sticky
        actions, or if a value is out of range.
        """
        return self.restore(self.read_state(state))

    def read_state(self, state: Any) -> Any:
        """Check a saved state and return what ``restore`` takes. Errors: UsageError."""
        self.check_open("set_state")
        try:
            return self._consoles.read_state(state)
        except ValueError as error:
            raise UsageError(str(error)) from error

    def restore(self, read: Any) -> Tensor:
        """Restore what ``read_state`` has returned; return the observations ``[n, ...]``."""
        self._consoles.restore(read)
        self.is_reset = True
        return self._observations

    def close_extras(self, **kwargs: Any) -> None:
        """Free the consoles. Tensors that ``step`` has returned stay valid, and keep their own memory."""
        for name, value in list(vars(self).items()):
            if name == "_consoles" or isinstance(value, Tensor):
                delattr(self, name)


class CudaMixedVectorEnv(MixedVectorEnv):
    """Several games in one vector environment on a GPU; all values are tensors there."""

    def __init__(self, envs: list[CudaNativeVectorEnv], games: list[str]) -> None:
        super().__init__(envs, games)
        self.device = envs[0].device

    def check_actions(self, actions: Tensor, playing: Tensor | None = None) -> Tensor:
        """Return the actions. Errors: UsageError, before any of the games has played."""
        self.check_step()
        check_tensor(actions, self.num_envs, self.device)
        return actions

    def _split(self, column: Tensor) -> list[Tensor]:
        return list(torch.tensor_split(column, self._edges.tolist()))

    def _join(self, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts)

    def _infos(self, parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
