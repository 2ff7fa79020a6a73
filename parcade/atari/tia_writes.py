"""What a write to one of the TIA's registers changes, from which clock on, and which objects look different after it."""

import numpy as np

from .jit import inlined, kernel, stand_alone
from .state import (
    T_ARK,
    T_ARK_COUNT,
    T_COLLISIONS,
    T_COLOUR_LOSS,
    T_COLUP0,
    T_COMB,
    T_CTRLPF,
    T_DELAYED_ENABL,
    T_DELAYED_GRP0,
    T_DELAYED_GRP1,
    T_ENABL,
    T_ENAM0,
    T_GRP0,
    T_GRP1,
    T_HMM0,
    T_HMP0,
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
    T_SKIP0,
    T_SKIP1,
    T_VBLANK,
    T_VDELBL,
    T_VDELP0,
    T_VDELP1,
)
from .tia_tables import COPIES, HMOVE_MOTION, PLAYFIELD_DELAY, REVERSED, WRITE_DELAY

VSYNC, VBLANK, WSYNC, RSYNC = 0x00, 0x01, 0x02, 0x03
NUSIZ0, NUSIZ1, COLUP0, COLUP1, COLUPF, COLUBK = 0x04, 0x05, 0x06, 0x07, 0x08, 0x09
CTRLPF, REFP0, REFP1, PF0, PF1, PF2 = 0x0A, 0x0B, 0x0C, 0x0D, 0x0E, 0x0F
RESP0, RESP1, RESM0, RESM1, RESBL = 0x10, 0x11, 0x12, 0x13, 0x14
GRP0, GRP1, ENAM0, ENAM1, ENABL = 0x1B, 0x1C, 0x1D, 0x1E, 0x1F
HMP0, HMP1, HMM0, HMM1, HMBL, VDELP0, VDELP1, VDELBL = 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27
RESMP0, RESMP1, HMOVE, HMCLR, CXCLR = 0x28, 0x29, 0x2A, 0x2B, 0x2C
NOTHING = 0x3F  # a log entry that only ends a draw: a read

# Objects, as bits of "this mask must be made anew".
DIRTY_P0, DIRTY_P1, DIRTY_M0, DIRTY_M1, DIRTY_BL, DIRTY_PF = 1, 2, 4, 8, 16, 32
DIRTY_ALL, DIRTY_COLOUR = 63, 64

LINE_CLOCKS, BLANK_CLOCKS = 228, 68


@inlined
def _strobe_relation(new, old, nusiz):
    """What RESPx hits: -1 the delay before a copy, +1 a copy being shown, 0 neither."""
    mode = nusiz & 7
    width = 16 if mode == 5 else 32 if mode == 7 else 8
    copies = COPIES[mode]
    relation = 0
    for turn in range(2):
        sweep = new + 160 * turn
        if sweep <= 236:
            for k in range(5):
                if copies >> k & 1:
                    start = old + 16 * k
                    if start <= sweep < start + 4:
                        relation = -1
                    if start + 4 <= sweep < start + 4 + width:
                        relation = 1
    return relation


