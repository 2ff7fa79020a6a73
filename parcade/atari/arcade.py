"""`Arcade`: raw Atari 2600 consoles, played frame by frame, identical to ale-py 0.12.1.

`Arcade(game, n)` corresponds to ale-py's loadROM on n consoles, including the reset that loadROM performs.
`reset()` corresponds to reset_game. `reset(seed=s)` sets random_seed, reloads the ROM and resets. `act`
corresponds to ale-py's act with frame_skip 1. In addition, `act` takes the actions of a second player, and
`press` holds the console's switches.
"""

import functools
import textwrap
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from . import engine_cpu, games, joystick, memory
from .state import (
    CPU_JAMMED,
    DIFFICULTY,
    EPISODE_FRAME_NUMBER,
    FRAME_NUMBER,
    LINE_WORDS,
    LIVES,
    MODE,
    PRESSED_RESET,
    PRESSED_SELECT,
    RAM_BYTES,
    STICKY_THRESHOLD,
    TERMINAL,
    VERSION,
    allocate,
    bytes_per_console,
    with_all_words,
)
from .state_check import check_rom, check_rows
from .threads.callers import Callers

STICKY = slice(STICKY_THRESHOLD, STICKY_THRESHOLD + 2)


class Arcade:
    """`num_consoles` consoles that run one ROM, given by game name or path.

    They run on the CPU; `DeviceArcade` (`cuda/arcade.py`) runs them on a GPU. A ROM that is not a known game
    runs without rules. `rules_instead` replaces keys of the game's row of `games.json`, see `games.py`.
    Calls from several threads wait for each other.
    Errors: ValueError for an unknown game, for wrong arguments, and for more consoles than fit into
    memory.
    """

    def __init__(
        self,
        game: str | Path,
        num_consoles: int,
        repeat_action_probability: float = 0.0,
        rules_instead: Mapping[str, Any] | None = None,
    ):
        check_arguments(game, num_consoles, repeat_action_probability)
        self._made_from = (game, num_consoles, repeat_action_probability, rules_instead)
        self.machine = engine_cpu.build_machine(game, repeat_action_probability, rules_instead)
        self._code = self.machine.code_renewal()
        self._callers = Callers()
        self.num_consoles = num_consoles
        self.height = self.machine.height
        memory.check_fits(num_consoles, bytes_per_console(self.height))
        self.arrays: dict[str, np.ndarray] = allocate(num_consoles, self.height)
        state = self.arrays["state"]
        # Made once: for one console, NumPy's views and conversions take as long as a tenth of a frame.
        self._rows = (state, self.arrays["memory"], self.arrays["screen"], self.arrays["random"])
        self._terminal = state[:, TERMINAL]
        self._actions = np.zeros((num_consoles, 2), np.int64)
        self._actions_a, self._actions_b = self._actions.T
        self._full_turns = np.zeros(num_consoles, np.int64)
        state[:] = self.machine.powered["state"]
        self.load(np.ones(num_consoles, bool), np.zeros(num_consoles, np.int64))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as the arguments and the state: addresses of machine code hold in one process."""
        return _restored, (type(self), self._made_from, self.get_state())

    @property
    def actions(self) -> list[int]:
        """ale-py's minimal action set; all 18 actions for an unknown ROM."""
        return list(self.machine.row.get("actions", range(18)))

    @property
    def modes(self) -> list[int]:
        """Available modes of the game."""
        return games.modes(self.machine.row)

    @property
    def difficulties(self) -> list[int]:
        """Available difficulties of the game: bit 0 is the left switch, bit 1 the right switch."""
        return list(self.machine.row.get("difficulties", [0]))

    def load(self, mask: np.ndarray, seeds: np.ndarray) -> None:
        """Power on the consoles of `mask`, seed and reset them: ale-py's loadROM, in the current mode."""
        powered = self.machine.powered
        state = self.arrays["state"]
        with self._callers.lock:
            for e in np.flatnonzero(mask):
                engine_cpu.load_console(
                    int(e), *self._rows, powered["state"], powered["memory"], powered["random"],
                    self.machine.rom, self.machine.program,
                    int(seeds[e]), int(state[e, MODE]), int(state[e, DIFFICULTY]),
                )  # fmt: skip

    def reset(self, seed: int | np.ndarray | None = None, mask: np.ndarray | None = None) -> None:
        """Start new episodes: ale-py's reset_game, preceded by random_seed and loadROM if a seed is given.

        seed: one integer for all consoles, or int `[n]`. mask: bool `[n]`, the consoles to reset.
        """
        chosen = np.ones(self.num_consoles, bool) if mask is None else np.asarray(mask)
        if chosen.shape != (self.num_consoles,) or chosen.dtype != np.bool_:
            raise ValueError(f"mask is {chosen.dtype} {chosen.shape}; expected bool ({self.num_consoles},)")
        if seed is not None:
            seeds = np.asarray(seed)
            if seeds.dtype.kind not in "iu" or seeds.shape not in ((), (self.num_consoles,)):
                raise ValueError(
                    f"seed={in_short(seed)}: expected an integer, or {self.num_consoles} integers"
                )
            self.load(chosen, np.broadcast_to(seeds.astype(np.int64) & 0xFFFFFFFF, (self.num_consoles,)))
        self._reset(chosen)

    def _reset(self, mask: np.ndarray) -> None:
        with self._callers.lock:
            for e in np.flatnonzero(mask):
                engine_cpu.reset_console(int(e), *self._rows, self.machine.rom, self.machine.program)

    def act(
        self,
        actions: int | np.ndarray,
        actions_b: int | np.ndarray | None = None,
        strengths: float | np.ndarray | None = None,
    ) -> np.ndarray:
        """Play one frame with ale-py action ids (0-17), int `[n]`; return the rewards, int32 `[n]`.

        actions: player A's, who plays ale-py's games. actions_b: player B's, with the other joystick or
        paddle; None leaves it alone. A single integer is the action of all consoles. Rewards are player A's.
        A console whose episode is over does not run, and its reward is 0.
        strengths: how far player A's actions turn a paddle, as a part of a full step, float `[n]` or one for
        all; None turns full steps. Only their absolute values count, limited to 1.
        """
        paddle = self._full_turns if strengths is None else self._paddle_bits(strengths)
        both = self._actions
        rewards = np.zeros(self.num_consoles, np.int32)
        with self._callers.lock:
            _copy_actions("actions", actions, self._actions_a)
            if actions_b is None:
                self._actions_b.fill(0)
            else:
                _copy_actions("actions_b", actions_b, self._actions_b)
            self._code.check()
            if not engine_cpu.act_many(
                *self._rows, self.machine.rom, self.machine.program, both, paddle, rewards
            ):
                raise ValueError(f"actions from {both.min()} to {both.max()}; expected 0 to 17")
        return rewards

    def _paddle_bits(self, strengths: Any) -> np.ndarray:
        """Return `joystick.paddle_bits` of each console, int64 `[n]`. Errors: ValueError."""
        given = as_array("strengths", strengths)
        if given.shape not in ((), (self.num_consoles,)) or given.dtype.kind not in "fiu":
            raise ValueError(f"strengths={in_short(strengths)}: expected a number, or {self.num_consoles}")
        if not np.isfinite(given).all():
            raise ValueError(f"strengths={in_short(strengths)}: expected finite numbers")
        return np.broadcast_to(joystick.paddle_bits(given), (self.num_consoles,)).copy()

    def press(self, *, select: bool | np.ndarray = False, reset: bool | np.ndarray = False) -> None:
        """Hold the switches SELECT and RESET, bool `[n]`, in all frames until the next call or `reset`.

        A cartridge reads its switches once per frame, or every few frames. RESET makes it start over without
        a system reset. The game's rules do not notice that: `game_over` and the rewards continue the episode
        that `reset` started. Errors: ValueError.
        """
        select = checked_switch("select", select, self.num_consoles)
        reset = checked_switch("reset", reset, self.num_consoles)
        self.arrays["state"][:, PRESSED_SELECT] = select
        self.arrays["state"][:, PRESSED_RESET] = reset

    @property
    def ram(self) -> np.ndarray:
        """RIOT RAM, uint8 `[n, 128]`. This is a view: writing to it changes the consoles."""
        return self.arrays["memory"][:, :RAM_BYTES]

    @property
    def screen(self) -> np.ndarray:
        """Palette indices of the current frame, uint8 `[n, height, 160]`, as a copy."""
        pictures = np.empty((self.num_consoles, self.height * LINE_WORDS), np.uint64)
        with self._callers.lock:
            engine_cpu.show_many(self.arrays["state"], self.arrays["screen"], pictures)
        return pictures.view(np.uint8).reshape(self.num_consoles, self.height, 160)

    @property
    def lives(self) -> np.ndarray:
        """Lives, int32 `[n]`."""
        return self.arrays["state"][:, LIVES].copy()

    @property
    def game_over(self) -> np.ndarray:
        """Whether each episode is over, bool `[n]`."""
        return self._terminal.astype(bool)

    @property
    def halted(self) -> np.ndarray:
        """Whether the 6507 has executed an opcode that halts it, bool `[n]`. Only a reset restarts it."""
        is_halted: np.ndarray = self.arrays["state"][:, CPU_JAMMED] != 0
        return is_halted

    @property
    def frame_number(self) -> np.ndarray:
        """Frames played since the ROM was loaded, int32 `[n]`."""
        return self.arrays["state"][:, FRAME_NUMBER].copy()

    @property
    def episode_frame_number(self) -> np.ndarray:
        """Frames played since the last reset, int32 `[n]`."""
        return self.arrays["state"][:, EPISODE_FRAME_NUMBER].copy()

    @property
    def mode(self) -> np.ndarray:
        """Game mode, int32 `[n]`. A new mode takes effect at the next reset."""
        return self.arrays["state"][:, MODE].copy()

    @mode.setter
    def mode(self, mode: int | np.ndarray) -> None:
        if not np.isin(mode, self.modes).all():
            raise ValueError(f"mode={in_short(mode)}: {self.machine.game} has modes {self.modes}")
        check_per_console("mode", mode, self.num_consoles)
        self.arrays["state"][:, MODE] = mode

    @property
    def difficulty(self) -> np.ndarray:
        """Difficulty switches, int32 `[n]`. A new setting takes effect at the next frame."""
        return self.arrays["state"][:, DIFFICULTY].copy()

    @difficulty.setter
    def difficulty(self, difficulty: int | np.ndarray) -> None:
        if not np.isin(difficulty, self.difficulties).all():
            raise ValueError(
                f"difficulty={in_short(difficulty)}: {self.machine.game} has difficulties {self.difficulties}"
            )
        check_per_console("difficulty", difficulty, self.num_consoles)
        self.arrays["state"][:, DIFFICULTY] = difficulty

    def get_state(self, consoles: int | np.ndarray | slice = slice(None)) -> dict[str, np.ndarray]:
        """Return copies of the rows of some consoles (`state.py`), with `version` and the ROM's `md5`.

        The state is exact between any two frames: after `set_state`, play continues identically, with the
        probability of sticky actions of the arcade that continues.
        """
        rows = as_rows(consoles, self.num_consoles)
        with self._callers.lock:
            saved = {name: array[rows].copy() for name, array in self.arrays.items()}
        saved["version"] = np.array(VERSION)
        saved["md5"] = self.machine.checksum()
        return saved

    def set_state(
        self, saved: dict[str, np.ndarray], consoles: int | np.ndarray | slice = slice(None)
    ) -> None:
        """Restore rows returned by `get_state`; of a console that is chosen twice, the last row counts.

        Errors: ValueError for another version or ROM, for wrong shapes and for invalid contents.
        """
        rows = as_rows(consoles, self.num_consoles)
        count = len(range(self.num_consoles)[rows] if isinstance(rows, slice) else rows)
        self._restore(checked_rows(saved, count, self.machine), rows, count)

    def _restore(self, saved: dict[str, np.ndarray], rows: np.ndarray | slice, count: int) -> None:
        """Copy saved rows to the `count` consoles `rows`, cyclically.

        No state replaces an arcade's probability of sticky actions.
        """
        turns = None if len(saved["state"]) == count else np.arange(count) % len(saved["state"])
        with self._callers.lock:
            for name, array in self.arrays.items():
                array[rows] = saved[name] if turns is None else saved[name][turns]
            self.arrays["state"][rows, STICKY] = self.machine.powered["state"][0, STICKY]

    def seed_from(self, arcade: "Arcade", first: int, last: int) -> None:
        """Copy consoles `first` .. `last` - 1 of another arcade to the consoles of this one, cyclically.

        The other arcade must run the same ROM and may be on any device.
        """
        if not isinstance(arcade, Arcade):
            raise ValueError(f"arcade={arcade!r}: expected an Arcade")
        check_integer("first", first)
        check_integer("last", last)
        if not 0 <= first < last <= arcade.num_consoles:
            raise ValueError(
                f"first={first}, last={last}: expected 0 <= first < last <= {arcade.num_consoles}"
            )
        saved = checked_rows(arcade.get_state(slice(first, last)), last - first, self.machine)
        self._restore(saved, slice(None), self.num_consoles)


