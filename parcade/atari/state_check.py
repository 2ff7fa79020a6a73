"""Validation of saved states: every word must be within the range that the kernels rely on.

Kernels do not check their indices, so a word out of range could cause accesses outside an array. Values
within their ranges may still be inconsistent; they can only corrupt the image.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from . import state as st
from .cartridge import image_size
from .engine_cpu import Machine
from .joystick import ACTION_BITS, ACTION_ID, PADDLE_STEP
from .settings import VectorSettings
from .state_scan import rows_fit

ANY = (-(2**31), 2**31 - 1)
# Words that say how far the frame of each TIA's block is drawn: [5, blocks].
DRAWN_SO_FAR = np.add.outer(
    (st.T_LAST, st.T_START, st.T_STOP, st.T_LINE, st.T_LEFT), np.arange(st.TIA, st.LOGS, st.TIA_WORDS)
)
LARGEST_ACTION = PADDLE_STEP << ACTION_BITS | ACTION_ID
ROM_CONSTANTS = slice(st.ROM_YSTART, st.ROM_BOOT_DIFFICULTY + 1)
BIT, BYTE, NIBBLE, CLOCK = (0, 1), (0, 255), (0, 15), (-(2**26), 2**26)


def _chip_ranges() -> dict[int, tuple[int, int]]:
    """Return the ranges of the words before the TIA's, by word.

    Times of past events have none, such as RIOT_READ_CYCLE: every frame subtracts its length from them, so in
    a long episode they take every value. Neither do the numbers of frames, which start again below zero, and
    the cycles and scanlines of a frame: a program may compute for hours before it ends one.
    """
    ranges = dict.fromkeys((st.CPU_A, st.CPU_X, st.CPU_Y, st.CPU_SP, st.BUS), BYTE)
    ranges |= dict.fromkeys((st.CPU_C, st.CPU_V, st.CPU_D, st.CPU_I, st.CPU_JAMMED), BIT)
    ranges |= {st.CPU_PC: (0, 0xFFFF), st.CPU_NZ: (0, 0xFFFF)}
    ranges |= {st.RIOT_TIMER: BYTE, st.RIOT_SHIFT: (0, 10), st.RIOT_READ_FLAG: BIT, st.RIOT_DDRA: BYTE}
    ranges |= dict.fromkeys((st.IN_SWCHA, st.IN_SWCHB, st.IN_INPT4, st.IN_INPT5), BYTE)
    ranges |= dict.fromkeys(range(st.IN_CHARGE, st.IN_CHARGE + 4), (st.CHARGE_NEVER, 2**26))
    ranges |= {
        st.FRAME_START: (-227, 0),
        st.LOG_BASE: (-(2**30), 2**31 - 1),
        st.LINE_LIMIT: (0, 228 * 400),
    }
    ranges |= dict.fromkeys((st.FRAME_ENDED, st.PARTIAL, st.DUMP, st.OBSERVED, st.PICTURE), BIT)
    ranges |= {
        st.RECENT_CUTS: (0, 3),
        st.LOG_SLOT: (0, 2),
        st.LOG_COUNT: (0, st.LOG_CAPACITY),
        st.LOG_DONE: (0, st.LOG_CAPACITY),
    }
    ranges |= dict.fromkeys(range(st.SLOT_COUNT, st.SLOT_COUNT + 3), (0, st.LOG_CAPACITY))
    ranges |= dict.fromkeys(range(st.SLOT_DRAWN, st.SLOT_DRAWN + 3), (0, 2))
    for first in (st.DPC_TOP, st.DPC_BOTTOM, st.DPC_FLAG, st.DPC_MUSIC):
        ranges |= dict.fromkeys(range(first, first + 8), BYTE)
    ranges |= dict.fromkeys(range(st.DPC_COUNTER, st.DPC_COUNTER + 8), (0, 0x7FF))
    ranges |= {st.DPC_RANDOM: BYTE, st.DIFFICULTY: (0, 3), st.MODE: (0, 2**16)}
    ranges |= dict.fromkeys((st.ACTION, st.ACTION_B), (0, LARGEST_ACTION))
    ranges[st.FRAMES_ALLOWED] = (0, 2**31 - 1)
    ranges |= dict.fromkeys((st.PADDLE_A, st.PADDLE_B, st.PADDLE_MIN, st.PADDLE_MAX), (0, 2**24))
    return ranges | dict.fromkeys((st.PRESSED_RESET, st.PRESSED_SELECT, st.TERMINAL), BIT)


def _tia_ranges(height: int) -> dict[int, tuple[int, int]]:
    """Return the ranges of one block of TIA words, by T_* constant."""
    ranges = dict.fromkeys(range(st.TIA_WORDS), (0, 255))
    ranges |= dict.fromkeys((st.T_LAST, st.T_START, st.T_STOP, st.T_FRAME_START), CLOCK)
    ranges |= {st.T_LEFT: (0, 228), st.T_LINE: (0, height), st.T_PICTURE: (0, height * st.LINE_WORDS)}
    ranges |= {
        st.T_LAST_HMOVE: ANY,  # a time of a past event, see `_chip_ranges`
        st.T_PF: (0, 0xFFFFF),
        st.T_COLLISIONS: (0, 0x7FFF),
        st.T_ARK_COUNT: (0, 3),
        st.T_M0_SHAPE: (0, 2),
    }
    ranges |= dict.fromkeys(
        (st.T_ENAM0, st.T_ENAM1, st.T_ENABL, st.T_DELAYED_ENABL, st.T_COMB, st.T_MIRRORED), BIT
    )
    ranges |= dict.fromkeys(range(st.T_HMP0, st.T_HMBL + 1), NIBBLE)
    return ranges | dict.fromkeys(range(st.T_POSP0, st.T_POSBL + 1), (0, 159))


@functools.cache
def _bounds(height: int) -> np.ndarray:
    """Return the minima and maxima of a row's words, without those of its ROM: int32 `[2, ROW_WORDS]`."""
    bounds = np.tile(np.array(ANY, np.int32)[:, None], st.ROW_WORDS)
    for word, range_ in _chip_ranges().items():
        bounds[:, word] = range_
    for first in range(st.TIA, st.LOGS, st.TIA_WORDS):
        for word, range_ in _tia_ranges(height).items():
            bounds[:, first + word] = range_
    bounds[0, st.LOGS :] = 0
    bounds[1, st.LOG_OPEN] = 1
    return bounds


