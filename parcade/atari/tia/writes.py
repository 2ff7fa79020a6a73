"""Writes to TIA registers: what they change, when they take effect, and which objects they affect."""

import numpy as np

from ..compiling.jit import inlined, kernel, stand_alone
from ..state import (
    T_ARK,
    T_ARK_COUNT,
    T_COLLISIONS,
    T_COLUP0,
    T_COMB,
    T_CTRLPF,
    T_DELAYED_ENABL,
    T_DELAYED_GRP0,
    T_DELAYED_GRP1,
    T_ENABL,
    T_ENAM0,
    T_ENAM1,
    T_GRP0,
    T_GRP1,
    T_HMBL,
    T_HMM0,
    T_HMM1,
    T_HMP0,
    T_HMP1,
    T_LAST_HMOVE,
    T_M0_SHAPE,
    T_MIRRORED,
    T_NUSIZ0,
    T_NUSIZ1,
    T_PF,
    T_POSM0,
    T_POSP0,
    T_REFP0,
    T_REFP1,
    T_RESMP0,
    T_RESMP1,
    T_SKIP0,
    T_SKIP1,
    T_VBLANK,
    T_VDELBL,
    T_VDELP0,
    T_VDELP1,
)
from .masks import DIRTY_BL, DIRTY_M0, DIRTY_M1, DIRTY_P0, DIRTY_P1, DIRTY_PF
from .tables import HMOVE_MOTION, PLAYFIELD_DELAY, REVERSED, STROBE_RELATION, SWEPT_TWICE, WRITE_DELAY

VSYNC, VBLANK, WSYNC, RSYNC = 0x00, 0x01, 0x02, 0x03
NUSIZ0, NUSIZ1, COLUP0, COLUP1, COLUPF, COLUBK = 0x04, 0x05, 0x06, 0x07, 0x08, 0x09
CTRLPF, REFP0, REFP1, PF0, PF1, PF2 = 0x0A, 0x0B, 0x0C, 0x0D, 0x0E, 0x0F
RESP0, RESP1, RESM0, RESM1, RESBL = 0x10, 0x11, 0x12, 0x13, 0x14
GRP0, GRP1, ENAM0, ENAM1, ENABL = 0x1B, 0x1C, 0x1D, 0x1E, 0x1F
HMP0, HMP1, HMM0, HMM1, HMBL, VDELP0, VDELP1, VDELBL = 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27
RESMP0, RESMP1, HMOVE, HMCLR, CXCLR = 0x28, 0x29, 0x2A, 0x2B, 0x2C
NOTHING = 0x3F  # log entry of a read, which only limits drawing

# Effects of a write: the DIRTY_ bits of objects whose masks must be recomputed, and the bits below.
DIRTY_ALL = DIRTY_P0 | DIRTY_P1 | DIRTY_M0 | DIRTY_M1 | DIRTY_BL | DIRTY_PF
DIRTY_COLOUR = 64
UNCHECKED = 128  # objects that have been checked may set latches again
SHOWN = 256  # an object may have become visible or invisible
PLACED = 512  # an object may have moved
TELLING = 1024  # the result of `telling_rewrites` has changed
AWAITING = 2048  # the result of `awaited_line_end` has changed

LINE_CLOCKS, BLANK_CLOCKS = 228, 68


