"""`VectorConsoles`: consoles with preprocessing, equal byte for byte to ale-py's `AtariVectorEnv` (SAME_STEP autoreset).

Observations are uint8, oldest frame first: `[n, stack, height, width]` of grey, `[n, stack, height, width, 3]` of rgb,
`[n, stack, 128]` of ram, which is `[n, 128]` for a stack of 1. This layer knows seeds, no-op starts, frame skip and stacks,
but no gymnasium: `parcade.envs` wraps it.
"""

import copy
import math
import mmap
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import engine_cpu, preprocess, rounds
from .state import DIFFICULTY, LINE_WORDS, MODE, RAM_BYTES, allocate
from .thread_pool import MESSAGE, MESSAGE_WORDS, ThreadPool

_STACKS = slice(rounds.STACKS - MESSAGE, rounds.STACKS - MESSAGE + 1)
_RESULTS = slice(rounds.RESULTS - MESSAGE, rounds.RESULTS - MESSAGE + len(rounds.OUTCOME_TYPES))


class StepResult(NamedTuple):
    """What a step gives; all arrays are the caller's own, but for observations while frames are shared."""

    observations: np.ndarray  # uint8 [n, ...]
    rewards: np.ndarray  # int32 [n]
    terminated: np.ndarray  # bool [n]
    truncated: np.ndarray  # bool [n]
    final_observations: np.ndarray | None  # zero where no episode ended; None where none did
    lives: np.ndarray  # int32 [n]
    frame_number: np.ndarray
    episode_frame_number: np.ndarray
    frames: np.ndarray  # int64 [n], emulated by this step
    reset_frames: np.ndarray  # int64 [n], emulated by a reset inside this step