class Bounds(NamedTuple):
    """The ranges of a row's words: int32 `[ROW_WORDS]`, and their sizes as uint32."""

    low: np.ndarray
    high: np.ndarray
    size: np.ndarray

    def excludes(self, state: np.ndarray) -> np.ndarray:
        """Return which words int32 `[n, ROW_WORDS]` are out of range, bool."""
        # One comparison for both ends: below the minimum, the difference wraps around.
        excluded: np.ndarray = (state - self.low).view(np.uint32) > self.size
        return excluded


def bounds_for(machine: Machine) -> Bounds:
    """Return the ranges of the words of a machine's rows."""
    powered = machine.powered["state"][0]
    constants = tuple(powered[ROM_CONSTANTS].tolist())
    return _bounds_with(machine.height, constants, int(powered[st.CART_KIND]), image_size(machine.rom))


@functools.lru_cache
def _bounds_with(height: int, constants: tuple[int, ...], cartridge: int, rom_bytes: int) -> Bounds:
    bounds = _bounds(height).copy()
    bounds[:, ROM_CONSTANTS] = constants
    bounds[:, st.CART_KIND] = cartridge
    bounds[:, st.CART_BANK] = 0, max(0, rom_bytes - 4096)
    low, high = bounds
    return Bounds(low, high, (high - low).view(np.uint32))


def word_name(word: int) -> str:
    """Return a word's name in `state.py`, e.g. ``T_POSP0`` or ``DPC_TOP + 3``."""
    kind = "T_" if st.TIA <= word < st.LOGS else ""
    at = (word - st.TIA) % st.TIA_WORDS if kind else word
    sizes = ("ROW_WORDS", "VERSION", "CART_RAM", "TIA")
    names = {
        value: name for name, value in vars(st).items()
        if name.isupper() and isinstance(value, int) and value >= 0
        and name.startswith("T_") == bool(kind)
        and not name.endswith(("_WORDS", "_STREAM", "_BYTES", "_WIDTH", "_CAPACITY", "_VARIABLES"))
        and name not in sizes
    }  # fmt: skip
    nearest = max((value for value in names if value <= at), default=0)
    return names.get(at) or f"{names.get(nearest, 'word')} + {at - nearest}"


def check_started(state: np.ndarray) -> None:
    """Check that every console of saved words `[n, ROW_WORDS]` was started. Errors: ValueError.

    A start turns the paddles to the middle, and none of their positions is 0.
    """
    unstarted = state[:, st.PADDLE_A] == 0
    if unstarted.any():
        raise ValueError(
            f"saved state: the console of row {unstarted.argmax()} was never started; save it after a reset"
        )


