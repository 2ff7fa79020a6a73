"""`Arcade` on a GPU: same arguments, episodes and states, with device arrays instead of NumPy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .. import engine_cpu
from ..arcade import STICKY, Arcade, as_rows, check_arguments, check_per_console, checked_switch
from ..state import (
    CPU_JAMMED,
    DIFFICULTY,
    EPISODE_FRAME_NUMBER,
    FRAME_NUMBER,
    LINE_WORDS,
    LIVES,
    MODE,
    PRESSED_RESET,
    PRESSED_SELECT,
    TERMINAL,
    VERSION,
)
from . import arcade_kernels, engine, layout
from .games import game_on, threads_for
from .transfer import lasting_words, rows_from_device, rows_to_device

ROWS = ("state", "memory", "screen", "random")  # arrays of a saved state with a row per console


class DeviceArcade(Arcade):
    """Consoles on the threads of a device; created by ``Arcade(..., device="cuda")``.

    Properties return views of device arrays, valid until the next call, unless stated otherwise. Every frame
    is drawn as it is emulated, because the TIA log is not kept between kernels.

    Errors: those of `Arcade`, `driver.DeviceUnavailable`, and MemoryError; each message is one line.
    """

    def __init__(
        self,
        game: str | Path,
        num_consoles: int,
        repeat_action_probability: float = 0.0,
        *,
        threads: engine.GpuThreads | engine.HostThreads | None = None,
    ):
        check_arguments(game, num_consoles, repeat_action_probability)
        threads = threads or engine.GpuThreads()
        self.machine = engine_cpu.build_machine(game, repeat_action_probability)
        self.threads = threads_for(threads, self.machine)
        self.num_consoles = num_consoles
        self.height = self.machine.height
        free = self.threads.free_bytes()
        if free is not None:
            engine.check_fits(num_consoles, lambda n: layout.arcade_bytes(n, self.height), free)
        n = num_consoles
        self._game = game_on(self.threads, self.machine)
        self._consoles = layout.zeros(layout.Consoles, layout.console_shapes(n, self.height), self.threads)
        self._rewards, self._actions_here = (self.threads.zeros((n,), kind) for kind in (np.int32, np.int64))
        self.threads.write(
            self._consoles.registers, np.repeat(lasting_words(self.machine.powered["state"]), n, axis=1)
        )
        self.load(np.ones(n, bool), np.zeros(n, np.int64))

    def __reduce__(self) -> NoReturn:
        """Refuse copies: the arrays are in the memory of one process's device. Errors: TypeError."""
        raise TypeError("consoles on a GPU cannot be pickled or copied; use get_state and set_state")

    def load(self, mask: np.ndarray, seeds: np.ndarray) -> None:
        """Power on the consoles of `mask`, seed and reset them: ale-py's loadROM, in the current mode."""
        put = self.threads.put
        loading, seeds = put(np.asarray(mask, bool)), put(np.asarray(seeds, np.int64))
        self.threads.launch(
            arcade_kernels.power_thread, self.num_consoles, self._game, self._consoles, loading, seeds
        )
        self._paint()

    def _reset(self, mask: np.ndarray) -> None:
        self.threads.launch(
            arcade_kernels.reset_thread, self.num_consoles, self._game, self._consoles, self.threads.put(mask)
        )
        self._paint()

    def _paint(self) -> None:
        """Paint what the consoles have recorded."""
        self.threads.launch_blocks(arcade_kernels.paint_block, self.num_consoles, self._consoles)

    def act(self, actions: Any, actions_b: Any | None = None, strengths: Any | None = None) -> Any:
        """Emulate one video frame with ale-py action ids, int `[n]`; return rewards, a device int32 `[n]`.

        Actions that are already on the device are not checked on the host: a value outside 0-17 acts as 0.
        Errors: ValueError for actions of player B and for strengths, which exist on the CPU only.
        """
        if strengths is not None:
            raise ValueError("strengths of actions exist on the CPU only; use device='cpu'")
        if actions_b is not None:
            raise ValueError("player B's controls are connected on the CPU only; use device='cpu'")
        actions = self.threads.take(actions, self._actions_here)
        self.threads.launch(
            arcade_kernels.act_thread, self.num_consoles, self._game, self._consoles, actions, self._rewards
        )
        self._paint()
        return self.threads.share(self._rewards)

    def press(self, *, select: bool | np.ndarray = False, reset: bool | np.ndarray = False) -> None:
        select = checked_switch("select", select, self.num_consoles)
        reset = checked_switch("reset", reset, self.num_consoles)
        self._write_register(PRESSED_SELECT, select)
        self._write_register(PRESSED_RESET, reset)

    def _register(self, word: int) -> Any:
        return self.threads.share(self._consoles.registers[word])

    @property
    def ram(self) -> Any:
        """RIOT RAM: uint8 `[n, 128]`, a view."""
        return self.threads.share(self._consoles.memory)[:, :128]

    @property
    def screen(self) -> Any:
        """The current frames as palette indices: uint8 `[n, height, 160]`, a copy."""
        pictures = self.threads.zeros((self.num_consoles, self.height * LINE_WORDS), np.uint64)
        words = self.num_consoles * self.height * LINE_WORDS
        self.threads.launch(arcade_kernels.show_thread, words, self._consoles, pictures)
        return self.threads.share(
            pictures.view(np.uint8).reshape(self.num_consoles, self.height, 8 * LINE_WORDS)
        )

    @property
    def lives(self) -> Any:
        return self._register(LIVES)

    @property
    def game_over(self) -> Any:
        return self._register(TERMINAL) != 0

    @property
    def halted(self) -> Any:
        return self._register(CPU_JAMMED) != 0

    @property
    def frame_number(self) -> Any:
        return self._register(FRAME_NUMBER)

    @property
    def episode_frame_number(self) -> Any:
        return self._register(EPISODE_FRAME_NUMBER)

    @property
    def mode(self) -> Any:
        return self._register(MODE)

    @mode.setter
    def mode(self, mode: int | np.ndarray) -> None:
        if not np.isin(mode, self.modes).all():
            raise ValueError(f"mode={mode}: {self.machine.game} has {self.modes}")
        check_per_console("mode", mode, self.num_consoles)
        self._write_register(MODE, mode)

    @property
    def difficulty(self) -> Any:
        return self._register(DIFFICULTY)

    @difficulty.setter
    def difficulty(self, difficulty: int | np.ndarray) -> None:
        if not np.isin(difficulty, self.difficulties).all():
            raise ValueError(f"difficulty={difficulty}: {self.machine.game} has {self.difficulties}")
        check_per_console("difficulty", difficulty, self.num_consoles)
        self._write_register(DIFFICULTY, difficulty)

    def _write_register(self, word: int, values: int | np.ndarray) -> None:
        self.threads.write(self._consoles.registers[word], np.broadcast_to(values, (self.num_consoles,)))

    def get_state(self, consoles: int | np.ndarray | slice = slice(None)) -> dict[str, np.ndarray]:
        """Like `Arcade.get_state`; returns arrays in host memory."""
        every = np.arange(self.num_consoles)
        rows = every[as_rows(consoles, self.num_consoles)]
        part = self._consoles if np.array_equal(rows, every) else self._gathered(rows)
        saved = rows_from_device(layout.Consoles(*(self.threads.fetch(array) for array in part)))
        saved["version"] = np.array(VERSION)
        saved["md5"] = self.machine.checksum()
        return saved

    def _gathered(self, rows: np.ndarray) -> layout.Consoles:
        """Copy the consoles `rows` [k] to new arrays on the device."""
        shapes = layout.console_shapes(len(rows), self.height)
        part: layout.Consoles = layout.zeros(layout.Consoles, shapes, self.threads)
        if len(rows):
            self.threads.launch_blocks(
                arcade_kernels.gather_block, len(rows), self._consoles, self.threads.put(rows), part
            )
        return part

    def _restore(self, saved: dict[str, np.ndarray], rows: np.ndarray | slice, count: int) -> None:
        """Copy saved rows to the `count` consoles `rows`, cyclically. Only these are sent to the device.

        No state replaces an arcade's probability of sticky actions.
        """
        if not count:
            return
        rows = np.arange(self.num_consoles)[rows]
        state = saved["state"].copy()
        state[:, STICKY] = self.machine.powered["state"][0, STICKY]
        saved = {**saved, "state": state}
        if len(np.unique(rows)) < len(rows):  # blocks run in any order; of equal rows, the last one counts
            rows, last = np.unique(rows[::-1], return_index=True)
            saved = {name: saved[name][-1 - last] for name in ROWS}
        part = rows_to_device(saved)
        if len(part.memory) == self.num_consoles and np.array_equal(rows, np.arange(self.num_consoles)):
            for array, values in zip(self._consoles, part, strict=True):
                self.threads.write(array, values)
            return
        sent = layout.Consoles(*map(self.threads.put, part))
        self.threads.launch_blocks(
            arcade_kernels.scatter_block, len(rows), sent, self.threads.put(rows), self._consoles
        )