@inlined
def _ball_strobe_position(reg, hpos, since_hmove):
    """Position RESM0, RESM1 or RESBL sets, special cases after an HMOVE included."""
    position = 2 if hpos < 68 else (hpos - 68 + 4) % 160
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
def is_effective(r, reg, value, clock):
    """Whether a write changes anything that is seen. What it changes besides is done here if it does not."""
    if reg <= CTRLPF:
        if reg == VBLANK:
            if (r[T_VBLANK] ^ value) & 2:
                return True
            r[T_VBLANK] = value
            return False
        if reg == NUSIZ0:
            return r[T_NUSIZ0] != value or r[T_SKIP0] != 0 or r[T_M0_SHAPE] != 0
        if reg == NUSIZ1:
            return r[T_NUSIZ1] != value or r[T_SKIP1] != 0
        if COLUP0 <= reg <= COLUBK:
            return r[np.uint32(T_COLUP0 + reg - COLUP0)] != (value & 0xFE) | r[T_COLOUR_LOSS]
        if reg == CTRLPF:
            return r[T_CTRLPF] != value or r[T_MIRRORED] != value & 1
        return False
    if reg <= PF2:
        if reg == REFP0:
            return r[T_REFP0] != value & 8
        if reg == REFP1:
            return r[T_REFP1] != value & 8
        return r[T_PF] != _playfield_bits(np.int64(r[T_PF]), reg, value)
    if reg <= RESBL or reg == HMOVE:
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
    if VDELP0 <= reg <= VDELBL:
        return r[np.uint32(T_VDELP0 + reg - VDELP0)] != value & 1
    if reg == RESMP0 or reg == RESMP1:
        return r[np.uint32(T_RESMP0 + reg - RESMP0)] != value & 2
    if reg == HMCLR:
        for i in range(5):
            r[np.uint32(T_HMP0 + i)] = 0
    elif reg == CXCLR:
        return True
    return False


@inlined
def _playfield_bits(pf, reg, value):
    """The 20 playfield bits, leftmost lowest, after a write to PF0, PF1 or PF2."""
    if reg == PF0:
        return (pf & 0xFFFF0) | value >> 4
    if reg == PF1:
        return (pf & 0xFF00F) | np.int64(REVERSED[value]) << 4
    return (pf & 0x00FFF) | value << 12


@inlined
def _wrapped(position):
    if position < 0:
        return position + 160
    return position - 160 if position >= 160 else position