def check_rom(saved: Mapping[str, np.ndarray], machine: Machine) -> None:
    """Check that a state was saved with this ROM: its `md5` is `[16]`, or `[n, 16]` of n consoles.

    Vectors of consoles saved no `md5` in the past; such a state is accepted. Errors: ValueError.
    """
    expected = machine.checksum()
    md5 = np.asarray(saved.get("md5", expected))
    if md5.shape[-1:] != expected.shape or (md5 != expected).any():
        raise ValueError("saved state belongs to another ROM; use the game it was saved with")


def check_settings(state: np.ndarray, machine: Machine, switches: tuple[int, int]) -> None:
    """Check that saved words `[n, ROW_WORDS]` have the machine's sticky actions, and its mode and difficulty.

    switches: this mode and difficulty. Errors: ValueError.
    """
    saved = (_sticky_actions(state), state[:, st.MODE], state[:, st.DIFFICULTY])
    expected = (_sticky_actions(machine.powered["state"])[0], *switches)
    for name, there, here in zip(("sticky actions", "mode", "difficulty"), saved, expected, strict=True):
        other = there != here
        if other.any():
            raise ValueError(
                f"saved state: {name} of row {other.argmax()} is {there[other.argmax()]:g}; "
                f"expected {here:g}; use the settings it was saved with"
            )


def check_playing(
    saved: dict[str, np.ndarray],
    elapsed: np.ndarray,
    machine: Machine,
    switches: tuple[int, int],
    most_frames: int,
) -> None:
    """Check rows of consoles in episodes, and their frames `[n]` since the start, at most `most_frames`.

    Errors: ValueError.
    """
    check_rows(saved, machine)
    check_started(saved["state"])
    check_settings(saved["state"], machine, switches)
    if elapsed.min() < 0 or elapsed.max() > most_frames:
        raise ValueError(
            f"saved state: elapsed is {elapsed.min()} to {elapsed.max()}; expected 0 to {most_frames} frames"
        )


def check_captured(captured: np.ndarray, settings: VectorSettings) -> None:
    """Check that captured frames uint64 `[n, rows, words]` are those of steps of as many frames.

    With one frame a step, the second-to-last is never captured, and would stay in every observation.
    Errors: ValueError.
    """
    if settings.frameskip == 1 and settings.maxpool and captured[:, 1:2].any():
        raise ValueError(
            "saved state: its steps have several frames; expected one (frame_skip 1); "
            "use the settings it was saved with"
        )


def _sticky_actions(state: np.ndarray) -> np.ndarray:
    """Return the probability, per frame, that consoles repeat their previous action, float64 `[n]`."""
    low, high = state[:, st.STICKY_THRESHOLD : st.STICKY_THRESHOLD + 2].T.astype(np.float64)
    return (high * 2**31 + low) / 2**32


def check_rows(saved: dict[str, np.ndarray], machine: Machine) -> None:
    """Check that kernels can use saved rows. Errors: ValueError with the word, its value and its range."""
    state, random = saved["state"], saved["random"]
    bounds = bounds_for(machine)
    if all(array.flags.c_contiguous and array.flags.writeable for array in (state, random)) and rows_fit(
        state, random, bounds.low, bounds.size, machine.height
    ):
        return
    bad = bounds.excludes(state)
    if bad.any():
        row, word = np.argwhere(bad)[0]
        raise ValueError(
            f"saved state: {word_name(int(word))} (word {word}) of row {row} is {state[row, word]}; "
            f"expected {bounds.low[word]} to {bounds.high[word]}"
        )
    bank = state[:, st.CART_BANK]
    if (bank % 4096).any():
        raise ValueError(f"saved state: CART_BANK is {bank.tolist()}; expected multiples of 4096")
    last, start, stop, line, left = state.T[DRAWN_SO_FAR].astype(np.int64)  # each [blocks, n]
    wrong = (228 * line + 228 - left != last - start) | (stop - start != 228 * machine.height)
    # The blocks of a console that has not run yet, or comes from a GPU, are all zero.
    if (wrong & (stop != 0)).any():
        raise ValueError("saved state: T_LAST, T_LEFT and T_LINE disagree on how far the frame is drawn")
    if random[:, :, 624].max(initial=0) > 624:
        raise ValueError("saved state: the index of a random stream is past its end; expected 0 to 624")