@inlined
def lines_in(clocks):
    """Return the number of complete lines in `clocks` >= 0. 32 bits divide in half the time of 64."""
    return np.int64(np.uint32(clocks) // np.uint32(LINE_CLOCKS))


@inlined
def within_line(clocks):
    """Return the clock within a line, `clocks` >= 0 after the start of one."""
    return np.int64(np.uint32(clocks) % np.uint32(LINE_CLOCKS))


@inlined
def _strobe_relation(r, player, new):
    """Return an entry of `STROBE_RELATION` for RESP0 or RESP1, which sets the position `new`."""
    old = np.int64(r[np.uint32(T_POSP0 + player)])
    mode = np.int64(r[np.uint32(T_NUSIZ0 + player)]) & 7
    return np.int64(
        STROBE_RELATION[np.uint32(mode), np.uint32(new <= SWEPT_TWICE), np.uint32(new - old + 160)]
    )


@inlined
def _player_strobe_position(hpos):
    """Return the position that RESP0 or RESP1 sets at a clock of the line."""
    return 3 if hpos < 68 else _wrapped(hpos - 68 + 5)


@inlined
def _ball_strobe_position(reg, hpos, since_hmove):
    """Return the position that RESM0, RESM1 or RESBL sets, including special cases after an HMOVE."""
    position = 2 if hpos < 68 else _wrapped(hpos - 68 + 4)
    if reg == RESM0:
        if since_hmove == 60 and hpos == 69:
            position = 8
    elif reg == RESM1:
        if since_hmove == 9 and hpos == 18:
            position = 3
    elif since_hmove == 54 and (hpos == 60 or hpos == 69):
        position = 10
    elif since_hmove == 9 and hpos == 18:
        position = 3
    elif since_hmove == 21 and hpos == 30:
        position = 6
    elif since_hmove == 18 and hpos == 27:
        position = 5
    return position


@inlined
def _wrapped(position):
    if position < 0:
        return position + 160
    return position - 160 if position >= 160 else position


# --- storage of registers -----------------------------------------------------------------------------------
#
# Bits of an entry of HOLDING, lowest first: the register's word (8 bits), a mask of the significant value
# bits (8), the right shift of the value before masking (4), and the position of these bits in the word (4).
# Registers without an effect on the image have no significant bits.

PLAIN = 1 << 24  # a write only stores these bits in the word


def _holding() -> np.ndarray:
    table = np.zeros(64, np.int64)

    def hold(reg, word, bits, flags=0, *, value_shift=0, word_shift=0):
        table[reg] = word | bits << 8 | value_shift << 16 | word_shift << 20 | flags

    for reg, word in (
        (VBLANK, T_VBLANK), (NUSIZ0, T_NUSIZ0), (NUSIZ1, T_NUSIZ1),
        (CTRLPF, T_CTRLPF), (GRP0, T_GRP0), (GRP1, T_GRP1),
    ):  # fmt: skip
        hold(reg, word, 0xFF)
    for i in range(4):
        hold(COLUP0 + i, T_COLUP0 + i, 0xFE, PLAIN)  # bit 0 is the colour loss of PAL
    hold(REFP0, T_REFP0, 8, PLAIN)
    hold(REFP1, T_REFP1, 8, PLAIN)
    hold(PF0, T_PF, 0x0F, PLAIN, value_shift=4)
    hold(PF1, T_PF, 0xFF, PLAIN, word_shift=4)  # reversed
    hold(PF2, T_PF, 0xFF, PLAIN, word_shift=12)
    hold(ENAM0, T_ENAM0, 1, PLAIN, value_shift=1)
    hold(ENAM1, T_ENAM1, 1, PLAIN, value_shift=1)
    hold(ENABL, T_ENABL, 1, value_shift=1)
    for i in range(5):
        hold(HMP0 + i, T_HMP0 + i, 0x0F, value_shift=4)
    for i in range(3):
        hold(VDELP0 + i, T_VDELP0 + i, 1, PLAIN)
    hold(RESMP0, T_RESMP0, 2)
    hold(RESMP1, T_RESMP1, 2)
    return table


def _changed_by_plain_writes() -> np.ndarray:
    table = np.zeros(64, np.int64)
    table[COLUP0 : COLUBK + 1] = DIRTY_COLOUR
    table[REFP0], table[REFP1] = DIRTY_P0, DIRTY_P1
    table[PF0 : PF2 + 1] = DIRTY_PF | SHOWN | PLACED
    table[ENAM0], table[ENAM1] = DIRTY_M0 | SHOWN, DIRTY_M1 | SHOWN
    table[VDELP0], table[VDELP1], table[VDELBL] = DIRTY_P0 | SHOWN, DIRTY_P1 | SHOWN, DIRTY_BL | SHOWN
    return table


HOLDING = _holding()
CHANGED_BY_PLAIN_WRITES = _changed_by_plain_writes()

# Sets of registers, bit n for register n. AWAIT_LINE_END: if one of them is in `telling_rewrites`, a change
# may be pending for the end of the line.
STROBES = (
    1 << RESP0 | 1 << RESP1 | 1 << RESM0 | 1 << RESM1 | 1 << RESBL | 1 << HMOVE | 1 << HMCLR | 1 << CXCLR
)
AWAIT_LINE_END = 1 << NUSIZ0 | 1 << NUSIZ1 | 1 << CTRLPF


@inlined
def _written(reg, value):
    return np.int64(REVERSED[np.uint32(value)]) if reg == PF1 else value


@inlined
def says_nothing_new(r, reg, value, telling):
    """Return whether a write changes nothing, as most writes do. `telling`: from `telling_rewrites`."""
    held = HOLDING[np.uint32(reg)]
    word = np.int64(r[np.uint32(held & 0xFF)])
    difference = (word >> (held >> 20 & 0xF)) ^ (_written(reg, value) >> (held >> 16 & 0xF))
    return (difference & held >> 8 & 0xFF) | (telling >> reg & 1) == 0


@inlined
def telling_rewrites(r):
    """Return the registers for which a write of the current value has an effect; bit n for register n."""
    telling = STROBES
    telling |= 1 << GRP0 if r[T_DELAYED_GRP1] != r[T_GRP1] else 0
    telling |= 1 << GRP1 if (r[T_DELAYED_GRP0] != r[T_GRP0]) | (r[T_DELAYED_ENABL] != r[T_ENABL]) else 0
    return telling | awaited_line_end(r)


@inlined
def awaited_line_end(r):
    """Return the registers whose last write takes effect, or ends one, at the end of the line."""
    awaited = 1 << NUSIZ0 if r[T_SKIP0] | r[T_M0_SHAPE] != 0 else 0
    awaited |= 1 << NUSIZ1 if r[T_SKIP1] != 0 else 0
    return awaited | (1 << CTRLPF if r[T_MIRRORED] != r[T_CTRLPF] & 1 else 0)


@inlined
def is_plain(reg):
    """Return whether a write only stores bits in a word."""
    return HOLDING[np.uint32(reg)] & PLAIN != 0


@inlined
def store(r, reg, value):
    """Apply a plain write; return its effects."""
    held = HOLDING[np.uint32(reg)]
    word, bits, shift = np.uint32(held & 0xFF), held >> 8 & 0xFF, held >> 20 & 0xF
    kept = np.int64(r[word]) & ~(bits << shift)
    r[word] = kept | ((_written(reg, value) >> (held >> 16 & 0xF)) & bits) << shift
    return CHANGED_BY_PLAIN_WRITES[np.uint32(reg)]


# --- effects of writes --------------------------------------------------------------------------------------


@inlined
def is_effective(r, reg, value, clock):
    """Return whether a write that is not plain has a visible effect.

    If it has none, this function applies the write.
    """
    if reg == VBLANK:
        if (r[T_VBLANK] ^ value) & 2:
            return True
        r[T_VBLANK] = value
        return False
    if reg < GRP0 or reg == HMOVE:
        return True
    if reg == GRP0:
        if r[T_VDELP1] != 0 and r[T_DELAYED_GRP1] != r[T_GRP1]:
            return True
        if r[T_VDELP0] == 0 and r[T_GRP0] != value:
            return True
        r[T_GRP0] = value
        r[T_DELAYED_GRP1] = r[T_GRP1]
        return False
    if reg == GRP1:
        if r[T_VDELP0] != 0 and r[T_DELAYED_GRP0] != r[T_GRP0]:
            return True
        if r[T_VDELP1] == 0 and r[T_GRP1] != value:
            return True
        if r[T_VDELBL] != 0 and r[T_DELAYED_ENABL] != r[T_ENABL]:
            return True
        r[T_GRP1] = value
        r[T_DELAYED_GRP0] = r[T_GRP0]
        r[T_DELAYED_ENABL] = r[T_ENABL]
        return False
    if ENAM0 <= reg <= ENABL:
        bit = value >> 1 & 1
        if r[np.uint32(T_ENAM0 + reg - ENAM0)] == bit:
            return False
        if reg == ENABL and r[T_VDELBL] != 0:
            r[T_ENABL] = bit
            return False
        return True
    if HMP0 <= reg <= HMBL:
        nibble = value >> 4
        if reg == HMM0 and nibble == 6 and r[T_HMM0] == 7 and clock - r[T_LAST_HMOVE] == 63:
            return True
        r[np.uint32(T_HMP0 + reg - HMP0)] = nibble
        return False
    if reg == RESMP0 or reg == RESMP1:
        return (r[np.uint32(T_RESMP0 + reg - RESMP0)] ^ value) & 2 != 0
    if reg == HMCLR:
        for i in range(5):
            r[np.uint32(T_HMP0 + i)] = 0
        return False
    return True


@inlined
def apply(r, reg, value, clock, beam, comb_allowed):
    """Apply an effective write that is not plain, `beam` clocks into the frame; return its effects."""
    if reg == GRP0:
        r[T_GRP0] = value
        r[T_DELAYED_GRP1] = r[T_GRP1]
        return DIRTY_P0 | SHOWN | TELLING | (DIRTY_P1 if r[T_VDELP1] != 0 else 0)
    if reg == GRP1:
        r[T_GRP1] = value
        r[T_DELAYED_GRP0] = r[T_GRP0]
        r[T_DELAYED_ENABL] = r[T_ENABL]
        return (
            DIRTY_P1 | SHOWN | TELLING
            | (DIRTY_P0 if r[T_VDELP0] != 0 else 0) | (DIRTY_BL if r[T_VDELBL] != 0 else 0)
        )  # fmt: skip
    if reg == HMOVE:
        return _move(r, clock, within_line(beam), comb_allowed)
    if reg == VBLANK:
        r[T_VBLANK] = value
        return DIRTY_COLOUR | UNCHECKED
    if reg == NUSIZ0:
        r[T_NUSIZ0] = value
        r[T_SKIP0] = 0
        r[T_M0_SHAPE] = 0
        return DIRTY_P0 | DIRTY_M0 | TELLING | AWAITING | PLACED
    if reg == NUSIZ1:
        r[T_NUSIZ1] = value
        r[T_SKIP1] = 0
        return DIRTY_P1 | DIRTY_M1 | TELLING | AWAITING | PLACED
    if reg == CTRLPF:
        r[T_CTRLPF] = value
        if within_line(beam) < 147:
            r[T_MIRRORED] = value & 1
        return DIRTY_BL | DIRTY_PF | DIRTY_COLOUR | TELLING | AWAITING | PLACED
    if reg == RESP0 or reg == RESP1:
        player = reg - RESP0
        new = _player_strobe_position(within_line(beam))
        relation = _strobe_relation(r, player, new)
        r[np.uint32(T_POSP0 + player)] = new
        r[np.uint32(T_SKIP0 + player)] = 0 if relation < 0 else 1
        return DIRTY_P0 << player | TELLING | AWAITING | PLACED
    if reg <= RESBL:
        r[np.uint32(T_POSM0 + reg - RESM0)] = _ball_strobe_position(
            reg, within_line(beam), clock - np.int64(r[T_LAST_HMOVE])
        )
        if reg == RESM0:
            r[T_M0_SHAPE] = 0
        return DIRTY_M0 << (reg - RESM0) | TELLING | AWAITING | PLACED
    if reg == ENABL:
        r[T_ENABL] = value >> 1 & 1
        return DIRTY_BL | SHOWN | TELLING
    if reg == HMM0:
        r[T_HMM0] = value >> 4
        r[T_ARK] = 1
        r[T_ARK_COUNT] = 0
        return 0
    if reg == RESMP0 or reg == RESMP1:
        player = reg - RESMP0
        r[np.uint32(T_RESMP0 + player)] = value & 2
        if value & 2 == 0:
            mode = r[np.uint32(T_NUSIZ0 + player)] & 7
            middle = 8 if mode == 5 else 16 if mode == 7 else 4
            r[np.uint32(T_POSM0 + player)] = _wrapped(np.int64(r[np.uint32(T_POSP0 + player)]) + middle)
            if player == 0:
                r[T_M0_SHAPE] = 0
        return DIRTY_M0 << player | SHOWN | TELLING | AWAITING | PLACED
    if reg == CXCLR:
        r[T_COLLISIONS] = 0
        return UNCHECKED
    return 0


@inlined
def _move(r, clock, hpos, comb_allowed):
    """Apply HMOVE; return its effects. Objects that do not move keep their masks.

    Most games strobe HMOVE on every line and move few objects.
    """
    changes = (
        (DIRTY_P0 if r[T_SKIP0] != 0 else 0)
        | (DIRTY_P1 if r[T_SKIP1] != 0 else 0)
        | (DIRTY_M0 if r[T_M0_SHAPE] != 0 else 0)
    )
    if changes != 0:
        changes |= TELLING | AWAITING
        r[T_SKIP0] = 0
        r[T_SKIP1] = 0
        r[T_M0_SHAPE] = 0
    cycle = hpos // 3
    # Up to cycle 12, an object with motion 0 does not move.
    if cycle > 12 or (r[T_HMP0] | r[T_HMP1] | r[T_HMM0] | r[T_HMM1] | r[T_HMBL]) != 0:
        for i in range(5):
            motion = HMOVE_MOTION[cycle, np.uint32(r[np.uint32(T_HMP0 + i)])]
            if motion != 0:
                r[np.uint32(T_POSP0 + i)] = _wrapped(np.int64(r[np.uint32(T_POSP0 + i)]) + motion)
                changes |= DIRTY_P0 << i | PLACED
    r[T_LAST_HMOVE] = clock
    r[T_ARK] = 0
    if comb_allowed and (cycle <= 20 or cycle == 75):
        r[T_COMB] = 1
    return changes


@inlined
def draw_target(r, reg, clock, beam):
    """Return the clock up to which the frame is drawn before a write, `beam` clocks into it, takes effect."""
    delay = WRITE_DELAY[np.uint32(reg)]
    if delay < 0:
        delay = PLAYFIELD_DELAY[np.uint32((within_line(beam) // 3) & 3)]
    elif reg == RESP0 or reg == RESP1:
        if _strobe_relation(r, reg - RESP0, _player_strobe_position(within_line(beam))) > 0:
            delay = np.int64(11)
    return clock + delay


@kernel
def move_ark(r):
    """Apply the Cosmic Ark effect: missile 0 drifts on every line."""
    stand_alone()
    count = (np.int64(r[T_ARK_COUNT]) + 1) & 3
    r[T_ARK_COUNT] = count
    drift = 18 if count == 0 else 33 if count == 1 else 0 if count == 2 else 17
    r[T_POSM0] = _wrapped(np.int64(r[T_POSM0]) - drift)
    r[T_M0_SHAPE] = count if count == 1 or count == 2 else 0


@inlined
def end_line(r):
    """Apply the changes between two lines; return the objects that they affect."""
    changes = 0
    if r[T_MIRRORED] != r[T_CTRLPF] & 1:
        r[T_MIRRORED] = r[T_CTRLPF] & 1
        changes |= DIRTY_PF
    if r[T_SKIP0] != 0:
        r[T_SKIP0] = 0
        changes |= DIRTY_P0
    if r[T_SKIP1] != 0:
        r[T_SKIP1] = 0
        changes |= DIRTY_P1
    if r[T_ARK] != 0:
        move_ark(r)
        changes |= DIRTY_M0
    return changes
