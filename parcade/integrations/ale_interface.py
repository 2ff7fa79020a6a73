"""One console under the method names of ale-py's ``ALEInterface``, for code written for that.

Only methods that read or play a console exist: settings are arguments of ``RawAtariEnv``, and there is no
sound. A restored state continues exactly, pictures and sticky actions included; ale-py loses these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parcade.atari.arcade import Arcade
from parcade.atari.preprocess import grey_frames, rgb_frames
from parcade.atari.state import DIFFICULTY, FRAMES_ALLOWED, MODE, RAM_BYTES, STICKY_STREAM
from parcade.errors import UsageError


class AleInterface:
    """The console of an arcade with a single one.

    Args:
        arcade: the arcade.
        frame_limit: frames after which an episode is cut off; 0 never.
    """

    def __init__(self, arcade: Arcade, frame_limit: int = 0) -> None:
        self.arcade = arcade
        self.frame_limit = frame_limit
        arcade.arrays["state"][:, FRAMES_ALLOWED] = frame_limit
        self._action = np.zeros(1, np.int64)
        self._pal = arcade.machine.pal

    # --- playing --------------------------------------------------------------------------------------------

    def act(self, action: int, paddle_strength: float = 1.0) -> int:
        """Play one frame with an action id, 0 to 17; return the reward. An episode that is over rests.

        paddle_strength: how far it turns a paddle, as a part of a full step; unlike in ale-py, limited to 1.
        """
        self._action[0] = action
        strengths = None if paddle_strength == 1.0 else paddle_strength
        return int(self.arcade.act(self._action, strengths=strengths)[0])

    def load(self, seed: int) -> None:
        """Do as ``loadROM`` after setting ``random_seed``: power on, in the default mode, and reset."""
        powered, state = self.arcade.machine.powered["state"], self.arcade.arrays["state"]
        powered[:, FRAMES_ALLOWED] = self.frame_limit
        state[:, (MODE, DIFFICULTY)] = powered[:, (MODE, DIFFICULTY)]
        self.arcade.load(np.ones(1, bool), np.array([seed]))

    def reset_game(self) -> None:
        """Start an episode."""
        self.arcade.reset()

    def game_over(self, *, with_truncation: bool = True) -> bool:
        """Whether the episode is over: the game's end, or with truncation also the limit of frames."""
        return bool(self.arcade.game_over[0]) or (with_truncation and self.game_truncated())

    def game_truncated(self) -> bool:
        """Whether the episode has reached the limit of frames."""
        return 0 < self.frame_limit <= self.getEpisodeFrameNumber()

    def lives(self) -> int:
        """Lives left."""
        return int(self.arcade.lives[0])

    def getFrameNumber(self) -> int:
        """Frames since the ROM was loaded."""
        return int(self.arcade.frame_number[0])

    def getEpisodeFrameNumber(self) -> int:
        """Frames since the last reset."""
        return int(self.arcade.episode_frame_number[0])

    # --- actions, modes, difficulties -----------------------------------------------------------------------

    def getMinimalActionSet(self) -> list[int]:
        """Ids of the actions that the game uses."""
        return self.arcade.actions

    def getLegalActionSet(self) -> list[int]:
        """Ids of all actions that the game allows."""
        return list(self.arcade.machine.row.get("legal_actions", range(18)))

    def getAvailableModes(self) -> list[int]:
        """Modes of the game."""
        return self.arcade.modes

    def getAvailableDifficulties(self) -> list[int]:
        """Difficulties of the game."""
        return self.arcade.difficulties

    def setMode(self, mode: int) -> None:
        """Play this mode from the next reset on. Errors: UsageError."""
        try:
            self.arcade.mode = mode
        except ValueError as error:
            raise UsageError(str(error)) from None

    def setDifficulty(self, difficulty: int) -> None:
        """Play this difficulty from the next frame on. Errors: UsageError."""
        try:
            self.arcade.difficulty = difficulty
        except ValueError as error:
            raise UsageError(str(error)) from None

    # --- what the console shows -----------------------------------------------------------------------------

    def getScreenDims(self) -> tuple[int, int]:
        """Height and width of the screen."""
        return self.arcade.height, 160

    def getScreen(self, out: np.ndarray | None = None) -> np.ndarray:
        """Return palette indices, uint8 ``[height, 160]``, also in ``out`` if given."""
        return _delivered(self.arcade.screen[0], out)

    def getScreenGrayscale(self, out: np.ndarray | None = None) -> np.ndarray:
        """Return the grey frame, uint8 ``[height, 160]``, also in ``out`` if given."""
        return _delivered(grey_frames(self.arcade.screen, self._pal)[0], out)

    def getScreenRGB(self, out: np.ndarray | None = None) -> np.ndarray:
        """Return the frame in colour, uint8 ``[height, 160, 3]``, also in ``out`` if given."""
        return _delivered(rgb_frames(self.arcade.screen, self._pal)[0], out)

    def getRAM(self, out: np.ndarray | None = None) -> np.ndarray:
        """Return the RAM, uint8 ``[128]``, also in ``out`` if given."""
        return _delivered(self.arcade.ram[0].copy(), out)

    def getRAMSize(self) -> int:
        """Bytes of RAM."""
        return RAM_BYTES

    def setRAM(self, address: int, value: int) -> None:
        """Write a byte of RAM."""
        self.arcade.ram[0, address] = value

    # --- states ---------------------------------------------------------------------------------------------

    def cloneState(self, *, include_rng: bool = False) -> dict[str, Any]:
        """Return the console's state; with ``include_rng``, sticky actions repeat at the same frames, too."""
        saved = self.arcade.get_state()
        saved["state"][:, FRAMES_ALLOWED] = 0  # a setting of the environment, and not of the console
        return {**saved, "include_rng": include_rng}

    def restoreState(self, state: dict[str, Any]) -> None:
        """Continue from a state of ``cloneState``. Errors: ValueError for another ROM or version."""
        if not isinstance(state, Mapping):
            raise ValueError(f"state={state!r:.60}: expected the dict of cloneState")
        saved = dict(state)
        if not saved.pop("include_rng", True) and "random" in saved:
            saved["random"] = saved["random"].copy()
            saved["random"][:, STICKY_STREAM] = self.arcade.arrays["random"][:, STICKY_STREAM]
        self.arcade.set_state(saved)
        self.arcade.arrays["state"][:, FRAMES_ALLOWED] = self.frame_limit

    def cloneSystemState(self) -> dict[str, Any]:
        """``cloneState`` with the random numbers."""
        return self.cloneState(include_rng=True)

    def restoreSystemState(self, state: dict[str, Any]) -> None:
        """``restoreState``, for a state with the random numbers."""
        self.restoreState(state)


def _delivered(values: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """Return the values, in ``out`` if given."""
    if out is None:
        return values
    np.copyto(out, values, casting="no")
    return out
