"""A console on a device, between its lasting words and the row of `state.py` that a thread works on.

While a thread runs, its console is a row in scratch of its own (`s`, and `ram` beside it): on the GPU local memory,
which the hardware interleaves, so that lanes at the same word make one access. Between kernels only LASTING_WORDS of it
are kept, word i of console e at ``registers[i, e]``. Logs are scratch.
"""

import numpy as np

from .. import tia
from ..jit import kernel, stand_alone
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

# Of a row, kept between kernels: what stands before the rules' stack, and the live TIA.
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
        tia.run(s, screen, t, log, np.int64(0), count, np.int64(0), target, s[ROM_HMOVE_BLANKS] != 0, False, True)
        s[SLOT_DRAWN + slot] = tia.DRAWN


@kernel
def load(e, registers, memory, s, ram):
    """Console `e` into scratch."""
    stand_alone()
    for i in range(RULE_STACK):
        s[i] = registers[i, e]
    for i in range(TIA_WORDS):
        s[TIA + i] = registers[RULE_STACK + i, e]
    for i in range(MEMORY_BYTES):
        ram[i] = memory[e, i]


@kernel
def store(e, s, ram, registers_out, memory_out):
    """Scratch into console `e`."""
    stand_alone()
    for i in range(RULE_STACK):
        registers_out[i, e] = s[i]
    for i in range(TIA_WORDS):
        registers_out[RULE_STACK + i, e] = s[TIA + i]
    for i in range(MEMORY_BYTES):
        memory_out[e, i] = ram[i]


@kernel
def power_on(e, s, ram, powered, powered_memory, registers):
    """The console as it stands after power-on, lasting words only, with its own mode and difficulty."""
    stand_alone()
    for i in range(RULE_STACK):
        s[i] = powered[i]
    for i in range(TIA_WORDS):
        s[TIA + i] = powered[RULE_STACK + i]
    s[MODE] = registers[MODE, e]
    s[DIFFICULTY] = registers[DIFFICULTY, e]
    for i in range(MEMORY_BYTES):
        ram[i] = powered_memory[i]
