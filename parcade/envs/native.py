"""The native backend: parcade's own consoles with parcade's settings and infos.

With the same seeds and actions, observations, rewards and flags are byte-identical to the ale backend. In
addition, this backend can set modes and difficulties, and save and restore its state, so runs resume
bit-identical.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parcade.envs.checks import Checked, check_memory, refuse_copy
from parcade.envs.settings import EnvSettings, described
from parcade.errors import UsageError
from parcade.files.state import behind, part_of

if TYPE_CHECKING:
    from parcade.atari.recording import Recording
    from parcade.atari.vector import StepResult, VectorConsoles

TALLEST_PICTURE = 250  # lines, of PAL games


def check_switches(row: dict[str, Any], settings: EnvSettings) -> None:
    """Check that the cartridge has the mode and difficulty. Errors: UsageError."""
    from parcade.atari import games

    try:
        games.check_switches(row, settings.mode, settings.difficulty)
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_game_switches(game: str, settings: EnvSettings) -> None:
    """The same for a game by name or the path of its ROM. Errors: UsageError."""
    from parcade.atari.games import game_of_image, load_games, read_rom

    try:
        name = game_of_image(read_rom(game))
    except ValueError as error:
        raise UsageError(str(error)) from error
    check_switches(load_games()[name] if name else {}, settings)


def read_start_file(game: str, settings: EnvSettings) -> Recording:
    """Read the recording that ``start_states`` names, without replaying it. Errors: UsageError."""
    from parcade.atari.games import snake_case
    from parcade.atari.settings import VectorSettings
    from parcade.atari.starts import read_starts

    try:
        return read_starts(
            settings.start_states,
            snake_case(game),
            mode=settings.mode,
            difficulty=settings.difficulty,
            num_starts=VectorSettings.num_starts,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def console_settings(settings: EnvSettings) -> dict[str, Any]:
    """Translate settings to the names of ``parcade.atari.settings.VectorSettings``, which are ale-py's."""
    return {
        "max_num_frames_per_episode": settings.frame_limit,
        "repeat_action_probability": settings.sticky_actions,
        "full_action_space": settings.full_action_set,
        "continuous": settings.continuous_actions,
        "continuous_action_threshold": settings.action_threshold,
        "obs_type": "grey" if settings.observations == "karpathy_2016" else settings.observations,
        "img_height": settings.image_height,
        "img_width": settings.image_width,
        "stack_num": settings.frame_stack,
        "frameskip": settings.frame_skip,
        "frameskip_to": settings.frame_skip_to,
        "maxpool": settings.max_pool,
        "noop_max": settings.noop_max,
        "use_fire_reset": settings.fire_reset,
        "mode": settings.mode,
        "difficulty": settings.difficulty,
        "start_states": settings.start_states,
    }


def action_space_of(settings: EnvSettings, num_actions: int) -> Space[Any]:
    """Return the action space of an Atari game whose action set has this size."""
    if not settings.continuous_actions:
        return Discrete(num_actions)
    from parcade.atari.joystick import HIGHEST, LOWEST

    return Box(LOWEST, HIGHEST, dtype=np.float32)


def check_consoles_fit(num_envs: int, settings: EnvSettings) -> None:
    """Check that the consoles fit into memory, before any is built. Errors: UsageError."""
    from parcade.atari.state import LINE_WORDS, bytes_per_console

    # Live and final stacks, and up to three copies that the caller holds.
    observations = 5 * math.prod(settings.stack_shape)
    lines = 0 if settings.observations == "ram" else TALLEST_PICTURE
    captured = 3 * 8 * LINE_WORDS * lines
    each = bytes_per_console(lines) + captured + observations
    check_memory(num_envs, each)