@inlined
def apply(r, reg, value, clock, hpos, comb_allowed):
    """Change registers as an effective write does; returns which masks it changes."""
    if reg <= CTRLPF:
        if reg == VBLANK:
            r[T_VBLANK] = value
            return DIRTY_COLOUR
        if reg == NUSIZ0:
            r[T_NUSIZ0] = value
            r[T_SKIP0] = 0
            r[T_M0_SHAPE] = 0
            return DIRTY_P0 | DIRTY_M0
        if reg == NUSIZ1:
            r[T_NUSIZ1] = value
            r[T_SKIP1] = 0
            return DIRTY_P1 | DIRTY_M1
        if reg == CTRLPF:
            r[T_CTRLPF] = value
            if hpos < 147:
                r[T_MIRRORED] = value & 1
            return DIRTY_BL | DIRTY_PF | DIRTY_COLOUR
        r[np.uint32(T_COLUP0 + reg - COLUP0)] = (value & 0xFE) | r[T_COLOUR_LOSS]
        return DIRTY_COLOUR
    if reg <= PF2:
        if reg == REFP0:
            r[T_REFP0] = value & 8
            return DIRTY_P0
        if reg == REFP1:
            r[T_REFP1] = value & 8
            return DIRTY_P1
        r[T_PF] = _playfield_bits(np.int64(r[T_PF]), reg, value)
        return DIRTY_PF
    if reg == RESP0 or reg == RESP1:
        player = reg - RESP0
        new = 3 if hpos < 68 else (hpos - 68 + 5) % 160
        old = np.int64(r[np.uint32(T_POSP0 + player)])
        relation = _strobe_relation(new, old, np.int64(r[np.uint32(T_NUSIZ0 + player)]))
        r[np.uint32(T_POSP0 + player)] = new
        r[np.uint32(T_SKIP0 + player)] = 0 if relation < 0 else 1
        return DIRTY_P0 << player
    if reg <= RESBL:
        r[np.uint32(T_POSM0 + reg - RESM0)] = _ball_strobe_position(reg, hpos, clock - np.int64(r[T_LAST_HMOVE]))
        if reg == RESM0:
            r[T_M0_SHAPE] = 0
        return DIRTY_M0 << (reg - RESM0)
    if reg == GRP0:
        r[T_GRP0] = value
        r[T_DELAYED_GRP1] = r[T_GRP1]
        return DIRTY_P0 | (DIRTY_P1 if r[T_VDELP1] != 0 else 0)
    if reg == GRP1:
        r[T_GRP1] = value
        r[T_DELAYED_GRP0] = r[T_GRP0]
        r[T_DELAYED_ENABL] = r[T_ENABL]
        return DIRTY_P1 | (DIRTY_P0 if r[T_VDELP0] != 0 else 0) | (DIRTY_BL if r[T_VDELBL] != 0 else 0)
    if reg <= ENABL:
        r[np.uint32(T_ENAM0 + reg - ENAM0)] = value >> 1 & 1
        return DIRTY_M0 << (reg - ENAM0)
    if reg == HMM0:
        r[T_HMM0] = value >> 4
        r[T_ARK] = 1
        r[T_ARK_COUNT] = 0
        return 0
    if reg <= VDELBL:
        r[np.uint32(T_VDELP0 + reg - VDELP0)] = value & 1
        return DIRTY_P0 | DIRTY_P1 | DIRTY_BL
    if reg == RESMP0 or reg == RESMP1:
        player = reg - RESMP0
        r[np.uint32(T_RESMP0 + player)] = value & 2
        if value & 2 == 0:
            mode = r[np.uint32(T_NUSIZ0 + player)] & 7
            middle = 8 if mode == 5 else 16 if mode == 7 else 4
            r[np.uint32(T_POSM0 + player)] = _wrapped(np.int64(r[np.uint32(T_POSP0 + player)]) + middle)
            if player == 0:
                r[T_M0_SHAPE] = 0
        return DIRTY_M0 << player
    if reg == HMOVE:
        # Most kernels strobe HMOVE on every line and move little: what stays where it is keeps its mask.
        dirty = DIRTY_P0 if r[T_SKIP0] != 0 else 0
        dirty |= DIRTY_P1 if r[T_SKIP1] != 0 else 0
        dirty |= DIRTY_M0 if r[T_M0_SHAPE] != 0 else 0
        cycle = hpos // 3
        for i in range(5):
            motion = HMOVE_MOTION[cycle, r[np.uint32(T_HMP0 + i)]]
            if motion != 0:
                r[np.uint32(T_POSP0 + i)] = _wrapped(np.int64(r[np.uint32(T_POSP0 + i)]) + motion)
                dirty |= DIRTY_P0 << i
        r[T_SKIP0] = 0
        r[T_SKIP1] = 0
        r[T_M0_SHAPE] = 0
        r[T_LAST_HMOVE] = clock
        r[T_ARK] = 0
        if comb_allowed and (cycle <= 20 or cycle == 75):
            r[T_COMB] = 1
        return dirty
    if reg == CXCLR:
        r[T_COLLISIONS] = 0
    return 0


@inlined
def draw_target(r, reg, clock, hpos):
    """Clock up to which the picture is drawn before a write takes effect."""
    delay = WRITE_DELAY[reg]
    if delay < 0:
        delay = PLAYFIELD_DELAY[(hpos // 3) & 3]
    elif reg == RESP0 or reg == RESP1:
        player = reg - RESP0
        new = 3 if hpos < 68 else (hpos - 68 + 5) % 160
        old = np.int64(r[np.uint32(T_POSP0 + player)])
        if _strobe_relation(new, old, np.int64(r[np.uint32(T_NUSIZ0 + player)])) > 0:
            delay = np.int64(11)
    return clock + delay


@kernel
def move_ark(r):
    """The Cosmic Ark effect: missile 0 drifts from line to line."""
    stand_alone()
    count = (np.int64(r[T_ARK_COUNT]) + 1) & 3
    r[T_ARK_COUNT] = count
    drift = 18 if count == 0 else 33 if count == 1 else 0 if count == 2 else 17
    r[T_POSM0] = _wrapped(np.int64(r[T_POSM0]) - drift)
    r[T_M0_SHAPE] = count if count == 1 or count == 2 else 0
