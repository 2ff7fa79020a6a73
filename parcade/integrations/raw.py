"""Raw Atari games in Gymnasium: every frame in colour, as ale-py's own environments, for other wrappers.

``gymnasium.make("parcade/PongNoFrameskip-v4")`` equals ale-py's ``PongNoFrameskip-v4`` in every frame, reward
and random number. ``AtariPreprocessing`` of Gymnasium, ``AtariWrapper`` of Stable-Baselines3, CleanRL's
wrappers and programs that ask ``env.unwrapped.ale`` work on it. Trainings are faster on
``parcade/Pong-v0`` and ``make_vec``, whose preprocessing is compiled.
"""

from __future__ import annotations

from numbers import Real
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import seeding

from parcade.atari.arcade import Arcade
from parcade.atari.held_keys import ACTION_NAMES, keys_to_action
from parcade.atari.joystick import ACTION_ID, HIGHEST, LOWEST, from_polar
from parcade.envs.checks import checked_action, checked_numbers
from parcade.envs.settings import FRAMES_PER_SECOND
from parcade.errors import UsageError
from parcade.integrations.ale_interface import AleInterface
from parcade.integrations.window import RENDER_MODES, Window, check_render_mode
from parcade.ranges import whole

OBSERVATIONS = ("rgb", "grayscale", "ram")
NO_FRAMESKIP = {"frameskip": 1, "repeat_action_probability": 0.0, "max_num_frames_per_episode": 108_000}
"""Arguments of the ids ``parcade/PongNoFrameskip-v4``."""


