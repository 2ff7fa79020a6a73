"""Load and store consoles: device arrays between kernels, rows of `state.py` in scratch while a thread runs.

A thread keeps its console in per-thread scratch (the row `s`, and `ram`). On a GPU this is local memory,
which the hardware interleaves, so lanes that read the same word make one access. Between kernels only
LASTING_WORDS words of the row persist: word i of console e is ``registers[i, e]``.
"""

import numpy as np

from ..compiling.jit import inlined, kernel, stand_alone
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
from ..tia import chip as tia
from ..tia import log as tia_log
from ..tia import replay as tia_replay

# Words of a row that persist between kernels: those before the rules' stack, and the live TIA.
LASTING_WORDS = RULE_STACK + TIA_WORDS


@kernel
def settle(s, screen):
    """Draw the current and the previous frame, because their logs are about to be lost."""
    stand_alone()
    tia.serve(s, screen, tia.SHOW)
    slot = (np.int64(s[LOG_SLOT]) + 2) % 3
    if s[SLOT_DRAWN + slot] == tia.PENDING and len(screen) > 0:
        t, log = TIA_SNAPSHOTS + slot * TIA_WORDS, LOGS + slot * LOG_CAPACITY
        count = np.int64(s[SLOT_COUNT + slot])
        target = tia.last_access_target(s, t, log, count, np.int64(0))
        # Typed like the others: Numba would compile a further version for literals, and keep it on disk.
        live, draw = np.bool_(False), np.bool_(True)
        combs = s[ROM_HMOVE_BLANKS] != 0
        tia_replay.replay(s, screen, t, log, np.int64(0), count, np.int64(0), target, combs, live, draw)
        s[SLOT_DRAWN + slot] = tia.DRAWN


@inlined
def load(e, s, ram, consoles):
    """Load console `e` into scratch. Log slots are marked as drawn, since no logs of earlier frames exist."""
    tia_log.forget(s)
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
    """Store scratch in console `e`, with all frames drawn."""
    settle(s, consoles.screens[e])
    for i in range(RULE_STACK):
        consoles.registers[i, e] = s[i]
    for i in range(TIA_WORDS):
        consoles.registers[RULE_STACK + i, e] = s[TIA + i]
    for i in range(MEMORY_BYTES):
        consoles.memory[e, i] = ram[i]


@inlined
def power_on(e, s, ram, game, consoles):
    """Load the power-on state into scratch; keep the mode and difficulty of console `e`."""
    tia_log.forget(s)
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
