"""`DeviceConsoles`: `VectorConsoles` in a GPU's memory, byte for byte the same games.

Everything a step takes and gives stays on the device; nothing here waits for it. What `reset` and `step` return
are the arrays themselves, written again by the next step: copy what must last. States are those of
`VectorConsoles`, so a game moves between CPU and GPU and goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import cuda_kernels, engine_cpu, engine_cuda, preprocess, rom_code
from .cuda_kernels import LASTING_WORDS, NUM_SETTINGS
from .device_rows import rows_from_device, rows_to_device
from .state import DIFFICULTY, LINE_WORDS, MEMORY_BYTES, MODE, ROW_WORDS
from .state_check import check_rows


class DeviceStep(NamedTuple):
    """What a step gives, all on the device; rows of `final_observations` are meaningful where `over`."""

    observations: Any  # uint8 [n, stack, height, width]
    rewards: Any  # int32 [n]
    terminated: Any  # bool [n]
    truncated: Any  # bool [n]
    over: Any  # bool [n]: the episode ended and a new one has begun
    final_observations: Any
    counters: Any  # int32 [n, 3]: lives, frame number, episode frame number
    counts: Any  # int32 [n, 4]: reward, frames of this step; the rest is internal


class DeviceConsoles:
    """`num_envs` games on the threads of a device; settings as `VectorConsoles`.

    `start_states`: ``exact`` plays every start as ale-py does; ``cached`` takes one of `num_starts` that were played so.
    Errors: MemoryError saying how many fit, ValueError as `VectorConsoles`.
    """

    def __init__(
        self,
        game: str | Path,
        num_envs: int,
        threads: engine_cuda.GpuThreads | engine_cuda.HostThreads,
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
        start_states: str = "exact",
        num_starts: int = 30,
    ):
        if start_states not in ("exact", "cached"):
            raise ValueError(f"start_states={start_states!r}: expected 'exact' or 'cached'")
        self.machine = engine_cpu.build_machine(game, repeat_action_probability)
        self.num_envs, self.threads, self.start_states, self.num_starts = num_envs, threads, start_states, num_starts
        self.image_shape = (stack_num, img_height, img_width)
        free = threads.free_bytes()
        self.bytes_per_env = engine_cuda.environment_bytes(self.machine.height, *self.image_shape)
        if free is not None:
            engine_cuda.check_fits(num_envs, self.bytes_per_env, free)
        row = self.machine.row
        self.action_set = np.array(row.get("legal_actions" if full_action_space else "actions", range(18)), np.int64)
        settings = np.zeros(NUM_SETTINGS, np.int32)
        settings[cuda_kernels.FRAME_SKIP] = frameskip
        settings[cuda_kernels.FRAME_LIMIT] = max_num_frames_per_episode or 2**31 - 1
        settings[cuda_kernels.MAX_POOL] = maxpool
        settings[cuda_kernels.CLIP] = reward_clipping
        settings[cuda_kernels.LIFE_LOSS] = life_loss_info
        settings[cuda_kernels.EPISODIC_LIFE] = episodic_life
        settings[cuda_kernels.USE_FIRE] = use_fire_reset and 1 in self.action_set
        settings[cuda_kernels.NOOP_MAX] = noop_max
        self._allocate(settings, img_height, img_width, stack_num, max_num_frames_per_episode)
        registers = np.repeat(self.machine.powered["state"][:, :LASTING_WORDS].T, num_envs, axis=1)
        registers[MODE] = row.get("default_mode", 0) if mode is None else mode
        registers[DIFFICULTY] = 0 if difficulty is None else difficulty
        threads.write(self.registers, registers)
        self._loaded = np.zeros(num_envs, bool)
        self._starts: tuple | None = None

    def _allocate(self, settings: np.ndarray, height: int, width: int, stack: int, elapsed: int) -> None:
        n, put, zeros = self.num_envs, self.threads.put, self.threads.zeros
        machine, picture_words = self.machine, self.machine.height * LINE_WORDS
        self.settings, self._action_set = put(settings), put(self.action_set)
        self._rom, self._program = put(rom_code.interpreted(machine.rom)), put(machine.program)
        powered = machine.powered
        self._powered = (put(powered["state"][0, :LASTING_WORDS]), put(powered["memory"][0]), put(powered["random"][0, 0]))
        self._resize = tuple(put(t) for t in (preprocess.grey_table(machine.pal), *preprocess.resize_to(machine.height, height, width)))
        self.registers = zeros((LASTING_WORDS, n), np.int32)
        self.memory = zeros((n, 256), np.uint8)
        self.screen = zeros((n, 2 * picture_words), np.uint64)
        self.random = zeros((n, 3, 625), np.uint32)
        self.captured = zeros((n, 3, picture_words), np.uint64)
        self.observations = zeros((n, stack, height * width), np.uint8)
        self.final_observations = zeros((n, stack, height * width), np.uint8)
        self.elapsed = put(np.full(n, elapsed, np.int32))
        self.actions = zeros((n,), np.int64)
        self.counts, self.counters = zeros((n, 4), np.int32), zeros((n, 3), np.int32)
        self.rewards = zeros((n,), np.int32)
        self.terminated, self.truncated, self.over = (zeros((n,), np.bool_) for _ in range(3))

    @property
    def _consoles(self) -> tuple:
        return self.registers, self.memory, self.screen, self.random

    def reset(self, seed: int | np.ndarray | None = None) -> tuple[Any, Any]:
        """Start new games everywhere; seeds as `VectorConsoles.reset`. Returns observations and counters [n, 3]."""
        n = self.num_envs
        seeds = None if seed is None else np.asarray(seed, np.int64) + (np.arange(n) if np.ndim(seed) == 0 else 0)
        load = np.ones(n, bool) if seeds is not None else ~self._loaded
        if load.any():
            values = (np.arange(n) if seeds is None else seeds) & 0xFFFFFFFF
            self.threads.launch(
                cuda_kernels.power_thread, n, self._rom, self._program, *self._powered,
                self.threads.put(load), self.threads.put(values.astype(np.int64)), *self._consoles,
            )  # fmt: skip
            self._loaded[:] = True
        self.threads.write(self.over, np.ones(n, bool))
        self._begin()
        return self._shaped(self.observations), self.counters

    def _begin(self) -> None:
        """New episodes where `over` says so."""
        n, launch = self.num_envs, self.threads.launch
        if self.start_states == "exact":
            launch(
                cuda_kernels.restart_thread, n, self._rom, self._program, self.settings, self.over, *self._consoles,
                self.captured, self.elapsed, self.counters,
            )  # fmt: skip
        else:
            launch(
                cuda_kernels.recall_thread, n, *self._cached_starts(), self.over, *self._consoles,
                self.captured, self.elapsed, self.counters,
            )  # fmt: skip
        pixels = self.observations.shape[2]
        launch(cuda_kernels.begin_thread, n * pixels, self.over, self.captured, *self._resize, self.observations)

    def _cached_starts(self) -> tuple:
        """Starts played exactly, one to a seed 0 .. num_starts - 1: registers, memory and pictures."""
        if self._starts is None:
            settings = self.threads.fetch(self.settings)
            registers = self.threads.fetch(self.registers)
            maker = DeviceConsoles.__new__(DeviceConsoles)
            maker.num_envs, maker.threads, maker.machine, maker.start_states = self.num_starts, self.threads, self.machine, "exact"
            maker.action_set, maker.image_shape = self.action_set, self.image_shape
            stack, height, width = self.image_shape
            maker._allocate(settings, height, width, stack, 0)
            maker._loaded, maker._starts = np.zeros(self.num_starts, bool), None
            first = np.repeat(registers[:, :1], self.num_starts, axis=1)
            self.threads.write(maker.registers, first)
            maker.reset(seed=0)
            self._starts = (maker.registers, maker.memory, maker.screen)
        return self._starts

    def step(self, actions: Any = None) -> DeviceStep:
        """One step of every game. `actions` [n] int64 on the device, places in `action_set`; None takes `self.actions`."""
        n, launch = self.num_envs, self.threads.launch
        launch(
            cuda_kernels.step_thread, n, self._rom, self._program, self.settings, self._action_set,
            self.actions if actions is None else actions, *self._consoles, self.captured, self.elapsed,
            self.counts, self.rewards, self.terminated, self.truncated, self.over, self.counters,
        )  # fmt: skip
        launch(
            cuda_kernels.observe_thread, n * self.observations.shape[2], self.settings, self.counts, self.over, self.captured,
            *self._resize, self.observations, self.final_observations,
        )  # fmt: skip
        self._begin()
        return DeviceStep(
            self._shaped(self.observations), self.rewards, self.terminated, self.truncated, self.over,
            self._shaped(self.final_observations), self.counters, self.counts,
        )  # fmt: skip

    def _shaped(self, planes: Any) -> Any:
        return planes.reshape(self.num_envs, *self.image_shape)

    def get_state(self) -> dict[str, np.ndarray]:
        """Everything that decides the future, in the host's memory, named and shaped as on the CPU."""
        fetch = self.threads.fetch
        rows = rows_from_device(*(fetch(array) for array in self._consoles))
        return {
            **{f"console.{name}": array for name, array in rows.items()},
            "observations": fetch(self.observations).reshape(self.num_envs, *self.image_shape),
            "captured": fetch(self.captured),
            "elapsed": fetch(self.elapsed),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Take what `get_state` or a `VectorConsoles` of the same settings gave. Errors: ValueError, and nothing has changed."""
        taken = self._checked(state)
        rows = {name.removeprefix("console."): array for name, array in taken.items() if name.startswith("console.")}
        write = self.threads.write
        for array, values in zip(self._consoles, rows_to_device(rows), strict=True):
            write(array, values)
        for name in ("observations", "captured", "elapsed"):
            write(getattr(self, name), taken[name])
        self._loaded[:] = True

    def _checked(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A saved state's arrays as `get_state` gives them. Errors: ValueError where one is missing, misshapen or out of range."""
        n, words = self.num_envs, self.machine.height * LINE_WORDS
        expected = {
            "console.state": ((n, ROW_WORDS), np.int32),
            "console.memory": ((n, MEMORY_BYTES), np.uint8),
            "console.screen": ((n, 2 * words), np.uint64),
            "console.random": ((n, 3, 625), np.uint32),
            "observations": ((n, *self.image_shape), np.uint8),
            "captured": ((n, 3, words), np.uint64),
            "elapsed": ((n,), np.int32),
        }
        taken = {}
        for name, (shape, dtype) in expected.items():
            saved = state.get(name)
            # Unsigned words may have been saved as signed ones.
            if saved is None or saved.shape != shape or saved.dtype.itemsize != np.dtype(dtype).itemsize:
                got = None if saved is None else f"{saved.dtype} {saved.shape}"
                raise ValueError(f"saved consoles: {name} is {got}; expected {np.dtype(dtype)} {shape}")
            taken[name] = saved.view(dtype)
        check_rows({name.removeprefix("console."): array for name, array in taken.items()}, self.machine)
        return taken
