"""Consoles with random bytes as ROM, random words as state and random actions, between guard regions."""

import numpy as np

from parcade.atari import cartridge, console
from parcade.atari import state as st
from parcade.atari.engine_cpu import Machine
from parcade.atari.state_check import check_rows

KINDS = 8
HEIGHT, GUARD, GUARD_BYTE = 210, 4096, 0x5A
FRAMES = 20


class Guarded:
    """Arrays of one console, each between two guard regions."""

    def __init__(self) -> None:
        self.arrays, self._around = {}, []
        for name, array in st.allocate(1, HEIGHT).items():
            memory = np.full(array.nbytes + 2 * GUARD, GUARD_BYTE, np.uint8)
            self.arrays[name] = memory[GUARD:-GUARD].view(array.dtype).reshape(array.shape)
            self._around.append(memory)

    def clear(self) -> None:
        for array in self.arrays.values():
            array[...] = 0

    def rows(self, rom: np.ndarray) -> tuple[np.ndarray, ...]:
        """Rows of one console as `console` takes them."""
        a = self.arrays
        return a["state"][0], a["memory"][0], rom, a["screen"][0], a["random"][0]

    def check(self) -> None:
        """Raise AssertionError if anything was written outside the arrays."""
        for memory in self._around:
            assert (memory[:GUARD] == GUARD_BYTE).all() and (memory[-GUARD:] == GUARD_BYTE).all(), (
                "written outside an array"
            )


def play_rubbish(guarded: Guarded, kind: int, random: np.random.Generator) -> int:
    """Play a random image of a cartridge type, then continue from a random state of it.

    Returns 1 if the state was accepted, else 0. Errors: AssertionError if memory outside of the arrays
    changed; ValueError if a word left the range that kernels rely on.
    """
    guarded.clear()
    rom = cartridge.expand_image(random.bytes(16384), kind)
    rows = guarded.rows(rom)
    state = rows[0]
    state[st.CART_KIND], state[st.ROM_YSTART], state[st.ROM_HEIGHT], state[st.ROM_MAX_LINES] = (
        kind, 34, HEIGHT, 290,
    )  # fmt: skip
    state[st.ROM_HMOVE_BLANKS] = 1
    console.power_on(*rows)
    powered = {name: array.copy() for name, array in guarded.arrays.items()}
    machine = Machine(None, {}, "", rom, np.zeros(0, np.int32), powered, HEIGHT, False)
    _play(rows, random)
    guarded.check()
    check_rows(guarded.arrays, machine)
    words = random.integers(0, st.LOGS, 3)
    state[words] = random.choice([random.integers(0, 256, 3), random.integers(-(2**31), 2**31, 3)])
    try:
        check_rows(guarded.arrays, machine)
    except ValueError:
        return 0
    _play(rows, random)
    guarded.check()
    return 1


def _play(rows: tuple[np.ndarray, ...], random: np.random.Generator) -> None:
    for action, action_b in random.integers(0, 18, (FRAMES, 2)).tolist():
        console.apply_controls(rows[0], action, action_b)
        console.run_update(*rows[:4])