class _Lent:
    """Sets of arrays that are given away and used again when nobody holds them.

    Fresh memory costs a page fault every 4 KiB. And each call of Python's or numpy's that comes after a millisecond
    of emulation costs some microseconds, because the caches hold nothing for it.
    """

    MOST = 3  # the caller's last one, the next one, and one more for those who look back a step

    def __init__(self, arrays: list[tuple[tuple[int, ...], type]]) -> None:
        self._arrays = arrays
        self._sets: list[tuple[list[np.ndarray], np.ndarray]] = []

    def take(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Arrays that nobody else holds, their contents undefined, and their addresses int64."""
        for arrays, addresses in self._sets:
            for array in arrays:
                if sys.getrefcount(array) != _REFERENCES:
                    break
            else:
                return arrays, addresses
        arrays = [np.empty(shape, dtype) for shape, dtype in self._arrays]
        addresses = np.array([array.ctypes.data for array in arrays])
        self._sets = [*self._sets[1 - self.MOST :], (arrays, addresses)]
        return arrays, addresses


def _references_of_own(arrays: list[object]) -> int:
    for array in arrays:
        return sys.getrefcount(array)
    return 0


# Of a list and a loop, as in `_Lent.take`; every view of an array holds another one.
_REFERENCES = _references_of_own([object()])


def _fresh_zeros(shape: tuple[int, ...]) -> np.ndarray:
    """Zeros of which only those pages are ever touched that are written to. numpy would clear memory it uses again."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.zeros(shape, np.uint8)
    memory = mmap.mmap(-1, math.prod(shape), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, np.uint8).reshape(shape)


class VectorConsoles:
    """`num_envs` games with AtariVectorEnv's settings; keyword names and defaults are ale-py's.

    `start_states`: ``exact`` plays every start as ale-py does, so that RAM carries over from one episode to the next; ``cached``
    begins every episode with one of `num_starts` first episodes' starts, those of seeds 0 .. num_starts - 1.
    `obs_type`: ``grey``; ``rgb``, of which each channel is pooled and resized by itself; ``ram``, the console's 128 bytes after the last
    frame of a step, for which nothing is drawn and image sizes and `maxpool` mean nothing.
    Errors: ValueError for an unknown game or settings that make no sense.
    """

    def __init__(
        self,
        game: str | Path,
        num_envs: int,
        *,
        max_num_frames_per_episode: int = 108_000,
        repeat_action_probability: float = 0.0,
        full_action_space: bool = False,
        obs_type: str = "grey",
        img_height: int = 84,
        img_width: int = 84,
        stack_num: int = 4,
        frameskip: int = 4,
        maxpool: bool = True,
        noop_max: int = 30,
        use_fire_reset: bool = True,
        episodic_life: bool = False,
        life_loss_info: bool = False,
        reward_clipping: bool = True,
        mode: int | None = None,
        difficulty: int | None = None,
        num_threads: int = 1,
        start_states: str = "exact",
        num_starts: int = 30,
    ):
        if start_states not in ("exact", "cached"):
            raise ValueError(f"start_states={start_states!r}: expected 'exact' or 'cached'")
        if obs_type not in ("grey", "rgb", "ram"):
            raise ValueError(f"obs_type={obs_type!r}: expected 'grey', 'rgb' or 'ram'")
        if num_starts < 1:
            raise ValueError(f"num_starts={num_starts}: expected at least 1")
        self.machine = engine_cpu.build_machine(game, repeat_action_probability)
        row = self.machine.row
        self.num_envs = num_envs
        minimal = row.get("actions", list(range(18)))
        self.action_set = np.array(
            row.get("legal_actions", range(18)) if full_action_space else minimal, np.int64
        )
        self.num_threads = num_threads
        self.frames: np.ndarray | None = None
        self._switches = (row.get("default_mode", 0) if mode is None else mode, difficulty or 0)
        levels = preprocess.level_tables(obs_type, self.machine.pal)
        if obs_type == "ram":
            img_height, img_width = self.machine.height, 160  # of a table that nobody reads
        self._stack, self._img_width = stack_num, img_width
        pixels = (img_height, img_width)
        self._frame_shape = {"grey": pixels, "rgb": (*pixels, 3), "ram": (RAM_BYTES,)}[obs_type]
        self._resize_table = (levels, *preprocess.resize_to(self.machine.height, img_height, img_width))
        settings = rounds.Settings(
            fire=use_fire_reset and 1 in self.action_set,
            noop_max=noop_max,
            frame_skip=frameskip,
            frame_limit=max_num_frames_per_episode or 2**31 - 1,
            max_pool=maxpool,
            clip=reward_clipping,
            life_loss=life_loss_info,
            episodic_life=episodic_life,
        )
        self._settings = np.array(settings, np.int64)
        self._starts: tuple[np.ndarray, ...] | None = None
        if start_states == "cached":
            self._starts = self._play_starts(num_starts)
        self._allocate(num_envs)
        self.elapsed[:] = max_num_frames_per_episode

    def _allocate(self, n: int) -> None:
        """All arrays of `n` consoles, and the threads that play them."""
        height, stack, frame = self.machine.height, self._stack, self._frame_shape
        draws = len(self._resize_table[0]) > 0
        self.num_envs, self.num_threads = n, max(1, min(self.num_threads, n))
        self.arrays = allocate(
            n, height if draws else 0
        )  # the TIA draws nothing on a console without a screen
        self.arrays["state"][:] = self.machine.powered["state"]
        self.arrays["state"][:, (MODE, DIFFICULTY)] = self._switches
        self.observations = np.zeros((n, stack, *frame) if draws or stack > 1 else (n, *frame), np.uint8)
        self.captured = np.zeros((n, 3 if draws else 0, height * LINE_WORDS), np.uint64)
        self.elapsed = np.zeros(n, np.int32)
        self._loaded = np.zeros(n, np.bool_)
        self._actions, self._playing = np.zeros(n, np.int64), np.zeros(n, np.bool_)
        self._seeds, self._load = np.zeros(n, np.int64), np.zeros(n, np.bool_)
        self._all_play = False
        self.counted = np.zeros(n, np.int64)
        self._message = np.zeros(MESSAGE_WORDS, np.int64)
        self._renew_final()
        self._lent = _Lent([(self.observations.shape, np.uint8)])
        self._lent_results = _Lent([((n,), dtype) for dtype in rounds.OUTCOME_TYPES])
        self._stacks = self.observations.reshape(n, stack, math.prod(frame))
        powered = [self.machine.powered[name] for name in ("state", "memory", "random")]
        played = rounds.Played(
            settings=self._settings,
            order=np.arange(n),
            rows=tuple(self.arrays[name] for name in ("state", "memory", "screen", "random")),
            cartridge=(self.machine.rom, self.machine.program, *powered),
            starts=self._starts or tuple(array[:0] for array in self._start_arrays()),
            told=(self._actions, self._playing, self._seeds, self._load),
            seen=(self.captured, self._resize_table, self._stacks),
            clocks=(self.elapsed, self.counted),
            scratch=(),
            outcome=tuple(np.zeros(n, dtype) for dtype in rounds.OUTCOME_TYPES),
            counts=np.zeros((n, 4), np.int32),
        )
        scratch = [_scratch(height, self._img_width) for _ in range(self.num_threads)]
        self._pool = ThreadPool(rounds.WORK, [(tuple(played._replace(scratch=own)),) for own in scratch])

    def _start_arrays(self) -> tuple[np.ndarray, ...]:
        arrays = self.arrays
        return arrays["state"], arrays["memory"], arrays["screen"], self.captured, self._stacks

    def _play_starts(self, num_starts: int) -> tuple[np.ndarray, ...]:
        """The starts of seeds 0 .. num_starts - 1, played on a vector of their own with these settings."""
        maker = copy.copy(self)
        maker._allocate(num_starts)
        maker.reset(seed=0)
        maker.close()
        return maker._start_arrays()

    def share_frames(self, frames: np.ndarray | None) -> None:
        """Write every environment's newest frame into `frames` in each `reset` and `step` from now on; copy no stacks.

        frames: uint8 `[n, height, width]`, with a last axis of 3 for rgb, `[n, 128]` for ram; C-contiguous. Another array may take its
        place before any step. `reset` and `step` then return the live stacks, which the next step overwrites. None goes back to copies.
        Errors: ValueError.
        """
        shape = (self.num_envs, *self._frame_shape)
        if frames is not None:
            fits = frames.shape == shape and frames.dtype == np.uint8
            if not (fits and frames.flags.c_contiguous and frames.flags.writeable):
                expected = f"writable C-contiguous uint8 {shape}"
                raise ValueError(f"frames: got {frames.dtype} {frames.shape}; expected {expected}")
        self.frames = frames
        self._message[rounds.FRAMES - MESSAGE] = 0 if frames is None else frames.ctypes.data

    def show(self) -> np.ndarray:
        """For those who have changed `observations`: return them as `step` would, and share their newest frames."""
        if self.frames is None:
            return self.observations.copy()
        self.frames[...] = self._stacks[:, -1].reshape(self.frames.shape)
        return self.observations

    def close(self) -> None:
        """End the threads; another step would start new ones."""
        self._pool.close()

    def _renew_final(self) -> None:
        self._final = _fresh_zeros(self.observations.shape)
        self._message[rounds.FINAL - MESSAGE] = self._final.ctypes.data

    def _play_round(self, command: int) -> StepResult:
        """All consoles, on all threads."""
        message = self._message
        message[rounds.COMMAND - MESSAGE] = command
        results, message[_RESULTS] = self._lent_results.take()
        if self.frames is None:
            (shown,), message[_STACKS] = self._lent.take()
        else:
            shown, message[_STACKS] = self.observations, 0
        ended = self._pool.run(message)
        final = None
        if ended and command == rounds.STEP:
            final = self._final
            self._renew_final()
        return StepResult(shown, *results[:3], final, *results[3:])

    def reset(self, seed: int | np.ndarray | None = None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Start new games; `seed` s seeds env i with s + i, an array seeds each env, None goes on with the streams."""
        n = self.num_envs
        seeds = np.asarray(0 if seed is None else seed, np.int64)
        self._seeds[:] = (seeds + np.arange(n) if seeds.ndim == 0 else seeds) & 0xFFFFFFFF
        self._load[:] = True if seed is not None else ~self._loaded
        result = self._play_round(rounds.RESET)
        self._loaded[:] = True
        names = ("lives", "frame_number", "episode_frame_number")
        return result.observations, {name: getattr(result, name) for name in names}

    def step(self, actions: np.ndarray, playing: np.ndarray | None = None) -> StepResult:
        """One step of every game, or of those `playing` bool `[n]`, with indices into `action_set`, int `[n]`.

        A game that rests stays as it is, with reward 0 and neither terminated nor truncated.
        Errors: ValueError for actions of another shape.
        """
        if np.shape(actions) != (self.num_envs,):
            raise ValueError(f"actions have shape {np.shape(actions)}; expected ({self.num_envs},)")
        self.action_set.take(actions, out=self._actions)
        if playing is not None or not self._all_play:
            self._playing[:] = True if playing is None else playing
            self._all_play = playing is None
        return self._play_round(rounds.STEP)


def _scratch(height: int, img_width: int) -> tuple[np.ndarray, np.ndarray]:
    """One thread's, in cache lines that it has for itself."""
    work, changed = np.zeros(3 * (160 + img_width) + 64, np.float32), np.zeros(height + 128, np.bool_)
    return work[32:-32].reshape(3, -1), changed[64:-64]
