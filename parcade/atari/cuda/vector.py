"""`DeviceConsoles`: `VectorConsoles` in a GPU's memory, byte for byte the same games.

Everything a step takes and gives stays on the device; nothing here waits for it. What `reset` and `step` return
are the arrays themselves, written again by the next step: copy what must last. States are those of
`VectorConsoles`, so a game moves between CPU and GPU and goes on. Arrays and what they take are in `layout.py`; how consoles
do without pictures stands in `environments.py`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import engine_cpu, mt19937, preprocess
from ..state import (
    DIFFICULTY,
    EPISODE_FRAME_NUMBER,
    FRAME_NUMBER,
    LINE_WORDS,
    LIVES,
    MEMORY_BYTES,
    MODE,
    ROW_WORDS,
    STICKY_STREAM,
    STICKY_THRESHOLD,
    SYSTEM_STREAM,
)
from ..state_check import check_rows
from ..translate import rom_code
from . import engine, environments, layout, pictures
from .environments import MOST_FRAMES, NOT_WHOLE
from .pictures import BAND_LINES, GROUP, NUM_SETTINGS
from .transfer import lasting_words, origins, rows_to_device, rows_with_pictures, streams_of


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
        threads: engine.GpuThreads | engine.HostThreads,
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
        if not 1 <= num_starts <= GROUP:  # so that start k has its pictures in slot k
            raise ValueError(f"num_starts={num_starts}: expected 1 to {GROUP}")
        if not 1 <= frameskip <= MOST_FRAMES:
            raise ValueError(f"frameskip={frameskip}: expected 1 to {MOST_FRAMES} on a device")
        self.machine = engine_cpu.build_machine(game, repeat_action_probability)
        self.num_envs, self.threads, self.start_states, self.num_starts = num_envs, threads, start_states, num_starts
        self.image_shape = (stack_num, img_height, img_width)
        row = self.machine.row
        self.action_set = np.array(row.get("legal_actions" if full_action_space else "actions", range(18)), np.int64)
        settings = np.zeros(NUM_SETTINGS, np.int32)
        settings[pictures.FRAME_SKIP] = frameskip
        settings[pictures.FRAME_LIMIT] = max_num_frames_per_episode or 2**31 - 1
        settings[pictures.MAX_POOL] = maxpool
        settings[pictures.CLIP] = reward_clipping
        settings[pictures.LIFE_LOSS] = life_loss_info
        settings[pictures.EPISODIC_LIFE] = episodic_life
        settings[pictures.USE_FIRE] = use_fire_reset and 1 in self.action_set
        settings[pictures.NOOP_MAX] = noop_max
        powered = np.repeat(lasting_words(self.machine.powered["state"]), num_envs, axis=1)
        powered[MODE] = row.get("default_mode", 0) if mode is None else mode
        powered[DIFFICULTY] = 0 if difficulty is None else difficulty
        self._allocate(settings, powered, max_num_frames_per_episode, is_sticky=repeat_action_probability > 0)

    def _allocate(self, settings: np.ndarray, registers: np.ndarray, elapsed: int, *, is_sticky: bool) -> None:
        n, put, machine = self.num_envs, self.threads.put, self.machine
        # A step of one frame has no second one of its own to play again, and some games never show a whole picture.
        everyone = settings[pictures.FRAME_SKIP] == 1 or machine.row.get("short_frames", False)
        stack, height, width = self.image_shape
        free = self.threads.free_bytes()
        if free is not None:
            needed = functools.partial(layout.environment_bytes, height=machine.height, is_sticky=is_sticky, everyone=everyone)
            engine.check_fits(n, lambda count: needed(count, stack=stack, rows=height, columns=width), free)
        for shapes in (
            layout.console_shapes(n),
            layout.sticky_shapes(n, is_sticky=is_sticky),
            layout.seen_shapes(n, *self.image_shape),
            layout.wave_shapes(layout.wave_of(n), machine.height),
        ):
            self._make(shapes)
        self._make_slots(layout.num_slots(n, everyone=everyone))
        self.settings, self._action_set = put(settings), put(self.action_set)
        self._rom, self._program = put(rom_code.interpreted(machine.rom)), put(machine.program)
        powered = machine.powered
        self._powered = (put(lasting_words(powered["state"])[:, 0]), put(powered["memory"][0]))
        self._grey = put(preprocess.grey_table(machine.pal))
        self._resize = tuple(put(table) for table in preprocess.resize_to(machine.height, height, width))
        self._is_sticky = is_sticky
        self.threads.write(self.registers, registers)
        self.threads.write(self.elapsed, np.full(n, elapsed, np.int32))
        self._loaded = np.zeros(n, bool)
        self._starts: DeviceConsoles | None = None

    def _make(self, shapes: layout.Shapes) -> None:
        for name, (shape, dtype) in shapes.items():
            setattr(self, name, self.threads.zeros(shape, dtype))

    def _make_slots(self, count: int) -> None:
        """Slots that belong to nobody."""
        self._make(layout.slot_shapes(count, self.machine.height))
        self.num_slots = count
        self._free_slots()

    def _make_more_slots(self, count: int) -> None:
        """New ones in place of those there are. Errors: MemoryError, and nothing has changed."""
        needed, had = (layout.bytes_of(layout.slot_shapes(slots, self.machine.height)) for slots in (count, self.num_slots))
        free = self.threads.free_bytes()
        if free is not None and needed - had > free:
            raise MemoryError(
                f"pictures of {self.num_envs} saved consoles need {needed / 2**30:.1f} GiB of GPU memory and {(free + had) / 2**30:.1f} GiB are "
                "free; use fewer environments"
            )
        for name in layout.slot_shapes(0, self.machine.height):
            delattr(self, name)
        self._make_slots(count)

    def _free_slots(self) -> None:
        self.threads.write(self.owner, np.full(self.num_slots, -1, np.int32))
        self.threads.write(self.slot_of, np.full(self.num_envs, -1, np.int32))

    def _waves(self) -> range:
        return range(0, self.num_envs, layout.WAVE)

    def _wave(self, first: int) -> int:
        """Consoles of the wave that begins with console `first`."""
        return min(self.num_envs - first, layout.WAVE)

    def _share_slots(self, first: int, wanted: Any) -> None:
        """Slots for those consoles of a wave that want one."""
        groups = -(-self._wave(first) // GROUP)
        self.threads.launch(
            pictures.share_thread, groups, first // GROUP, wanted, self.whole, self.slot_of, self.owner, self.slot_kind
        )

    def _draw(self, first: int) -> None:
        """Pictures of a wave from the logs that were handed on, and the grey levels of what is shown."""
        bands = -(-self.machine.height // BAND_LINES)
        self.threads.launch(
            pictures.draw_thread, self._wave(first) * 2 * bands, first, self.registers, self.frames, self.pictures
        )
        words = self._wave(first) * self.machine.height * LINE_WORDS
        self.threads.launch(
            pictures.grey_thread, words, first, self.shown, self.in_slot, self.slot_of, self.captured, self._grey, self.pictures
        )

    @property
    def _consoles(self) -> tuple:
        return self.registers, self.memory, self.past, self.whole

    def reset(self, seed: int | np.ndarray | None = None) -> tuple[Any, Any]:
        """Start new games everywhere; seeds as `VectorConsoles.reset`. Returns observations and counters [n, 3]."""
        n = self.num_envs
        seeds = None if seed is None else np.asarray(seed, np.int64) + (np.arange(n) if np.ndim(seed) == 0 else 0)
        load = np.ones(n, bool) if seeds is not None else ~self._loaded
        self._free_slots()
        if load.any():
            self._seed(load, np.arange(n) if seeds is None else seeds)
        if self.start_states == "cached":
            self.threads.write(self.over, np.ones(n, bool))
            self._recall()
            return self._shaped(self.observations), self.counters
        # As many of a group at a time as have a slot, so that every first picture is what it should be.
        share = self.num_slots // -(-n // GROUP)
        for turn in range(0, min(GROUP, n), share):
            if turn > 0:
                self._free_slots()
            place = np.arange(n) % GROUP
            self.threads.write(self.over, (place >= turn) & (place < turn + share))
            for first in self._waves():
                self._restart(first)
        self.threads.write(self.over, np.ones(n, bool))
        return self._shaped(self.observations), self.counters

    def _seed(self, load: np.ndarray, values: np.ndarray) -> None:
        """New generators for the consoles of `load` [n] bool, and loadROM on them."""
        seeds, draws = self.threads.fetch(self.seeds), self.threads.fetch(self.draws)
        seeds[:, load] = (values & 0xFFFFFFFF).astype(np.uint32)[load]
        draws[:, load] = 0
        powered_on = np.zeros(2, np.int64)
        mt19937.origin(self.machine.powered["random"][0, SYSTEM_STREAM].copy(), powered_on)
        seeds[SYSTEM_STREAM, load], draws[SYSTEM_STREAM, load] = powered_on
        self.threads.write(self.seeds, seeds)
        self.threads.write(self.draws, draws)
        self.threads.launch(
            environments.load_thread, self.num_envs, self._rom, self._program, *self._powered, self.threads.put(load),
            *self._consoles, self.seeds, self.draws, self.sticky, self.screens,
        )  # fmt: skip
        self._loaded[:] = True

    def _restart(self, first: int) -> None:
        """New episodes, played, where `over` says so in a wave."""
        wave, launch = self._wave(first), self.threads.launch
        self._share_slots(first, self.over)
        launch(
            environments.restart_thread, wave, first, self._rom, self._program, self.settings, self.over, *self._consoles,
            self.seeds, self.draws, self.sticky, self.shown, self.in_slot, self.slot_of, self.slot_kind, self.screens, self.captured,
            self.frames, self.elapsed, self.counters, self.incomplete,
        )  # fmt: skip
        self._draw(first)
        launch(
            pictures.begin_thread, wave * self.observations.shape[2], first, self.over, self.pictures, *self._resize, self.observations
        )

    def _recall(self) -> None:
        """Cached starts where `over` says so."""
        if self._starts is None:
            self._starts = self._played_starts()
        starts, launch = self._starts, self.threads.launch
        for first in self._waves():
            self._share_slots(first, self.over)
        launch(
            environments.recall_thread, self.num_envs, starts.registers, starts.memory, starts.past, starts.whole, starts.screens,
            self.over, *self._consoles, self.seeds, self.draws, self.slot_of, self.slot_kind, self.screens, self.captured, self.chosen,
            self.elapsed, self.counters,
        )  # fmt: skip
        launch(
            pictures.begin_cached_thread, self.num_envs * self.observations.shape[2], self.over, self.chosen,
            starts.observations, self.observations,
        )  # fmt: skip

    def _played_starts(self) -> DeviceConsoles:
        """Starts played exactly, one to a seed 0 .. num_starts - 1; start k has its pictures in slot k."""
        maker = DeviceConsoles.__new__(DeviceConsoles)
        maker.num_envs, maker.threads, maker.machine, maker.start_states = self.num_starts, self.threads, self.machine, "exact"
        maker.action_set, maker.image_shape = self.action_set, self.image_shape
        first = np.repeat(self.threads.fetch(self.registers)[:, :1], self.num_starts, axis=1)
        maker._allocate(self.threads.fetch(self.settings), first, 0, is_sticky=self._is_sticky)
        maker.reset(seed=0)
        return maker

    def step(self, actions: Any = None) -> DeviceStep:
        """One step of every game. `actions` [n] int64 on the device, places in `action_set`; None takes `self.actions`."""
        actions = self.actions if actions is None else actions
        for first in self._waves():
            self._play(first, 0, actions)
            self._share_slots(first, self.wanted)
            self._play(first, 1, actions)
            self._draw(first)
            self.threads.launch(
                pictures.observe_thread, self._wave(first) * self.observations.shape[2], first, self.shown, self.over, self.pictures,
                *self._resize, self.observations, self.final_observations,
            )  # fmt: skip
            if self.start_states == "exact":
                self._restart(first)
        if self.start_states == "cached":
            self._recall()
        return DeviceStep(
            self._shaped(self.observations), self.rewards, self.terminated, self.truncated, self.over,
            self._shaped(self.final_observations), self.counters, self.counts,
        )  # fmt: skip

    def _play(self, first: int, is_retry: int, actions: Any) -> None:
        self.threads.launch(
            environments.step_thread, self._wave(first), first, is_retry, self._rom, self._program, self.settings, self._action_set,
            actions, *self._consoles, self.seeds, self.draws, self.sticky, self.wanted, self.shown, self.in_slot, self.slot_of,
            self.slot_kind, self.screens, self.captured, self.decisions, self.frames, self.elapsed, self.counts, self.rewards,
            self.terminated, self.truncated, self.over, self.counters, self.incomplete,
        )  # fmt: skip

    def _shaped(self, planes: Any) -> Any:
        return planes.reshape(self.num_envs, *self.image_shape)

    def num_incomplete(self) -> int:
        """Observations so far that may lack lines of an older picture, because more consoles of a group needed a slot than it has.

        What is saved of such a console has black lines as well.
        """
        return int(self.threads.fetch(self.incomplete).sum())

    def get_state(self) -> dict[str, np.ndarray]:
        """Everything that decides the future, in the host's memory, named and shaped as on the CPU.

        Pictures are drawn on the CPU, by playing two frames again there.
        """
        fetch = self.threads.fetch
        random = streams_of(fetch(self.seeds), fetch(self.draws))
        if self._is_sticky:
            random[:, STICKY_STREAM] = fetch(self.sticky)
        arrays = (self.past, self.whole, self.slot_of, self.screens, self.captured)
        rows, captured = rows_with_pictures(
            fetch(self.registers), fetch(self.memory), random, *(fetch(array) for array in arrays), rom_code.interpreted(self.machine.rom)
        )
        return {
            **{f"console.{name}": array for name, array in rows.items()},
            "observations": fetch(self.observations).reshape(self.num_envs, *self.image_shape),
            "captured": captured,
            "elapsed": fetch(self.elapsed),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Take what `get_state` or a `VectorConsoles` of the same settings gave. Errors: ValueError, MemoryError, and nothing has changed.

        Every console has a slot from here on, because each comes with pictures that need not be those of its last two frames.
        """
        taken = self._checked(state)
        found = origins(taken["console.random"], sticky=not self._is_sticky)
        n, slots = self.num_envs, layout.num_slots(self.num_envs, everyone=True)
        if slots > self.num_slots:
            self._make_more_slots(slots)
        rows = {name.removeprefix("console."): array for name, array in taken.items() if name.startswith("console.")}
        registers, memory, screen, random = rows_to_device(rows)
        write = self.threads.write
        for array, values in ((self.registers, registers), (self.memory, memory), (self.seeds, found[0]), (self.draws, found[1])):
            write(array, values)
        if self._is_sticky:
            write(self.sticky, random[:, STICKY_STREAM])
        write(self.counters, taken["console.state"][:, [LIVES, FRAME_NUMBER, EPISODE_FRAME_NUMBER]])
        for array, values in ((self.screens, screen), (self.captured, taken["captured"])):
            write(array[:n], values)
        write(self.whole, np.full(n, NOT_WHOLE, np.uint8))
        write(self.slot_of, np.arange(n, dtype=np.int32))
        write(self.owner, np.where(np.arange(slots) < n, np.arange(slots), -1).astype(np.int32))
        write(self.slot_kind, np.zeros(slots, np.uint8))
        for name in ("observations", "elapsed"):
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
        threshold = taken["console.state"][:, STICKY_THRESHOLD : STICKY_THRESHOLD + 2]
        if (threshold.any(axis=1) != self._is_sticky).any():
            here, there = ("sticky", "not") if self._is_sticky else ("not sticky", "sticky")
            raise ValueError(f"saved consoles: actions are {here} here and {there} there; use the settings they were saved with")
        return taken
