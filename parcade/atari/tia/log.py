"""The log of TIA accesses: what needs an entry, and how the entries are replayed.

An entry is cycles << 14 | register << 8 | value (`bus.py`). Most writes repeat a register's value, and a
frame is drawn up to its last access, whichever it is. So only accesses that may change a register (*news*)
stay in the log. Any other is written behind them, where the next access overwrites it (`LOG_OPEN`). In Pong
that leaves 92 of 1,210 accesses a frame (docs/consoles.md).

On a GPU, of the lanes that replay their logs together only those within a line of the one furthest behind
apply entries; a CPU's only lane always goes on.
"""

import numpy as np

from ..compiling.jit import inlined
from ..primitives.warp import on_gpu
from ..state import LOG_COUNT, LOG_OPEN, ROW_WORDS, WRITTEN
from .writes import (
    AWAIT_LINE_END,
    COLUBK,
    COLUP0,
    ENABL,
    GRP0,
    GRP1,
    HMBL,
    HMCLR,
    HMP0,
    PF2,
    REFP0,
    RESMP1,
    STROBES,
    VBLANK,
    says_nothing_new,
)

END_OF_LOG, AFTER_LOG = 1 << 29, 1 << 30  # later than every cycle of a log


def _registers(first: int, last: int) -> int:
    return (2 << last) - (1 << first)


# Sets of registers, bit n for register n. A write of the current value has no effect for those of COMPARED.
# It may have one for NUSIZ0, NUSIZ1 and CTRLPF, depending on where the beam is (`telling_rewrites`).
ALWAYS_NEWS = STROBES | AWAIT_LINE_END
COMPARED = 1 << VBLANK | (
    _registers(COLUP0, COLUBK) | _registers(REFP0, PF2) | _registers(GRP0, ENABL) | _registers(HMP0, RESMP1)
)

# A word of WRITTEN: the value and KNOWN. PENDING: the next write of GRP0 or GRP1 copies registers that have
# changed since the last one to their delayed copies, so it is news even if it repeats the value.
KNOWN, PENDING = 0x100, 0x200


@inlined
def is_news(s, register, value):
    """Return 1 if a write may change a register of the TIA, otherwise 0; remember its value.

    A read has the register NOTHING. The recompiler writes the same in LLVM assembly (`accesses.py`).
    """
    if COMPARED >> register & 1:
        written = np.int64(s[WRITTEN + register])
        s[WRITTEN + register] = value | KNOWN
        if (written ^ (value | KNOWN)) & ~PENDING:
            if register == GRP0 or register == ENABL:
                s[WRITTEN + GRP1] |= PENDING
            elif register == GRP1:
                s[WRITTEN + GRP0] |= PENDING
        return np.int64(written != value | KNOWN)
    if register == HMCLR:
        for i in range(HMP0, HMBL + 1):
            s[WRITTEN + i] = 0
    return np.int64(ALWAYS_NEWS >> register & 1)


@inlined
def forget(s):
    """Begin without knowledge of what was written."""
    for word in range(WRITTEN, ROW_WORDS):
        s[word] = 0


@inlined
def close_log(s):
    """Keep the last access in the log, whatever it is; return the number of entries."""
    count = np.int64(s[LOG_COUNT]) + np.int64(s[LOG_OPEN])
    s[LOG_COUNT] = count
    s[LOG_OPEN] = 0
    return count


@inlined
def time_of(entry, place, over):
    """Return the cycle of the `entry` at a place of the log; at the log's end and behind it, a later one."""
    if place < over:
        return entry >> 14
    return np.int64(END_OF_LOG if place == over else AFTER_LOG)


@inlined
def is_due(time, bound):
    """Return whether a lane goes on; a CPU's only lane always does."""
    return not on_gpu() or time < bound


@inlined
def next_news(s, r, place, over, entry, following, telling, bound):
    """Skip entries that change nothing; stop at `over`, and on a GPU at cycle `bound`.

    `entry` is at `place`. Return the place and the entry there, and on a GPU the entry after it.
    """
    last = np.uint32(over - np.uint32(1))
    searching = on_gpu() and place < over
    while searching:
        # A branch would let a GPU's compiler move the load behind it, where its latency is not hidden.
        following = np.int64(s[min(np.uint32(place + np.uint32(1)), last)])
        nothing_new = says_nothing_new(r, entry >> 8 & 0x3F, entry & 0xFF, telling)
        skips = np.uint32(entry >> 14 < bound and nothing_new)
        entry ^= (entry ^ following) & -np.int64(skips)
        place = np.uint32(place + skips)
        searching = skips != 0 and place < over
    while not on_gpu() and place < over:
        entry = np.int64(s[place])
        register = entry >> 8 & 0x3F
        # Of COMPARED, `is_news` kept hardly one that changes nothing. Other registers have no effect.
        if (COMPARED | STROBES) >> register & 1:
            break
        if AWAIT_LINE_END >> register & 1 and not says_nothing_new(r, register, entry & 0xFF, telling):
            break
        place = np.uint32(place + np.uint32(1))
    return place, entry, following
