"""`DeviceConsoles`: `VectorConsoles` in GPU memory, with byte-identical episodes.

Inputs and outputs of a step stay on the device, and `step` does not wait for it. `reset` and `step` return
the arrays themselves, which the next step overwrites: copy what you keep. Observations and states are those
of `VectorConsoles`, so an episode can move between CPU and GPU. `layout.py` lists the arrays and their sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import engine_cpu, preprocess
from ..arcade import as_array
from ..settings import VectorSettings
from ..state import (
    DIFFICULTY,
    EPISODE_FRAME_NUMBER,
    FRAME_NUMBER,
    LINE_WORDS,
    LIVES,
    MEMORY_BYTES,
    MODE,
    ROW_WORDS,
    with_all_words,
)
from ..state_check import check_captured, check_playing, check_rom
from ..vector import VectorConsoles
from . import engine, environments, layout, observations
from .games import game_on, threads_for
from .transfer import captured_of, lasting_words, levels_of, places_of, rows_from_device, rows_to_device


class DeviceStep(NamedTuple):
    """Outputs of a step: arrays on the device, valid until the next step."""

    observations: Any  # uint8 [n, stack, height, width]
    rewards: Any  # int32 [n]
    terminated: Any  # bool [n]
    truncated: Any  # bool [n]
    over: Any  # bool [n]: the episode ended and a new one has started
    final_observations: Any
    counters: Any  # int32 [n, 3]: lives, frame number, episode frame number
    counts: Any  # int32 [n, 4]: reward, frames of this step; the rest is internal


def size_of(how: VectorSettings, height: int) -> layout.Size:
    """Return the sizes of arrays of consoles whose frames have `height` lines."""
    channels = len(preprocess.level_tables(how.obs_type, False))
    return layout.Size(height if how.draws else 0, channels, how.stack_num, how.frame_bytes)


class DeviceConsoles:
    """`num_envs` consoles on the threads of a device, with the settings of `VectorSettings`.

    With `start_states` ``exact``, every episode starts as in ale-py. With ``cached``, every episode starts
    from one of `num_starts` such starts, which are played once; with the file of a recording, from one of
    `num_starts` of its states, which the CPU replays.

    Errors: MemoryError that says how many consoles fit; ValueError as in `VectorConsoles`.
    """

    def __init__(
        self,
        game: str | Path,
        num_envs: int,
        threads: engine.GpuThreads | engine.HostThreads,
        **settings: Any,
    ):
        self.settings = how = VectorSettings(**settings)
        self.machine = machine = engine_cpu.build_machine(game, how.repeat_action_probability)
        self.threads = threads_for(threads, machine)
        self.start_states = how.start_states
        self._tables, *weights = how.resize_tables(machine.height, pal=machine.pal)
        self.size = size_of(how, machine.height)
        self.action_set = how.action_set(machine.row)
        put = self.threads.put
        self._game = game_on(self.threads, machine)
        self._how = layout.How(put(how.words(self.action_set).astype(np.int32)), put(self.action_set))
        resize = preprocess.Resize(*weights)
        flat = resize._replace(row_weight=resize.row_weight.ravel())
        self._picture = layout.Picture(put(self._tables), *map(put, flat))
        powered = lasting_words(machine.powered["state"])
        self._switches = how.switches(machine.row)
        powered[[MODE, DIFFICULTY], 0] = self._switches
        self._starts: DeviceConsoles | None = None
        self._allocate(num_envs, powered)
        limit = np.full(num_envs, how.max_num_frames_per_episode, np.int32)
        self.threads.write(self.outcome.elapsed, limit)
        if how.start_states not in ("exact", "cached"):
            self._starts = self._recorded_starts(game, settings)

    def _allocate(self, n: int, powered: np.ndarray) -> None:
        """Allocate arrays of `n` consoles; `powered` [W, 1] are the registers of each."""
        free = self.threads.free_bytes()
        if free is not None:
            engine.check_fits(n, lambda count: layout.environment_bytes(count, self.size), free)
        self.num_envs = n
        self.consoles = layout.zeros(layout.Consoles, layout.console_shapes(n, self.size.lines), self.threads)
        self.seen = layout.zeros(layout.Seen, layout.seen_shapes(n, self.size), self.threads)
        self.outcome = layout.zeros(layout.Outcome, layout.outcome_shapes(n), self.threads)
        self.threads.write(self.consoles.registers, np.repeat(powered, n, axis=1))
        self._loaded = np.zeros(n, bool)

    def reset(self, seed: int | np.ndarray | None = None) -> tuple[Any, Any]:
        """Start a new episode on every console; return observations and counters [n, 3].

        `seed` is as in `VectorConsoles.reset`.
        """
        n = self.num_envs
        seeds = (
            None if seed is None else np.asarray(seed, np.int64) + (np.arange(n) if np.ndim(seed) == 0 else 0)
        )
        load = np.ones(n, bool) if seeds is not None else ~self._loaded
        if load.any():
            self._load(load, np.arange(n) if seeds is None else seeds)
        self.threads.write(self.outcome.over, np.ones(n, bool))
        self._begin_episodes()
        return self._shaped(self.seen.observations), self.outcome.counters

    def _load(self, load: np.ndarray, seeds: np.ndarray) -> None:
        """Run loadROM on the consoles that `load` [n] bool selects."""
        loading, seeds = self.threads.put(load), self.threads.put((seeds & 0xFFFFFFFF).astype(np.int64))
        self.threads.launch(
            environments.load_thread, self.num_envs, self._game, self.consoles, loading, seeds
        )
        self._paint()
        self._loaded[:] = True

    def _begin_episodes(self) -> None:
        """Start new episodes on the consoles that `outcome.over` selects."""
        n, launch, launch_blocks = self.num_envs, self.threads.launch, self.threads.launch_blocks
        if self.start_states == "exact":
            launch(
                environments.restart_thread, n, self._game, self._how, self.consoles, self.seen, self.outcome
            )
            self._paint()
            launch_blocks(observations.begin_block, n, self._picture, self.consoles, self.seen, self.outcome)
            return
        if self._starts is None:
            self._starts = self._played_starts()
        starts = self._starts
        launch(environments.choose_thread, n, self.consoles, starts.consoles, self.outcome)
        launch_blocks(
            environments.recall_block, n, self.consoles, self.seen, starts.consoles, starts.seen, self.outcome
        )

    def _paint(self) -> None:
        """Paint what the consoles have recorded."""
        if self.size.lines:
            self.threads.launch_blocks(environments.paint_block, self.num_envs, self.consoles)

    def _played_starts(self) -> DeviceConsoles:
        """Play exact starts, one for each seed 0 .. num_starts - 1."""
        maker = self._for_starts()
        maker.reset(seed=0)
        return maker

    def _recorded_starts(self, game: str | Path, settings: dict[str, Any]) -> DeviceConsoles:
        """Copy the starts that the CPU takes from a recording."""
        host = VectorConsoles(game, 1, **settings)
        assert host.starts is not None
        state, memory, screen, captured, observations = host.starts
        host.close()
        n, maker = self.settings.num_starts, self._for_starts()
        maker.set_state(
            {
                "console.state": state,
                "console.memory": memory,
                "console.screen": screen,
                "console.random": np.zeros((n, 3, 625), np.uint32),  # the consoles keep their own
                "observations": observations.reshape(n, *self.settings.stack_shape),
                "captured": captured,
                "elapsed": np.zeros(n, np.int32),
            }
        )
        return maker

    def _for_starts(self) -> DeviceConsoles:
        """Return further consoles with the same settings, to hold the starts."""
        maker = DeviceConsoles.__new__(DeviceConsoles)
        maker.__dict__.update(self.__dict__)
        maker.start_states = "exact"
        maker._allocate(self.settings.num_starts, self.threads.fetch(self.consoles.registers)[:, :1])
        return maker

    def step(self, actions: Any = None) -> DeviceStep:
        """Play one step on every console.

        `actions` [n] int64 on the device are indices into `action_set`; None uses `outcome.actions`.
        """
        outcome = self.outcome if actions is None else self.outcome._replace(actions=actions)
        played = (self._how, self.consoles, self.seen, outcome)
        self.threads.launch(environments.step_thread, self.num_envs, self._game, *played)
        self._paint()
        self.threads.launch_blocks(observations.observe_block, self.num_envs, self._picture, *played)
        self._begin_episodes()
        return DeviceStep(
            self._shaped(self.seen.observations), outcome.rewards, outcome.terminated, outcome.truncated,
            outcome.over, self._shaped(self.seen.final_observations), outcome.counters, outcome.counts,
        )  # fmt: skip

    @property
    def _captures(self) -> int:
        """Number of captured frames per console in a saved state."""
        return 3 if self.size.lines else 0

    def _shaped(self, planes: Any) -> Any:
        return planes.reshape(self.num_envs, *self.settings.stack_shape)

    def _fetched_rows(self) -> dict[str, np.ndarray]:
        return rows_from_device(layout.Consoles(*(self.threads.fetch(array) for array in self.consoles)))

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the complete state in host memory, with names and shapes as on the CPU."""
        fetch = self.threads.fetch
        rows = self._fetched_rows()
        return {
            **{f"console.{name}": array for name, array in rows.items()},
            "observations": fetch(self.seen.observations).reshape(self.num_envs, *self.settings.stack_shape),
            "captured": self._captured(rows),
            "elapsed": fetch(self.outcome.elapsed),
            "md5": np.tile(self.machine.checksum(), (self.num_envs, 1)),
        }

    def _captured(self, rows: dict[str, np.ndarray]) -> np.ndarray:
        """Return captured frames in the CPU's layout; RAM observations have none."""
        if not self._captures:
            return np.zeros((self.num_envs, 0, self.machine.height * LINE_WORDS), np.uint64)
        return captured_of(rows, self.threads.fetch(self.seen.second), self.threads.fetch(self.seen.kept))

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore a state from `get_state`, or from a `VectorConsoles` with the same settings.

        Errors: ValueError; the consoles are then unchanged.
        """
        self.restore(self.read_state(state))

    def read_state(self, state: dict[str, np.ndarray]) -> list[tuple[Any, np.ndarray]]:
        """Check a saved state; return arrays of the device and their values, for `restore`.

        Errors: ValueError.
        """
        taken = self._checked(state)
        consoles = rows_to_device(
            {name: taken[f"console.{name}"] for name in ("state", "memory", "screen", "random")}
        )
        settled = rows_from_device(consoles)
        second, kept = np.zeros(self.num_envs, np.uint8), np.zeros((self.num_envs, 0), np.uint64)
        if self._captures:
            second, kept = places_of(settled, taken["captured"])
        seen, outcome = self.seen, self.outcome
        return [
            *zip(self.consoles, consoles, strict=True),
            (seen.second, second),
            (seen.kept, kept),
            (seen.observations, taken["observations"]),
            (seen.levels, levels_of(taken["captured"], self._tables, pools=self.settings.maxpool)),
            (outcome.elapsed, taken["elapsed"]),
            (outcome.counters, taken["console.state"][:, [LIVES, FRAME_NUMBER, EPISODE_FRAME_NUMBER]]),
        ]

    def restore(self, read: list[tuple[Any, np.ndarray]]) -> None:
        """Restore what `read_state` has returned."""
        for array, values in read:
            self.threads.write(array, values)
        self._loaded[:] = True

    def _checked(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Check a saved state and return its arrays with the types of `get_state`.

        Errors: ValueError if an array is missing, has the wrong shape or holds a value out of range, or if
        the state has another ROM or other settings.
        """
        n, words = self.num_envs, self.machine.height * LINE_WORDS
        screen = 2 * self.size.lines * LINE_WORDS
        expected = {
            "console.state": ((n, ROW_WORDS), np.int32),
            "console.memory": ((n, MEMORY_BYTES), np.uint8),
            "console.screen": ((n, screen), np.uint64),
            "console.random": ((n, 3, 625), np.uint32),
            "observations": ((n, *self.settings.stack_shape), np.uint8),
            "captured": ((n, self._captures, words), np.uint64),
            "elapsed": ((n,), np.int32),
        }
        if not isinstance(state, dict):
            raise ValueError(f"saved consoles are a {type(state).__name__}; expected the dict of get_state")
        taken = {}
        state = with_all_words(state, "console.state")
        for name, (shape, dtype) in expected.items():
            taken[name] = _integers(name, state.get(name), shape, np.dtype(dtype))
        check_rom(state, self.machine)
        rows = {name.removeprefix("console."): array for name, array in taken.items()}
        most_frames = self.settings.frame_limit + self.settings.frameskip
        check_playing(rows, taken["elapsed"], self.machine, self._switches, most_frames)
        check_captured(taken["captured"], self.settings)
        return taken


def _integers(name: str, saved: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return a saved array of integers with a shape and type. Errors: ValueError."""
    array = as_array(f"saved consoles: {name}", saved)
    if array.shape != shape or array.dtype.kind not in "iub":
        got = None if saved is None else f"{array.dtype} {array.shape}"
        raise ValueError(f"saved consoles: {name} is {got}; expected {dtype} {shape}")
    if array.dtype.itemsize == dtype.itemsize:
        return np.ascontiguousarray(array).view(dtype)  # unsigned integers may have been saved as signed
    same = array.astype(dtype)
    if (same != array).any():
        raise ValueError(f"saved consoles: {name} holds values that {dtype} cannot; expected {dtype} {shape}")
    return same
