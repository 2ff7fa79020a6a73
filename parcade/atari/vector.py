"""`VectorConsoles`: consoles with preprocessing, byte-identical to ale-py's `AtariVectorEnv`.

Observations are uint8, oldest frame first: `[n, stack, height, width]` for grey,
`[n, stack, height, width, 3]` for rgb, and `[n, stack, 128]` for ram, or `[n, 128]` with a stack of 1.
Episodes restart within the step that ends them (SAME_STEP autoreset). This layer implements seeds, no-op
starts, frame skip and stacks. It does not depend on gymnasium; `parcade.envs` wraps it.
"""

import copy
import math
import mmap
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import engine_cpu, preprocess
from .arcade import check_arguments, check_integer
from .settings import VectorSettings
from .starts import recorded_consoles
from .state import DIFFICULTY, LINE_WORDS, MODE, allocate
from .state_check import check_captured, check_playing
from .threads import rounds
from .threads.callers import Callers
from .threads.thread_pool import MESSAGE, MESSAGE_WORDS, ThreadPool

_STACKS = slice(rounds.STACKS - MESSAGE, rounds.STACKS - MESSAGE + 1)
_RESULTS = slice(rounds.RESULTS - MESSAGE, rounds.RESULTS - MESSAGE + len(rounds.OUTCOME_TYPES))


class StepResult(NamedTuple):
    """Result of a step. The caller owns all arrays, except the observations after `share_frames`."""

    observations: np.ndarray  # uint8 [n, ...]
    rewards: np.ndarray  # int32 [n]
    terminated: np.ndarray  # bool [n]
    truncated: np.ndarray  # bool [n]
    final_observations: np.ndarray | None  # zero if the env's episode did not end; None if no episode ended
    lives: np.ndarray  # int32 [n]
    frame_number: np.ndarray
    episode_frame_number: np.ndarray
    frames: np.ndarray  # int64 [n], emulated by this step
    reset_frames: np.ndarray  # int64 [n], emulated by a reset inside this step


