"""A console on a device, between its lasting words and the row of `state.py` that a thread works on.

While a thread runs, its console is a row in scratch of its own (`s`, and `ram` with it): on the GPU local memory,
which the hardware interleaves, so that lanes at the same word make one access. Between kernels only LASTING_WORDS of it
are kept, word i of console e at ``registers[i, e]``.
"""

import numpy as np

from .. import tia
from ..jit import inlined, kernel, stand_alone
from ..state import (
    DIFFICULTY,
    LOG_CAPACITY,
    LOG_SLOT,
    LOGS,
    MEMORY_BYTES,
    MODE,
    ROM_HMOVE_BLANKS,
    RULE_STACK,
    SLOT_COUNT,
    SLOT_DRAWN,
    TIA,
    TIA_SNAPSHOTS,
    TIA_WORDS,
)

# Of a row, kept between kernels: what comes before the rules' stack, and the live TIA.
LASTING_WORDS = RULE_STACK + TIA_WORDS


@kernel
def settle(s, screen):
    """Put every frame on its picture whose log is about to be lost: the current one and the one before."""
    stand_alone()
    tia.serve(s, screen, tia.SHOW)
    slot = (np.int64(s[LOG_SLOT]) + 2) % 3
    if s[SLOT_DRAWN + slot] == tia.PENDING and len(screen) > 0:
        t, log = TIA_SNAPSHOTS + slot * TIA_WORDS, LOGS + slot * LOG_CAPACITY
        count = np.int64(s[SLOT_COUNT + slot])
        target = tia.last_access_target(s, t, log, count, np.int64(0))
        tia.run(
            s, screen, t, log, np.int64(0), count, np.int64(0), target, s[ROM_HMOVE_BLANKS] != 0, False, True
        )
        s[SLOT_DRAWN + slot] = tia.DRAWN


@inlined
def load(e, s, ram, consoles):
    """Console `e` into scratch. Nothing can be drawn from a log of an earlier frame: there is none."""
    for i in range(RULE_STACK):
        s[i] = consoles.registers[i, e]
    for i in range(TIA_WORDS):
        s[TIA + i] = consoles.registers[RULE_STACK + i, e]
    for i in range(MEMORY_BYTES):
        ram[i] = consoles.memory[e, i]
    for slot in range(3):
        s[SLOT_DRAWN + slot] = tia.DRAWN


@inlined
def store(e, s, ram, consoles):
    """Scratch into console `e`, its pictures complete."""
    settle(s, consoles.screens[e])
    for i in range(RULE_STACK):
        consoles.registers[i, e] = s[i]
    for i in range(TIA_WORDS):
        consoles.registers[RULE_STACK + i, e] = s[TIA + i]
    for i in range(MEMORY_BYTES):
        consoles.memory[e, i] = ram[i]


@inlined
def power_on(e, s, ram, game, consoles):
    """The console as it is after power-on, with its own mode and difficulty."""
    for i in range(RULE_STACK):
        s[i] = game.powered[i]
    for i in range(TIA_WORDS):
        s[TIA + i] = game.powered[RULE_STACK + i]
    s[MODE] = consoles.registers[MODE, e]
    s[DIFFICULTY] = consoles.registers[DIFFICULTY, e]
    for i in range(MEMORY_BYTES):
        ram[i] = game.powered_memory[i]
    for i in range(len(game.powered_random)):
        consoles.random[e, 0, i] = game.powered_random[i]
