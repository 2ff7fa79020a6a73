"""`VectorConsoles`: consoles with preprocessing, equal byte for byte to ale-py's `AtariVectorEnv` (SAME_STEP autoreset).

Observations are uint8 `[n, stack, height, width]`, oldest frame first. This layer knows seeds, no-op starts, frame skip and stacks,
but no gymnasium: `parcade.envs` wraps it.
"""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import engine_cpu, mt19937, preprocess
from .state import DIFFICULTY, EPISODE_FRAME_NUMBER, FRAME_NUMBER, LINE_WORDS, LIVES, MODE, NOOP_STREAM, allocate


class StepResult(NamedTuple):
    """What a step gives; rows of `final_observations` are meaningful where an episode ended."""

    observations: np.ndarray  # uint8 [n, stack, height, width]
    rewards: np.ndarray  # int32 [n]
    terminated: np.ndarray  # bool [n]
    truncated: np.ndarray  # bool [n]
    final_observations: np.ndarray
    lives: np.ndarray  # int32 [n]
    frame_number: np.ndarray
    episode_frame_number: np.ndarray


class VectorConsoles:
    """`num_envs` games with AtariVectorEnv's settings; keyword names and defaults are ale-py's.

    `start_states`: ``exact`` plays every start as ale-py does, so that RAM carries over from one episode to the next; ``cached``
    begins every episode with one of `num_starts` first episodes' starts, those of seeds 0 .. num_starts - 1.
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
        if num_starts < 1:
            raise ValueError(f"num_starts={num_starts}: expected at least 1")
        self.machine = engine_cpu.build_machine(game, repeat_action_probability)
        row = self.machine.row
        self.num_envs = num_envs
        minimal = row.get("actions", list(range(18)))
        self.action_set = np.array(row.get("legal_actions", range(18)) if full_action_space else minimal, np.int64)
        self.num_threads = max(1, min(num_threads, num_envs))
        self._pool = ThreadPoolExecutor(self.num_threads) if self.num_threads > 1 else None
        height = self.machine.height
        self.arrays = allocate(num_envs, height)
        self.arrays["state"][:] = self.machine.powered["state"]
        state = self.arrays["state"]
        state[:, MODE] = row.get("default_mode", 0) if mode is None else mode
        state[:, DIFFICULTY] = 0 if difficulty is None else difficulty
        self.observations = np.zeros((num_envs, stack_num, img_height, img_width), np.uint8)
        self.captured = np.zeros((num_envs, 3, height * LINE_WORDS), np.uint64)
        self._planes = self.observations.reshape(num_envs, stack_num, img_height * img_width)
        self.elapsed = np.full(num_envs, max_num_frames_per_episode, np.int32)
        grey = preprocess.grey_table(self.machine.pal)
        self._resize_table = (grey, *preprocess.resize_to(height, img_height, img_width))
        self._work = np.zeros((self.num_threads, 3, 160 + img_width), np.float32)
        self._changed = np.zeros((self.num_threads, height), np.bool_)
        self._fire = bool(use_fire_reset and 1 in self.action_set)
        self._noop_max = noop_max
        self._starts = tuple(array[:0] for array in self._start_arrays())
        self._step_settings = (frameskip, max_num_frames_per_episode or 2**31 - 1, maxpool, reward_clipping, life_loss_info, episodic_life)
        self._loaded = np.zeros(num_envs, bool)
        if start_states == "cached":
            self._starts = self._play_starts(num_starts)

    def _rows(self):
        arrays = self.arrays
        return arrays["state"], arrays["memory"], arrays["screen"], arrays["random"]

    def _start_arrays(self) -> tuple[np.ndarray, ...]:
        arrays = self.arrays
        return arrays["state"], arrays["memory"], arrays["screen"], self.captured, self._planes

    def _play_starts(self, num_starts: int) -> tuple[np.ndarray, ...]:
        """The starts of seeds 0 .. num_starts - 1, played on a vector of their own with these settings."""
        maker = copy.copy(self)
        maker.num_envs, maker.num_threads, maker._pool = num_starts, 1, None
        maker.arrays = allocate(num_starts, self.machine.height)
        maker.arrays["state"][:] = self.arrays["state"][0]
        maker.observations = np.zeros((num_starts, *self.observations.shape[1:]), np.uint8)
        maker._planes = maker.observations.reshape(num_starts, *self._planes.shape[1:])
        maker.captured = np.zeros((num_starts, *self.captured.shape[1:]), np.uint64)
        maker.elapsed, maker._loaded = np.zeros(num_starts, np.int32), np.zeros(num_starts, bool)
        maker.reset(seed=0)
        return maker._start_arrays()

    def _split(self, work: Callable[[int, int, int], None]) -> None:
        """Call ``work(thread, first, last)`` on shares of the consoles."""
        edges = [self.num_envs * thread // self.num_threads for thread in range(self.num_threads + 1)]
        if self._pool is None:
            work(0, 0, self.num_envs)
        else:
            list(self._pool.map(lambda thread: work(thread, edges[thread], edges[thread + 1]), range(self.num_threads)))

    def reset(self, seed: int | np.ndarray | None = None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Start new games; `seed` s seeds env i with s + i, an array seeds each env, None goes on with the streams."""
        seeds = None if seed is None else np.asarray(seed, np.int64) + (np.arange(self.num_envs) if np.ndim(seed) == 0 else 0)
        powered = self.machine.powered
        state = self.arrays["state"]

        def start(thread: int, first: int, last: int) -> None:
            for e in range(first, last):
                if seeds is not None or not self._loaded[e]:
                    value = int(seeds[e] if seeds is not None else e) & 0xFFFFFFFF
                    mt19937.seed(self.arrays["random"][e, NOOP_STREAM], value)
                    engine_cpu.load_console(
                        e, *self._rows(), powered["state"], powered["memory"], powered["random"],
                        self.machine.rom, self.machine.program, value, int(state[e, MODE]), int(state[e, DIFFICULTY]),
                    )  # fmt: skip
                    self._loaded[e] = True
                engine_cpu.start_episode(
                    e, *self._rows(), self.machine.rom, self.machine.program, self._fire, self._noop_max, self._starts,
                    self.captured, self._resize_table, self._work[thread], self._changed[thread], self._planes, self.elapsed,
                )  # fmt: skip

        self._split(start)
        return self.observations.copy(), {
            "lives": state[:, LIVES].copy(),
            "frame_number": state[:, FRAME_NUMBER].copy(),
            "episode_frame_number": state[:, EPISODE_FRAME_NUMBER].copy(),
        }

    def step(self, actions: np.ndarray, playing: np.ndarray | None = None) -> StepResult:
        """One step of every game, or of those `playing` bool `[n]`, with indices into `action_set`, int `[n]`.

        A game that rests stays as it is, with reward 0 and neither terminated nor truncated.
        """
        ids = self.action_set[np.asarray(actions)]
        n = self.num_envs
        rewards = np.zeros(n, np.int32)
        terminated = np.zeros(n, np.bool_)
        truncated = np.zeros(n, np.bool_)
        final = np.zeros_like(self.observations)
        counters = self.arrays["state"][:, (LIVES, FRAME_NUMBER, EPISODE_FRAME_NUMBER)].astype(np.int32)
        playing = np.ones(n, np.bool_) if playing is None else np.asarray(playing, np.bool_)
        counts = np.zeros((n, 4), np.int32)

        def play(thread: int, first: int, last: int) -> None:
            engine_cpu.step_many(
                first, last, playing, *self._rows(), self.machine.rom, self.machine.program, self._fire, self._noop_max, self._starts,
                *self._step_settings, ids, self.captured, self._resize_table, self._work[thread], self._changed[thread], self._planes, self.elapsed,
                rewards, terminated, truncated, final.reshape(self._planes.shape), counters, counts,
            )  # fmt: skip

        self._split(play)
        return StepResult(self.observations.copy(), rewards, terminated, truncated, final, counters[:, 0], counters[:, 1], counters[:, 2])
