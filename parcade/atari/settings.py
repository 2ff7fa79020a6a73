"""Settings of a vector of consoles, by AtariVectorEnv's names, and the words that compiled code reads."""

import math
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from . import games, joystick, preprocess
from .state import RAM_BYTES

# Words of a console vector's settings, on the CPU and on a GPU.
(
    FIRE, NOOP_MAX, FRAME_SKIP, FRAME_SKIP_TO, FRAME_LIMIT, MAX_POOL, CLIP, LIFE_LOSS, EPISODIC_LIFE,
    NUM_SETTINGS,
) = range(10)  # fmt: skip

# Settings that are integers, and the smallest value of each.
LEAST = {
    "max_num_frames_per_episode": 0, "img_height": 1, "img_width": 1, "stack_num": 1, "frameskip": 1,
    "num_starts": 1,
}  # fmt: skip
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class VectorSettings:
    """How a vector of consoles plays and what it observes. Names and defaults are those of AtariVectorEnv.

    frameskip_to: every step has a random number of frames, from `frameskip`, 2 or more, to this; None always
    has `frameskip`.
    max_num_frames_per_episode: 0 is no limit, where AtariVectorEnv ends an episode at every step.
    start_states: ``exact`` plays every start as ale-py does, so RAM carries over between episodes. ``cached``
    starts every episode from one of `num_starts` saved starts: the first episodes of seeds 0, 1, 2 ... The
    file of a recording (`recording.py`) starts every episode from one of `num_starts` of its states.
    obs_type: ``grey``; ``rgb``, with each channel pooled and resized separately; or ``ram``, the 128 bytes of
    RAM after the last frame of a step. With ``ram`` nothing is drawn; image sizes and `maxpool` are ignored.
    Errors: ValueError for invalid settings.
    """

    max_num_frames_per_episode: int = 108_000
    repeat_action_probability: float = 0.0
    full_action_space: bool = False
    continuous: bool = False
    continuous_action_threshold: float = 0.5
    obs_type: str = "grey"
    img_height: int = 84
    img_width: int = 84
    stack_num: int = 4
    frameskip: int = 4
    frameskip_to: int | None = None
    maxpool: bool = True
    noop_max: int = 30
    use_fire_reset: bool = True
    episodic_life: bool = False
    life_loss_info: bool = False
    reward_clipping: bool = True
    mode: int | None = None
    difficulty: int | None = None
    start_states: str = "exact"
    num_starts: int = 30

    def __post_init__(self) -> None:
        if self.obs_type not in ("grey", "rgb", "ram"):
            raise ValueError(f"obs_type={self.obs_type!r}: expected 'grey', 'rgb' or 'ram'")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, Integral) or not least <= value <= LARGEST:
                raise ValueError(f"{name}={value!r}: expected an integer from {least} to {LARGEST}")
        most = self.frameskip_to
        if most is not None and not (isinstance(most, Integral) and 2 <= self.frameskip < most <= LARGEST):
            raise ValueError(
                f"frameskip={self.frameskip}, frameskip_to={most!r}: expected 2 or more, then more"
            )
        if not 0 <= self.continuous_action_threshold <= 1:
            raise ValueError(
                f"continuous_action_threshold={self.continuous_action_threshold!r}: expected 0 to 1"
            )

    @property
    def draws(self) -> bool:
        """Whether frames are drawn at all."""
        return self.obs_type != "ram"

    @property
    def most_frames(self) -> int:
        """Frames of the longest step."""
        return self.frameskip_to or self.frameskip

    @property
    def frame_limit(self) -> int:
        """Frames after which an episode is truncated."""
        return self.max_num_frames_per_episode or LARGEST

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of one observed frame."""
        pixels = (self.img_height, self.img_width)
        return {"grey": pixels, "rgb": (*pixels, 3), "ram": (RAM_BYTES,)}[self.obs_type]

    @property
    def frame_bytes(self) -> int:
        """Bytes of one observed frame."""
        return math.prod(self.frame_shape)

    @property
    def stack_shape(self) -> tuple[int, ...]:
        """Shape of one observation; a stack of one RAM has no axis of its own."""
        return (self.stack_num, *self.frame_shape) if self.draws or self.stack_num > 1 else self.frame_shape

    def action_set(self, row: dict) -> np.ndarray:
        """The ale-py action ids that actions index, int64, for a game's row of the table."""
        minimal = row.get("actions", range(18))
        return np.array(row.get("legal_actions", range(18)) if self.full_action_space else minimal, np.int64)

    def ids_of(self, actions: np.ndarray, action_set: np.ndarray) -> np.ndarray:
        """The consoles' actions (`joystick.py`), int64 `[k]`, of an agent's, which are indices or continuous.

        actions: int `[k]`, or float `[k, 3]`. Errors: IndexError for an index that does not exist.
        """
        if self.continuous:
            return joystick.from_polar(actions, self.continuous_action_threshold)
        return action_set.take(actions)

    def switches(self, row: dict) -> tuple[int, int]:
        """The mode and the difficulty of a game's consoles, for its row of the table. Errors: ValueError."""
        games.check_switches(row, self.mode, self.difficulty)
        return row.get("default_mode", 0) if self.mode is None else self.mode, self.difficulty or 0

    def resize_tables(self, height: int, *, pal: bool) -> tuple:
        """Level and resize tables for frames of `height` lines; ``ram`` gets tables it does not use."""
        size = (self.img_height, self.img_width) if self.draws else (height, 160)
        return preprocess.level_tables(self.obs_type, pal), *preprocess.resize_to(height, *size)

    def words(self, action_set: np.ndarray) -> np.ndarray:
        """The settings that compiled code reads, int64 `[NUM_SETTINGS]`."""
        words = np.zeros(NUM_SETTINGS, np.int64)
        words[FIRE] = self.use_fire_reset and 1 in action_set
        words[NOOP_MAX] = self.noop_max
        words[FRAME_SKIP] = self.frameskip
        words[FRAME_SKIP_TO] = self.most_frames
        words[FRAME_LIMIT] = self.frame_limit
        words[MAX_POOL] = self.maxpool
        words[CLIP] = self.reward_clipping
        words[LIFE_LOSS] = self.life_loss_info
        words[EPISODIC_LIFE] = self.episodic_life
        return words