def build_consoles(
    kind: type[VectorConsoles],
    game: str,
    num_envs: int,
    settings: EnvSettings,
    *,
    num_threads: int,
    ale_compat: bool,
    **extra: Any,
) -> Any:
    """Build a vector of consoles of the class ``kind``. Errors: UsageError."""
    check_consoles_fit(num_envs, settings)
    check_game_switches(game, settings)
    try:
        consoles = kind(
            game,
            num_envs,
            num_threads=max(1, num_threads),
            **console_settings(settings),
            episodic_life=ale_compat and settings.life_loss,
            reward_clipping=ale_compat and settings.clip_rewards,
            **extra,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    return consoles


def infos_of(result: StepResult) -> dict[str, np.ndarray]:
    """The infos of a step, as ``make_vec`` documents them."""
    infos = {"lives": result.lives, "frames": result.frames, "reset_frames": result.reset_frames}
    if result.final_observations is not None:
        infos["final_obs"] = result.final_observations
        infos["_final_obs"] = result.terminated | result.truncated
    return infos


class NativeVectorEnv(Checked, VectorEnv):
    """``num_envs`` of parcade's consoles on ``num_threads`` threads. ``make_vec`` documents the infos.

    ``ale_compat`` clips rewards and ends episodes at a lost life inside the environment, as ale-py's settings
    do. Otherwise the learner does both.
    """

    autoreset_mode = AutoresetMode.SAME_STEP
    can_rest = gives_state = resets_some = True
    __reduce__ = refuse_copy

    def __init__(
        self,
        game: str,
        num_envs: int,
        settings: EnvSettings,
        *,
        num_threads: int = 0,
        ale_compat: bool = False,
    ) -> None:
        from parcade.atari.vector import VectorConsoles

        self._consoles = build_consoles(
            VectorConsoles, game, num_envs, settings, num_threads=num_threads, ale_compat=ale_compat
        )
        self.description = described(game, settings, ale_compat=ale_compat)
        self.can_render = self._consoles.settings.draws  # with observations ``ram``, nothing is drawn
        self.num_envs = num_envs
        self.single_observation_space = Box(0, 255, settings.stack_shape, np.uint8)
        self.single_action_space = action_space_of(settings, len(self._consoles.action_set))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {
            "autoreset_mode": self.autoreset_mode,
            "render_modes": ["rgb_array"] if self.can_render else [],
            "render_fps": settings.steps_per_second,
        }

    def reset(
        self, *, seed: int | np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Start a new episode in every environment.

        ``seed`` ``[n]`` int32 seeds each console; an int seeds environment i with seed + i. With
        ``options={"reset_mask": mask}``, bool ``[n]``, the other environments continue their episodes.
        """
        mask = self.check_mask(options)
        seeds = self.check_reset(seed, None)
        observations, raw = self._consoles.reset(seeds, mask)
        started = raw["episode_frame_number"].astype(np.int64)
        infos = {
            "lives": raw["lives"],
            "frames": np.zeros(self.num_envs, np.int64),
            "reset_frames": started if mask is None else np.where(mask, started, 0),
        }
        return observations, infos

    def render(self) -> tuple[np.ndarray, ...]:
        """Return the current frame of every console in colour, uint8 ``[height, 160, 3]`` each.

        After a step that ended an episode, this is the first frame of the next one. Errors: UsageError with
        observations ``ram``.
        """
        self.check_open("render")
        try:
            return tuple(self._consoles.colour_frames())
        except ValueError as error:
            raise UsageError(str(error)) from error

    def step(
        self, actions: np.ndarray, playing: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Step every environment, or those selected by ``playing``; ``make_vec`` documents the results.

        Shapes: actions ``[n]`` int, or ``[n, 3]`` float if continuous; playing ``[n]`` bool.
        """
        actions = self.check_actions(actions, playing)
        result = self._consoles.step(actions, playing)
        return result.observations, result.rewards, result.terminated, result.truncated, infos_of(result)

    def _state_arrays(self) -> dict[str, np.ndarray]:
        consoles = self._consoles
        arrays = behind("console.", consoles.arrays)
        return {
            **arrays,
            "observations": consoles.observations,
            "captured": consoles.captured,
            "elapsed": consoles.elapsed,
            "frame_number": consoles.counted,
        }

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the complete state as arrays ``[n, ...]``: consoles, generators, frame stacks, clocks.

        ``md5`` ``[n, 16]`` is the checksum of the ROM.
        Errors: UsageError before the first reset.
        """
        self.check_started()
        md5 = np.tile(self._consoles.machine.checksum(), (self.num_envs, 1))
        with self._consoles.callers.lock:
            return {name: array.copy() for name, array in self._state_arrays().items()} | {"md5": md5}

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Restore a state from ``get_state``; return its observations ``[n, ...]``.

        Errors: UsageError if the state has another game, size, mode, difficulty or probability of sticky
        actions, or if a value is out of range.
        """
        return self.restore(self.read_state(state))

    def read_state(self, state: Any) -> dict[str, np.ndarray]:
        """Check a saved state and return its arrays for ``restore``. Errors: UsageError."""
        self.check_open("set_state")
        from parcade.atari.state import with_all_words
        from parcade.atari.state_check import check_rom

        arrays = self._state_arrays()
        if isinstance(state, dict):
            state = with_all_words(state, "console.state")
        taken = {
            name: saved.view(arrays[name].dtype) if saved.dtype.itemsize == arrays[name].itemsize else saved
            for name, saved in self.check_state(state, arrays).items()
        }

        try:
            check_rom(state, self._consoles.machine)
            self._consoles.check_saved(part_of(taken, "console."), taken["captured"], taken["elapsed"])
        except ValueError as error:
            raise UsageError(str(error)) from error
        return taken

    def restore(self, read: dict[str, np.ndarray]) -> np.ndarray:
        """Restore what ``read_state`` has returned; return the observations ``[n, ...]``."""
        with self._consoles.callers.lock:
            for name, array in self._state_arrays().items():
                array[...] = read[name]
            self._consoles.continue_streams()
            self.is_reset = True
            return self._consoles.show()

    def share_frames(self, frames: np.ndarray | None) -> None:
        """Make ``reset``, ``step`` and ``set_state`` write each environment's newest frame to ``frames``.

        This is for learners that keep the frame stacks themselves, for instance on a GPU. ``frames`` is
        C-contiguous uint8: ``[n, height, width]`` for grey, ``[n, height, width, 3]`` for rgb, ``[n, 128]``
        for ram. It can be replaced by another array before any step.

        Stacks are then not copied: ``reset``, ``step`` and ``set_state`` return the live stacks, which the
        next step overwrites. If an episode ended, ``final_obs`` holds its last stack, and ``frames`` holds
        the first frame of the next episode, whose older frames are zero. None returns to copying stacks.

        Errors: UsageError.
        """
        self.check_open("share_frames")
        try:
            self._consoles.share_frames(frames)
        except ValueError as error:
            raise UsageError(str(error)) from error

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads and free the consoles."""
        self._consoles.close()
        del self._consoles