class ReusedArrays:
    """Output arrays that are reused after the caller has dropped all references to them.

    New memory costs a page fault every 4 KiB. Each Python or NumPy call after a millisecond of emulation also
    costs a few microseconds, because its code and data are no longer in the caches.
    """

    MOST = 3  # the caller's last set, the next set, and one for callers that keep the previous step

    def __init__(self, arrays: list[tuple[tuple[int, ...], type]]) -> None:
        self._arrays = arrays
        self._sets: list[tuple[list[np.ndarray], np.ndarray]] = []

    def take(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Return unreferenced arrays with undefined contents, and their addresses, int64."""
        # What a list and a loop hold of an object, counted here, since a debugger may hold one more.
        references = 0
        for probe in [object()]:
            references = sys.getrefcount(probe)
        for arrays, addresses in self._sets:
            for array in arrays:
                if sys.getrefcount(array) != references:
                    break
            else:
                return arrays, addresses
        arrays = [np.empty(shape, dtype) for shape, dtype in self._arrays]
        addresses = np.array([array.ctypes.data for array in arrays])
        self._sets = [*self._sets[1 - self.MOST :], (arrays, addresses)]
        return arrays, addresses


def _fresh_zeros(shape: tuple[int, ...]) -> np.ndarray:
    """Return zeros whose pages are untouched until they are written. NumPy clears memory that it reuses."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.zeros(shape, np.uint8)
    memory = mmap.mmap(-1, math.prod(shape), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, np.uint8).reshape(shape)


class VectorConsoles:
    """`num_envs` environments of one game, with the settings of `VectorSettings`.

    Calls from several threads wait for each other, by `callers`.
    Errors: ValueError for an unknown game or invalid settings.
    """

    def __init__(self, game: str | Path, num_envs: int, *, num_threads: int = 1, **settings: Any):
        self.settings = how = VectorSettings(**settings)
        check_arguments(game, num_envs, how.repeat_action_probability, "num_envs")
        check_integer("num_threads", num_threads)
        self.machine = engine_cpu.build_machine(game, how.repeat_action_probability)
        row = self.machine.row
        self.action_set = how.action_set(row)
        self._code = self.machine.code_renewal()
        self.callers = Callers()
        self.num_threads = num_threads
        self.frames: np.ndarray | None = None
        self._switches = how.switches(row)
        self._resize_table = how.resize_tables(self.machine.height, pal=self.machine.pal)
        self._words = how.words(self.action_set)
        self._starts: tuple[np.ndarray, ...] | None = None
        if how.start_states == "cached":
            self._starts = self._play_starts(how.num_starts)
        elif how.start_states != "exact":
            self._starts = self._recorded_starts(how)
        self._allocate(num_envs)
        self.elapsed[:] = how.max_num_frames_per_episode

    def _allocate(self, n: int) -> None:
        """Allocate all arrays of `n` consoles and create the thread pool."""
        height, how = self.machine.height, self.settings
        draws = how.draws
        self.num_envs, self.num_threads = n, max(1, min(self.num_threads, n))
        self.arrays = allocate(n, height if draws else 0)  # without a screen, the TIA draws nothing
        self.arrays["state"][:] = self.machine.powered["state"]
        self.arrays["state"][:, (MODE, DIFFICULTY)] = self._switches
        self.observations = np.zeros((n, *how.stack_shape), np.uint8)
        self.captured = np.zeros((n, 3 if draws else 0, height * LINE_WORDS), np.uint64)
        self.elapsed = np.zeros(n, np.int32)
        self._loaded, self._all_loaded = np.zeros(n, np.bool_), False
        self._actions, self._playing = np.zeros(n, np.int64), np.zeros(n, np.bool_)
        self._seeds, self._load = np.zeros(n, np.int64), np.zeros(n, np.bool_)
        self._all_play = False
        self.counted = np.zeros(n, np.int64)
        self._message = np.zeros(MESSAGE_WORDS, np.int64)
        self._renew_final()
        self._stack_arrays = ReusedArrays([(self.observations.shape, np.uint8)])
        self._result_arrays = ReusedArrays([((n,), dtype) for dtype in rounds.OUTCOME_TYPES])
        self._stacks = self.observations.reshape(n, how.stack_num, how.frame_bytes)
        powered = [self.machine.powered[name] for name in ("state", "memory", "random")]
        played = rounds.Played(
            settings=self._words,
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
        self._played = [
            played._replace(scratch=_scratch(height)) for _ in range(self.num_threads)
        ]  # one per thread
        self._pool = ThreadPool(rounds.work, [(tuple(own),) for own in self._played])

    @property
    def starts(self) -> tuple[np.ndarray, ...] | None:
        """The saved starts: state, memory, screen, captured frames and stacks; None with exact starts."""
        return self._starts

    def _start_arrays(self) -> tuple[np.ndarray, ...]:
        arrays = self.arrays
        return arrays["state"], arrays["memory"], arrays["screen"], self.captured, self._stacks

    def _play_starts(self, num_starts: int) -> tuple[np.ndarray, ...]:
        """Play the starts of seeds 0 .. num_starts - 1 on a separate vector with the same settings."""
        maker = copy.copy(self)
        maker._allocate(num_starts)
        maker.reset(seed=0)
        maker.close()
        return maker._start_arrays()

    def _recorded_starts(self, how: VectorSettings) -> tuple[np.ndarray, ...]:
        """Take the starts from the recording that `start_states` names; their stacks hold one frame."""
        rows = recorded_consoles(
            how.start_states,
            self.machine,
            mode=how.mode,
            difficulty=how.difficulty,
            num_starts=how.num_starts,
        )
        maker = copy.copy(self)
        maker._allocate(how.num_starts)
        for name in ("state", "memory", *(["screen"] if how.draws else [])):
            maker.arrays[name][:] = rows[name]
        played = maker._played[0]
        captured, resize_table, stacks = played.seen
        for e in range(how.num_starts):
            engine_cpu.begin_stack(e, *played.rows[:3], captured, resize_table, *played.scratch, stacks)
        maker.close()
        return maker._start_arrays()

    def share_frames(self, frames: np.ndarray | None) -> None:
        """Write every environment's newest frame into `frames` in all following calls of `reset` and `step`.

        `reset` and `step` then return the live stacks, which the next step overwrites, instead of copies.
        Pass None to return to copies. `frames` can be replaced by another array before any step.
        frames: uint8, C-contiguous; `[n, height, width]` for grey, `[n, height, width, 3]` for rgb,
        `[n, 128]` for ram.
        Errors: ValueError for another shape or dtype, or for memory that is not C-contiguous or writable.
        """
        shape = (self.num_envs, *self.settings.frame_shape)
        if frames is not None:
            fits = frames.shape == shape and frames.dtype == np.uint8
            if not (fits and frames.flags.c_contiguous and frames.flags.writeable):
                expected = f"writable C-contiguous uint8 {shape}"
                raise ValueError(f"frames: got {frames.dtype} {frames.shape}; expected {expected}")
        self.frames = frames
        self._message[rounds.FRAMES - MESSAGE] = 0 if frames is None else frames.ctypes.data

    def show(self) -> np.ndarray:
        """Return `observations` as `step` does and share their newest frames.

        Call this after changing `observations`.
        """
        if self.frames is None:
            return self.observations.copy()
        self.frames[...] = self._stacks[:, -1].reshape(self.frames.shape)
        return self.observations

    def palette_frames(self) -> np.ndarray:
        """Return every console's current frame as palette indices, uint8 `[n, height, 160]`.

        Errors: ValueError with `obs_type` ram, which draws nothing.
        """
        if not self.settings.draws:
            raise ValueError("obs_type='ram' draws nothing; use 'grey' or 'rgb' to see frames")
        words = np.zeros((self.num_envs, self.machine.height * LINE_WORDS), np.uint64)
        with self.callers.lock:
            engine_cpu.show_many(self.arrays["state"], self.arrays["screen"], words)
        return words.view(np.uint8).reshape(self.num_envs, self.machine.height, 160)

    def colour_frames(self) -> np.ndarray:
        """Return every console's current frame in colour, uint8 `[n, height, 160, 3]`.

        Errors: ValueError with `obs_type` ram, which draws nothing.
        """
        return preprocess.rgb_frames(self.palette_frames(), self.machine.pal)

    def close(self) -> None:
        """Stop the threads. The next step starts new ones."""
        self._pool.close()

    def _renew_final(self) -> None:
        self._final = _fresh_zeros(self.observations.shape)
        self._message[rounds.FINAL - MESSAGE] = self._final.ctypes.data

    def _play_round(self, command: int) -> StepResult:
        """Run a round of all consoles on all threads."""
        self._code.check()
        message = self._message
        message[rounds.COMMAND - MESSAGE] = command
        results, message[_RESULTS] = self._result_arrays.take()
        if self.frames is None:
            (shown,), message[_STACKS] = self._stack_arrays.take()
        else:
            shown, message[_STACKS] = self.observations, 0
        ended = self._pool.run(message)
        final = None
        if ended and command == rounds.STEP:
            final = self._final
            self._renew_final()
        return StepResult(shown, *results[:3], final, *results[3:])

    def reset(
        self, seed: int | np.ndarray | None = None, mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Start new episodes; return the observations and a dict of the lives and frame numbers.

        seed: an integer s seeds env i with s + i; an array int `[n]` seeds each env; None continues the
        random streams (env i starts with seed i if it has not been reset before).
        mask: bool `[n]`, the environments to reset; the others keep their state. None resets all.
        """
        with self.callers.lock:
            self._plan_reset(seed, mask)
            result = self._play_round(rounds.RESET)
        names = ("lives", "frame_number", "episode_frame_number")
        return result.observations, {name: getattr(result, name) for name in names}

    def _plan_reset(self, seed: int | np.ndarray | None, mask: np.ndarray | None) -> None:
        """Set which consoles the next reset applies to, and their seeds."""
        seeds = np.asarray(0 if seed is None else seed, np.int64)
        self._seeds[:] = (seeds + np.arange(self.num_envs) if seeds.ndim == 0 else seeds) & 0xFFFFFFFF
        self._load[:] = True if seed is not None else ~self._loaded
        self._all_play = mask is None
        self._playing[:] = True if mask is None else mask
        self._loaded |= self._playing
        self._all_loaded = bool(self._loaded.all())

    def check_saved(self, rows: dict[str, np.ndarray], captured: np.ndarray, elapsed: np.ndarray) -> None:
        """Check saved rows of consoles, captured frames and frames of episodes `[n]`. Errors: ValueError."""
        most_frames = self.settings.frame_limit + self.settings.most_frames
        check_playing(rows, elapsed, self.machine, self._switches, most_frames)
        check_captured(captured, self.settings)

    def continue_streams(self) -> None:
        """Continue the random streams of a restored state at the next reset without seeds."""
        self._loaded[:] = self._all_loaded = True

    def step(self, actions: np.ndarray, playing: np.ndarray | None = None) -> StepResult:
        """Play one step of every environment, or of those selected by `playing`, bool `[n]`.

        actions: indices into `action_set`, int `[n]`; as in any array, negative ones count from its end. With
        continuous actions float `[n, 3]`, see `joystick.from_polar`. An environment that is not playing keeps
        its state; its reward is 0, and it is neither terminated nor truncated.
        Errors: ValueError for actions of another shape, and for an environment that was never reset;
        IndexError for actions that do not exist.
        """
        expected = (self.num_envs, 3) if self.settings.continuous else (self.num_envs,)
        if np.shape(actions) != expected:
            raise ValueError(f"actions have shape {np.shape(actions)}; expected {expected}")
        if not self._all_loaded:
            self._check_loaded(playing)
        with self.callers.lock:
            self._actions[:] = self.settings.ids_of(actions, self.action_set)
            if playing is not None or not self._all_play:
                self._playing[:] = True if playing is None else playing
                self._all_play = playing is None
            return self._play_round(rounds.STEP)

    def _check_loaded(self, playing: np.ndarray | None) -> None:
        """Check that no environment plays before it was reset: its random stream is empty, not seeded."""
        unloaded = np.flatnonzero(~self._loaded & (True if playing is None else np.asarray(playing)))
        if len(unloaded):
            raise ValueError(f"environment {unloaded[0]} was never reset; call reset first")


def _scratch(height: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the scratch arrays of one thread, in cache lines that no other thread uses."""
    work, changed = np.zeros(3 * preprocess.WORK_COLUMNS + 64, np.float32), np.zeros(height + 64, np.int32)
    return work[32:-32].reshape(3, -1), changed[32:-32]