def _restored(kind: type[Arcade], made_from: tuple[Any, ...], state: dict[str, np.ndarray]) -> Arcade:
    """Return an arcade made from the same arguments and with a saved state."""
    arcade = kind(*made_from)
    arcade.set_state(state)
    return arcade


def in_short(value: object) -> str:
    """Return a value for a message of one line, such as the first numbers of a long array."""
    return textwrap.shorten(str(value), 80, placeholder=" ...")


def _copy_actions(name: str, actions: Any, own: np.ndarray) -> None:
    """Copy one player's actions, an integer or `[n]`, to `own` [n]. Errors: ValueError."""
    try:
        given = np.asarray(actions)
        if given.ndim and given.shape != own.shape:  # `copyto` would repeat one action in a list
            raise ValueError("another shape")
        np.copyto(own, given, casting="same_kind")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name}={in_short(actions)}: expected {len(own)} integers, or one for all"
        ) from error


def check_integer(name: str, value: object) -> None:
    """Check that an argument is an integer. Errors: ValueError."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name}={value!r}: expected an integer")


def check_arguments(
    game: object, num_consoles: Any, repeat_action_probability: Any, name: str = "num_consoles"
) -> None:
    """Check the arguments of consoles; `name` is what the caller calls their number. Errors: ValueError."""
    if not isinstance(game, str | Path):
        raise ValueError(f"game={game!r}: expected the name of a game, or the path of a ROM")
    check_integer(name, num_consoles)
    if num_consoles < 1:
        raise ValueError(f"{name}={num_consoles}: expected at least 1")
    is_number = isinstance(repeat_action_probability, Real) and not isinstance(
        repeat_action_probability, bool
    )
    if not is_number or not 0 <= repeat_action_probability <= 1:
        raise ValueError(f"repeat_action_probability={repeat_action_probability!r}: expected 0 to 1")


def check_per_console(name: str, values: Any, num_consoles: int) -> None:
    """Check that an argument is one value, or one per console. Errors: ValueError."""
    shape = as_array(name, values).shape
    if shape not in ((), (num_consoles,)):
        raise ValueError(f"{name} has shape {shape}; expected one value, or {num_consoles}")


def checked_switch(name: str, values: Any, num_consoles: int) -> np.ndarray:
    """Return which consoles hold a switch, bool `[]` or `[n]`. Errors: ValueError."""
    check_per_console(name, values, num_consoles)
    given = np.asarray(values)
    if given.dtype.kind not in "biu":
        raise ValueError(f"{name}={in_short(values)}: expected True or False, or {num_consoles} of them")
    held: np.ndarray = given != 0
    return held


def as_rows(consoles: Any, num_consoles: int) -> np.ndarray | slice:
    """Return consoles as an index of rows: one console is a row of its own. Errors: ValueError."""
    if isinstance(consoles, slice):
        try:
            consoles.indices(num_consoles)
        except TypeError as error:
            raise ValueError(f"consoles={consoles}: expected a slice of integers") from error
        return consoles
    rows = np.atleast_1d(as_array("consoles", consoles))
    if rows.dtype == np.bool_ and rows.shape == (num_consoles,):
        rows = np.flatnonzero(rows)
    if rows.shape == (0,):  # an empty list is an array of floats
        return rows.astype(np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise ValueError(
            f"consoles={in_short(consoles)}: expected integers, a slice, or a mask of {num_consoles}"
        )
    if ((rows < -num_consoles) | (rows >= num_consoles)).any():
        raise ValueError(f"consoles={in_short(consoles)}: expected 0 to {num_consoles - 1}")
    return rows


def as_array(name: str, value: Any) -> np.ndarray:
    """Return a value as an array. Errors: ValueError, with the name."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of different lengths; a tensor on a GPU
        raise ValueError(f"{name} cannot be read as an array: {str(error).splitlines()[0]}") from error


def checked_rows(saved: Any, num_rows: int, machine: engine_cpu.Machine) -> dict[str, np.ndarray]:
    """Return the arrays of a saved state of this many consoles. Errors: ValueError if it does not fit."""
    rows = _rows(machine.height)
    names = ("version", "md5", *rows)
    if not isinstance(saved, Mapping) or any(name not in saved for name in names):
        raise ValueError(f"saved state: expected the dict of get_state, with {', '.join(names)}")
    arrays = with_all_words({name: as_array(name, saved[name]) for name in names})
    if arrays["version"].tolist() != VERSION:
        raise ValueError(f"saved state has version {arrays['version']}; expected {VERSION}")
    check_rom(arrays, machine)
    for name, (row, dtype) in rows.items():
        array, shape = arrays[name], (num_rows, *row)
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f"{name} is {array.dtype} {array.shape}; expected {dtype} {shape}")
    check_rows(arrays, machine)
    return arrays


@functools.cache
def _rows(height: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Return the shape of one console's row of each array, and the type."""
    return {name: (array.shape[1:], array.dtype) for name, array in allocate(0, height).items()}