class RawAtariEnv(gymnasium.Env):
    """One console with the arguments, infos and random numbers of ale-py's ``AtariEnv``.

    Args:
        game: name of a game, or the path of a ROM.
        mode, difficulty: of the cartridge; None is the default.
        obs_type: ``rgb`` ``[height, 160, 3]``, ``grayscale`` ``[height, 160]`` or ``ram`` ``[128]``, uint8.
        frameskip: frames per step, or ``(low, high)``: a random number from low to high - 1.
        repeat_action_probability: of repeating the previous action, in every frame.
        full_action_space: use all of the game's actions.
        continuous: actions are float32 ``[3]``: the stick's distance from its middle, 0 to 1, its angle, and
            the button, 0 to 1; see ``joystick.from_polar``.
        continuous_action_threshold: a direction, or the button, counts where it is above this.
        max_num_frames_per_episode: truncate an episode after this many frames; None never.
        render_mode: ``rgb_array``: ``render()`` returns the frame in colour; ``human``: a window shows it.

    Infos: ``lives``, ``episode_frame_number``, ``frame_number``; after a reset with a seed ``seeds``. There
    is no sound. Errors: UsageError.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": FRAMES_PER_SECOND}  # noqa: RUF012

    def __init__(
        self,
        game: str | Path,
        *,
        mode: int | None = None,
        difficulty: int | None = None,
        obs_type: str = "rgb",
        frameskip: int | tuple[int, int] = 4,
        repeat_action_probability: float = 0.25,
        full_action_space: bool = False,
        continuous: bool = False,
        continuous_action_threshold: float = 0.5,
        max_num_frames_per_episode: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if obs_type not in OBSERVATIONS:
            raise UsageError(f"obs_type={obs_type!r}: expected {', '.join(OBSERVATIONS)}")
        check_render_mode(render_mode)
        _check_probability("repeat_action_probability", repeat_action_probability)
        _check_probability("continuous_action_threshold", continuous_action_threshold)
        limit = max_num_frames_per_episode or 0
        self._frameskip = checked_frameskip(frameskip)  # Gymnasium's AtariPreprocessing reads it
        whole("max_num_frames_per_episode", limit, 0)
        try:
            arcade = Arcade(game, 1, repeat_action_probability=repeat_action_probability)
        except (ValueError, OSError) as error:
            raise UsageError(str(error)) from None
        self.ale = AleInterface(arcade, limit)
        self._mode = int(arcade.mode[0]) if mode is None else mode
        self._difficulty = difficulty
        self._obs_type = obs_type
        self._set_variant()
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": FRAMES_PER_SECOND / _mean_frames(self._frameskip)}
        self._action_set = self.ale.getLegalActionSet() if full_action_space or continuous else arcade.actions
        self._threshold = continuous_action_threshold if continuous else None
        self.action_space = Box(LOWEST, HIGHEST, dtype=np.float32)
        if not continuous:
            self.action_space = Discrete(len(self._action_set))
        shapes = {"rgb": (arcade.height, 160, 3), "grayscale": (arcade.height, 160), "ram": (128,)}
        self.observation_space = Box(0, 255, shapes[obs_type], np.uint8)
        self._is_seeded = False
        self._window: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; return its first observation and infos. ``options`` are not used.

        A seed reloads the ROM; without one, the random streams continue. Errors: UsageError.
        """
        seeds = self._seed(seed) if seed is not None or not self._is_seeded else None
        self.ale.reset_game()
        self._show()
        infos = self._infos()
        return self._observation(), infos if seeds is None else {**infos, "seeds": seeds}

    def step(self, action: int | np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Play one step; return observation, raw reward in points, terminated, truncated and infos.

        ``action`` is an integer, also as an array or tensor without axes; if continuous, float ``[3]``.
        Errors: UsageError for another one.
        """
        action_id, strength = self._chosen(action)
        skip = self._frameskip
        frames = skip if isinstance(skip, int) else int(self.np_random.integers(*skip))
        reward = sum(self.ale.act(action_id, strength) for _ in range(frames))
        self._show()
        over = self.ale.game_over(with_truncation=False)
        return self._observation(), float(reward), over, self.ale.game_truncated(), self._infos()

    def render(self) -> np.ndarray | None:
        """Return the current frame, uint8 ``[height, 160, 3]``, with render mode ``rgb_array``; else None."""
        return self.ale.getScreenRGB() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Close the window. As with ale-py, which has nothing else to close either, play can go on."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def get_action_meanings(self) -> list[str]:
        """Return ale-py's name of each action, such as ``NOOP`` or ``UPRIGHTFIRE``."""
        return [ACTION_NAMES[each] for each in self._action_set]

    def get_keys_to_action(self) -> dict[tuple[str, ...], int]:
        """Return the actions by the keys w, s, a, d, space and e, for ``gymnasium.utils.play``.

        Errors: AttributeError with continuous actions, as in ale-py.
        """
        if self._threshold is not None:
            raise AttributeError("continuous actions have no keys; make the environment without continuous")
        return keys_to_action(self._action_set)

    def clone_state(self, *, include_rng: bool = False) -> dict[str, Any]:
        """Return the console's state; see ``AleInterface.cloneState``."""
        return self.ale.cloneState(include_rng=include_rng)

    def restore_state(self, state: dict[str, Any]) -> None:
        """Continue from a state of ``clone_state``. Errors: ValueError for another game or version."""
        self.ale.restoreState(state)

    def _set_variant(self) -> None:
        self.ale.setMode(self._mode)
        if self._difficulty is not None:
            self.ale.setDifficulty(self._difficulty)

    def _seed(self, seed: int | None) -> tuple[np.uint32, np.uint32]:
        """Seed as ale-py's environment does: the first word for this object, the second for the console."""
        if seed is not None:
            whole("seed", seed, 0)
        numpy_seed, console_seed = np.random.SeedSequence(seed).generate_state(2)
        self._np_random, self._np_random_seed = seeding.np_random(int(numpy_seed))
        self.ale.load(int(console_seed))
        self._set_variant()
        self._is_seeded = True
        return numpy_seed, console_seed

    def _chosen(self, action: Any) -> tuple[int, float]:
        """Return the id of an action, and how far it turns a paddle. Errors: UsageError."""
        if self._threshold is None:
            return self._action_set[checked_action("action", action, len(self._action_set))], 1.0
        given = checked_numbers(action, (3,))
        (packed,) = from_polar(given[None], self._threshold)
        return int(packed & ACTION_ID), float(np.clip(given[0], 0, 1))

    def _observation(self) -> np.ndarray:
        look = {
            "rgb": self.ale.getScreenRGB,
            "grayscale": self.ale.getScreenGrayscale,
            "ram": self.ale.getRAM,
        }
        return look[self._obs_type]()

    def _infos(self) -> dict[str, Any]:
        return {
            "lives": self.ale.lives(),
            "episode_frame_number": self.ale.getEpisodeFrameNumber(),
            "frame_number": self.ale.getFrameNumber(),
        }

    def _show(self) -> None:
        if self.render_mode == "human":
            self._window = self._window or Window(self.spec.id if self.spec else "parcade")
            self._window.show(self.ale.getScreenRGB(), self.metadata["render_fps"])


def _check_probability(name: str, value: Any) -> None:
    if not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise UsageError(f"{name}={value!r} is not in [0, 1]; use e.g. 0.25")


def _mean_frames(frameskip: int | tuple[int, int]) -> float:
    """Return the mean number of frames per step."""
    return frameskip if isinstance(frameskip, int) else (frameskip[0] + frameskip[1] - 1) / 2


def checked_frameskip(frameskip: int | tuple[int, int]) -> int | tuple[int, int]:
    """Return frames per step, or the bounds of a random number of them. Errors: UsageError."""
    if not isinstance(frameskip, tuple | list):
        return whole("frameskip", frameskip, 1)
    if len(frameskip) != 2:
        raise UsageError(f"frameskip={frameskip}: expected an integer, or (low, high)")
    low, high = whole("frameskip's low", frameskip[0], 1), whole("frameskip's high", frameskip[1], 2)
    if low >= high:
        raise UsageError(f"frameskip={frameskip}: expected low < high; the most frames are high - 1")
    return low, high
