"""The TIA: pictures and collisions from a log of register accesses.

While the 6507 runs, its TIA accesses are only logged (`bus.py`). `run` replays a stretch of the log: it moves
the registers on and, for the part inside the picture, ORs collisions and draws. It is called when the game reads
a collision latch, at the end of a frame, and when somebody looks at a picture: a frame nobody looks at is
never drawn, but can be, later, from the registers at its start (`serve`).

Each object's scanline is a mask of 160 bits in three words. Between two accesses that change anything visible the
masks stand still, so a *span* of pixels is drawn 8 at a time and its collisions are a few ANDs.

Peculiarities kept, because ale-py's core has them: registers take effect a few clocks after the write
(`WRITE_DELAY`); nothing outside the picture is simulated, collisions included; when a draw stops exactly at the end
of a line, what happens between lines waits for the next draw.

Left out: sound.
"""

import numpy as np

from .jit import inlined, kernel, separate, stand_alone
from .state import (
    FRAME_START,
    LINE_WORDS,
    LOG_BASE,
    LOG_CAPACITY,
    LOG_COUNT,
    LOG_DONE,
    LOG_SLOT,
    LOGS,
    OBSERVED,
    PARTIAL,
    PICTURE,
    ROM_HEIGHT,
    ROM_HMOVE_BLANKS,
    ROM_YSTART,
    SLOT_COUNT,
    SLOT_DRAWN,
    T_ARK,
    T_ARK_COUNT,
    T_COLLISIONS,
    T_COLOUR_LOSS,
    T_COLUBK,
    T_COLUP0,
    T_COLUP1,
    T_COLUPF,
    T_COMB,
    T_CTRLPF,
    T_DELAYED_ENABL,
    T_DELAYED_GRP0,
    T_DELAYED_GRP1,
    T_ENABL,
    T_ENAM0,
    T_ENAM1,
    T_FRAME_START,
    T_GRP0,
    T_GRP1,
    T_HMM0,
    T_HMP0,
    T_LAST,
    T_LAST_HMOVE,
    T_LEFT,
    T_LINE,
    T_M0_SHAPE,
    T_MIRRORED,
    T_NUSIZ0,
    T_NUSIZ1,
    T_PF,
    T_PICTURE,
    T_POSBL,
    T_POSM0,
    T_POSM1,
    T_POSP0,
    T_POSP1,
    T_REFP0,
    T_REFP1,
    T_RESMP0,
    T_RESMP1,
    T_SKIP0,
    T_SKIP1,
    T_START,
    T_STOP,
    T_VBLANK,
    T_VDELBL,
    T_VDELP0,
    T_VDELP1,
    TIA,
    TIA_SNAPSHOTS,
    TIA_WORDS,
)
from .tia_tables import (
    COPIES,
    DOUBLED,
    HMOVE_MOTION,
    NEVER_SEEN,
    PIXELS_BELOW,
    PLAYFIELD_DELAY,
    QUADRUPLED,
    REVERSED,
    SPREAD,
    WRITE_DELAY,
)

VSYNC, VBLANK, WSYNC, RSYNC = 0x00, 0x01, 0x02, 0x03
NUSIZ0, NUSIZ1, COLUP0, COLUP1, COLUPF, COLUBK = 0x04, 0x05, 0x06, 0x07, 0x08, 0x09
CTRLPF, REFP0, REFP1, PF0, PF1, PF2 = 0x0A, 0x0B, 0x0C, 0x0D, 0x0E, 0x0F
RESP0, RESP1, RESM0, RESM1, RESBL = 0x10, 0x11, 0x12, 0x13, 0x14
GRP0, GRP1, ENAM0, ENAM1, ENABL = 0x1B, 0x1C, 0x1D, 0x1E, 0x1F
HMP0, HMP1, HMM0, HMM1, HMBL, VDELP0, VDELP1, VDELBL = 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27
RESMP0, RESMP1, HMOVE, HMCLR, CXCLR = 0x28, 0x29, 0x2A, 0x2B, 0x2C
NOTHING = 0x3F  # a log entry that only ends a draw: a read

# Collision latches, in the order of the read addresses CXM0P .. CXPPMM, bit 7 first.
M0_P1, M0_P0, M1_P0, M1_P1, P0_PF, P0_BL, P1_PF, P1_BL = 1, 2, 4, 8, 16, 32, 64, 128
M0_PF, M0_BL, M1_PF, M1_BL, BL_PF, P0_P1, M0_M1 = 256, 512, 1024, 2048, 4096, 8192, 16384

# Objects, as bits of "this mask must be made anew".
DIRTY_P0, DIRTY_P1, DIRTY_M0, DIRTY_M1, DIRTY_BL, DIRTY_PF = 1, 2, 4, 8, 16, 32
DIRTY_ALL, DIRTY_COLOUR = 63, 64

LINE_CLOCKS, BLANK_CLOCKS = 228, 68
ZERO = np.uint64(0)
ONE = np.uint64(1)
EVERY_BYTE = np.uint64(0x0101010101010101)


@inlined
def _place(bits, position):
    """A pattern of at most 32 pixels on the ring of 160, as three words."""
    if position < 64:
        return bits << np.uint64(position), (bits >> ONE) >> np.uint64(63 - position), ZERO
    if position < 128:
        return ZERO, bits << np.uint64(position - 64), (bits >> ONE) >> np.uint64(127 - position)
    return bits >> np.uint64(160 - position), ZERO, (bits << np.uint64(position - 128)) & np.uint64(0xFFFFFFFF)


@kernel
def player_mask(shown, nusiz, position, skip_first):
    """Pixels of a player: `shown` is the displayed byte, `skip_first` omits the copy at the position itself."""
    stand_alone()
    mode = nusiz & 7
    bits = REVERSED[shown]
    if mode == 5:
        bits = DOUBLED[np.int64(bits)] << ONE
    elif mode == 7:
        bits = QUADRUPLED[np.int64(bits)]
    copies = COPIES[mode]
    if skip_first != 0:
        copies &= ~np.int64(1)
    elif copies == 1:
        return _place(bits, (position + (1 if mode == 7 else 0)) % 160)
    word0, word1, word2 = ZERO, ZERO, ZERO
    for k in range(5):
        if copies >> k & 1:
            at = position + 16 * k + (1 if mode == 7 else 0)
            if at >= 160:
                at -= 160
            a, b, c = _place(bits, at)
            word0 |= a
            word1 |= b
            word2 |= c
    return word0, word1, word2


@kernel
def missile_mask(size, mode, position):
    """Pixels of a missile or the ball: `size` is the width's exponent, `mode` NUSIZ bits 0-2."""
    stand_alone()
    bits = (ONE << np.uint64(1 << size)) - ONE
    copies = COPIES[mode]
    if copies == 1:
        return _place(bits, position)
    word0, word1, word2 = ZERO, ZERO, ZERO
    for k in range(5):
        if copies >> k & 1:
            at = position + 16 * k
            if at >= 160:
                at -= 160
            a, b, c = _place(bits, at)
            word0 |= a
            word1 |= b
            word2 |= c
    return word0, word1, word2


@kernel
def playfield_mask(pf, mirrored):
    """Pixels of the playfield from its 20 bits."""
    stand_alone()
    left0 = QUADRUPLED[pf & 0xFF]
    left1 = QUADRUPLED[pf >> 8 & 0xFF]
    left2 = QUADRUPLED[pf >> 16 & 0xF]
    right0, right1, right2 = left0, left1, left2
    if mirrored != 0:
        low = np.int64(REVERSED[pf & 0xFF])
        middle = np.int64(REVERSED[pf >> 8 & 0xFF])
        high = np.int64(REVERSED[pf >> 16 & 0xF]) >> 4
        backwards = high | middle << 4 | low << 12
        right0 = QUADRUPLED[backwards & 0xFF]
        right1 = QUADRUPLED[backwards >> 8 & 0xFF]
        right2 = QUADRUPLED[backwards >> 16 & 0xF]
    word0 = left0 | left1 << np.uint64(32)
    word1 = left2 | right0 << np.uint64(16) | right1 << np.uint64(48)
    word2 = right1 >> np.uint64(16) | right2 << np.uint64(16)
    return word0, word1, word2


@inlined
def shown_player0(r):
    """The byte player 0 displays, leftmost pixel in bit 7."""
    byte = np.int64(r[T_DELAYED_GRP0] if r[T_VDELP0] != 0 else r[T_GRP0])
    return np.int64(REVERSED[byte]) if r[T_REFP0] != 0 else byte


@inlined
def shown_player1(r):
    """The byte player 1 displays."""
    byte = np.int64(r[T_DELAYED_GRP1] if r[T_VDELP1] != 0 else r[T_GRP1])
    return np.int64(REVERSED[byte]) if r[T_REFP1] != 0 else byte


@inlined
def ball_enabled(r):
    """ENABL or its delayed copy."""
    return np.int64(r[T_DELAYED_ENABL] if r[T_VDELBL] != 0 else r[T_ENABL])


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
def _is_effective(r, reg, value, clock):
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
def _apply(r, reg, value, clock, hpos, comb_allowed):
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
        return DIRTY_P0 | DIRTY_P1
    if reg == GRP1:
        r[T_GRP1] = value
        r[T_DELAYED_GRP0] = r[T_GRP0]
        r[T_DELAYED_ENABL] = r[T_ENABL]
        return DIRTY_P0 | DIRTY_P1 | DIRTY_BL
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
        cycle = hpos // 3
        for i in range(5):
            position = np.int64(r[np.uint32(T_POSP0 + i)]) + HMOVE_MOTION[cycle, r[np.uint32(T_HMP0 + i)]]
            r[np.uint32(T_POSP0 + i)] = _wrapped(position)
        r[T_SKIP0] = 0
        r[T_SKIP1] = 0
        r[T_M0_SHAPE] = 0
        r[T_LAST_HMOVE] = clock
        r[T_ARK] = 0
        if comb_allowed and (cycle <= 20 or cycle == 75):
            r[T_COMB] = 1
        return DIRTY_P0 | DIRTY_P1 | DIRTY_M0 | DIRTY_M1 | DIRTY_BL
    if reg == CXCLR:
        r[T_COLLISIONS] = 0
    return 0


@inlined
def _draw_target(r, reg, clock, hpos):
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


@separate("void(int32[::1], uint64[::1], int64, int64, int64, int64, int64, int64, boolean)")
def run(s, screen, t, log, begin, end, base, last_clock, draw):
    """Replay log entries `begin` to `end` (exclusive) on the registers at `t`, then draw up to `last_clock`.

    Times of entries count from cycle `base`. Collisions are ORed into T_COLLISIONS. With `draw` the pixels are written to `screen` as well.
    """
    stand_alone()
    r = s[t : t + TIA_WORDS]
    comb_allowed = s[ROM_HMOVE_BLANKS] != 0
    last = np.int64(r[T_LAST])
    left = np.int64(r[T_LEFT])
    stop = np.int64(r[T_STOP])
    start = np.int64(r[T_START])
    frame_start = np.int64(r[T_FRAME_START])
    line = np.int64(r[T_LINE])
    comb = r[T_COMB] != 0
    dirty = DIRTY_ALL
    same_as_above = False  # this line has looked like the one above so far, and that one is drawn in full
    collided = False  # the masks of this whole line have been checked for collisions already
    p0a, p0b, p0c, p1a, p1b, p1c = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
    m0a, m0b, m0c, m1a, m1b, m1c = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
    bla, blb, blc, pfa, pfb, pfc = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
    for i in range(begin, end + 1):
        reg, value, clock, hpos = np.int64(NOTHING), np.int64(0), np.int64(0), np.int64(0)
        target = np.int64(last_clock)
        if i < end:
            entry = np.int64(s[np.uint32(log + i)])
            reg = entry >> 8 & 0x3F
            if NEVER_SEEN[np.uint32(reg)]:
                continue
            value = entry & 0xFF
            clock = 3 * ((entry >> 14) + base)
            if not _is_effective(r, reg, value, clock):
                continue
            hpos = (clock - frame_start) % LINE_CLOCKS
            target = _draw_target(r, reg, clock, hpos)

        if start <= target and last < stop and last < target:
            target = min(target, stop)
            while True:
                position = LINE_CLOCKS - left
                if target > last + left:
                    clocks = left
                    left = np.int64(LINE_CLOCKS)
                    last += clocks
                else:
                    clocks = target - last
                    left -= clocks
                    last = target
                x0 = max(position, BLANK_CLOCKS) - BLANK_CLOCKS
                x1 = position + clocks - BLANK_CLOCKS
                if x1 > x0:
                    blanked = r[T_VBLANK] & 2 != 0
                    if dirty & DIRTY_ALL and not blanked:
                        if dirty & DIRTY_P0:
                            shown = shown_player0(r)
                            p0a, p0b, p0c = ZERO, ZERO, ZERO
                            if shown != 0:
                                p0a, p0b, p0c = player_mask(shown, np.int64(r[T_NUSIZ0]), np.int64(r[T_POSP0]), r[T_SKIP0])
                        if dirty & DIRTY_P1:
                            shown = shown_player1(r)
                            p1a, p1b, p1c = ZERO, ZERO, ZERO
                            if shown != 0:
                                p1a, p1b, p1c = player_mask(shown, np.int64(r[T_NUSIZ1]), np.int64(r[T_POSP1]), r[T_SKIP1])
                        if dirty & DIRTY_M0:
                            m0a, m0b, m0c = ZERO, ZERO, ZERO
                            shape = r[T_M0_SHAPE]
                            if r[T_ENAM0] != 0 and r[T_RESMP0] == 0 and shape != 2:
                                size = np.int64(r[T_NUSIZ0]) >> 4 & 3
                                m0a, m0b, m0c = missile_mask(size | (1 if shape == 1 else 0), np.int64(r[T_NUSIZ0]) & 7, np.int64(r[T_POSM0]))
                        if dirty & DIRTY_M1:
                            m1a, m1b, m1c = ZERO, ZERO, ZERO
                            if r[T_ENAM1] != 0 and r[T_RESMP1] == 0:
                                m1a, m1b, m1c = missile_mask(np.int64(r[T_NUSIZ1]) >> 4 & 3, np.int64(r[T_NUSIZ1]) & 7, np.int64(r[T_POSM1]))
                        if dirty & DIRTY_BL:
                            bla, blb, blc = ZERO, ZERO, ZERO
                            if ball_enabled(r) != 0:
                                bla, blb, blc = missile_mask(np.int64(r[T_CTRLPF]) >> 4 & 3, np.int64(0), np.int64(r[T_POSBL]))
                        if dirty & DIRTY_PF:
                            pfa, pfb, pfc = ZERO, ZERO, ZERO
                            if r[T_PF] != 0:
                                pfa, pfb, pfc = playfield_mask(np.int64(r[T_PF]), r[T_MIRRORED])
                        dirty = 0
                        same_as_above = False
                        collided = False
                    if dirty & DIRTY_COLOUR:
                        same_as_above = False
                        dirty &= ~DIRTY_COLOUR

                    if not blanked and not collided:
                        va = PIXELS_BELOW[x1, 0] & ~PIXELS_BELOW[x0, 0]
                        vb = PIXELS_BELOW[x1, 1] & ~PIXELS_BELOW[x0, 1]
                        vc = PIXELS_BELOW[x1, 2] & ~PIXELS_BELOW[x0, 2]
                        hits = 0
                        if (pfa | pfb | pfc) != ZERO:
                            qa, qb, qc = pfa & va, pfb & vb, pfc & vc
                            hits |= P0_PF if ((p0a & qa) | (p0b & qb) | (p0c & qc)) != ZERO else 0
                            hits |= P1_PF if ((p1a & qa) | (p1b & qb) | (p1c & qc)) != ZERO else 0
                            hits |= M0_PF if ((m0a & qa) | (m0b & qb) | (m0c & qc)) != ZERO else 0
                            hits |= M1_PF if ((m1a & qa) | (m1b & qb) | (m1c & qc)) != ZERO else 0
                            hits |= BL_PF if ((bla & qa) | (blb & qb) | (blc & qc)) != ZERO else 0
                        if (p0a | p0b | p0c) != ZERO:
                            qa, qb, qc = p0a & va, p0b & vb, p0c & vc
                            hits |= P0_P1 if ((p1a & qa) | (p1b & qb) | (p1c & qc)) != ZERO else 0
                            hits |= M0_P0 if ((m0a & qa) | (m0b & qb) | (m0c & qc)) != ZERO else 0
                            hits |= M1_P0 if ((m1a & qa) | (m1b & qb) | (m1c & qc)) != ZERO else 0
                            hits |= P0_BL if ((bla & qa) | (blb & qb) | (blc & qc)) != ZERO else 0
                        if (p1a | p1b | p1c) != ZERO:
                            qa, qb, qc = p1a & va, p1b & vb, p1c & vc
                            hits |= M0_P1 if ((m0a & qa) | (m0b & qb) | (m0c & qc)) != ZERO else 0
                            hits |= M1_P1 if ((m1a & qa) | (m1b & qb) | (m1c & qc)) != ZERO else 0
                            hits |= P1_BL if ((bla & qa) | (blb & qb) | (blc & qc)) != ZERO else 0
                        if (m0a | m0b | m0c) != ZERO:
                            qa, qb, qc = m0a & va, m0b & vb, m0c & vc
                            hits |= M0_M1 if ((m1a & qa) | (m1b & qb) | (m1c & qc)) != ZERO else 0
                            hits |= M0_BL if ((bla & qa) | (blb & qb) | (blc & qc)) != ZERO else 0
                        if ((m1a & bla & va) | (m1b & blb & vb) | (m1c & blc & vc)) != ZERO:
                            hits |= M1_BL
                        r[T_COLLISIONS] |= hits
                        collided = x0 == 0 and x1 == 160

                    if draw:
                        at = np.int64(r[T_PICTURE]) + line * LINE_WORDS
                        if blanked:
                            _draw_blank(screen, at, x0, x1)
                        elif same_as_above and x0 == 0 and x1 == 160:
                            for word in range(LINE_WORDS):
                                screen[at + word] = screen[at - LINE_WORDS + word]
                        else:
                            _draw_span(
                                r, screen, at, x0, x1,
                                p0a | m0a, p0b | m0b, p0c | m0c, p1a | m1a, p1b | m1b, p1c | m1c,
                                pfa, pfb, pfc, bla, blb, blc,
                            )  # fmt: skip
                            same_as_above = x0 == 0 and x1 == 160
                        if blanked:
                            same_as_above = False
                        if comb and x0 < 8:
                            screen[at] = ZERO
                if comb and position < 76 and position + clocks >= 76:
                    comb = False
                    r[T_COMB] = 0
                    same_as_above = False

                if left == LINE_CLOCKS:
                    line += 1
                    if r[T_MIRRORED] != r[T_CTRLPF] & 1:
                        r[T_MIRRORED] = r[T_CTRLPF] & 1
                        dirty |= DIRTY_PF
                    if r[T_SKIP0] != 0:
                        r[T_SKIP0] = 0
                        dirty |= DIRTY_P0
                    if r[T_SKIP1] != 0:
                        r[T_SKIP1] = 0
                        dirty |= DIRTY_P1
                    if r[T_ARK] != 0:
                        _move_ark(r)
                        dirty |= DIRTY_M0
                if last >= target:
                    break
        if i < end:
            dirty |= _apply(r, reg, value, clock, hpos, comb_allowed)
            comb = r[T_COMB] != 0
    r[T_LAST] = last
    r[T_LEFT] = left
    r[T_LINE] = line


@kernel
def _move_ark(r):
    """The Cosmic Ark effect: missile 0 drifts from line to line."""
    stand_alone()
    count = (np.int64(r[T_ARK_COUNT]) + 1) & 3
    r[T_ARK_COUNT] = count
    drift = 18 if count == 0 else 33 if count == 1 else 0 if count == 2 else 17
    r[T_POSM0] = _wrapped(np.int64(r[T_POSM0]) - drift)
    r[T_M0_SHAPE] = count if count == 1 or count == 2 else 0


@kernel
def _draw_blank(screen, at, x0, x1):
    """Pixels x0 .. x1-1 of the line at word `at` become 0."""
    stand_alone()
    for group in range(x0 >> 3, (x1 + 7) >> 3):
        keep = ZERO
        if x0 > 8 * group:
            keep |= (ONE << np.uint64(8 * (x0 - 8 * group))) - ONE
        if x1 < 8 * group + 8:
            keep |= ~((ONE << np.uint64(8 * (x1 - 8 * group))) - ONE)
        screen[at + group] &= keep


@inlined
def _draw_span(r, screen, at, x0, x1, aa, ab, ac, ba, bb, bc, pa, pb, pc, la, lb, lc):
    """Draw pixels x0 .. x1-1 of the line at word `at`, 8 at a time, from back to front.

    Masks of three words each: a* player and missile 0, b* player and missile 1, p* playfield, l* ball.
    """
    control = r[T_CTRLPF]
    colour_bk = np.uint64(r[T_COLUBK]) * EVERY_BYTE
    colour_pf = np.uint64(r[T_COLUPF]) * EVERY_BYTE
    colour_p0 = np.uint64(r[T_COLUP0]) * EVERY_BYTE
    colour_p1 = np.uint64(r[T_COLUP1]) * EVERY_BYTE
    playfield_first = control & 4 != 0
    score = control & 2 != 0
    if playfield_first and score:
        # Quirk: score colours hold with priority only while the playfield is the one enabled object.
        score = not (
            shown_player0(r) != 0
            or shown_player1(r) != 0
            or (r[T_ENAM0] != 0 and r[T_RESMP0] == 0)
            or (r[T_ENAM1] != 0 and r[T_RESMP1] == 0)
            or ball_enabled(r) != 0
        )
    first = x0 >> 3
    after = (x1 + 7) >> 3
    for group in range(first, after):
        shift = np.uint64((group & 7) << 3)
        if group < 8:
            a, b, p, l = aa >> shift, ba >> shift, pa >> shift, la >> shift
        elif group < 16:
            a, b, p, l = ab >> shift, bb >> shift, pb >> shift, lb >> shift
        else:
            a, b, p, l = ac >> shift, bc >> shift, pc >> shift, lc >> shift
        pixels = colour_bk
        if ((a | b | l) & np.uint64(0xFF)) == ZERO:
            colour = colour_pf
            if score:
                colour = colour_p0 if group < 10 else colour_p1
            pixels ^= (pixels ^ colour) & SPREAD[np.uint32(p & np.uint64(0xFF))]
        else:
            mask_a = SPREAD[np.uint32(a & np.uint64(0xFF))]
            mask_b = SPREAD[np.uint32(b & np.uint64(0xFF))]
            mask_p = SPREAD[np.uint32(p & np.uint64(0xFF))]
            mask_l = SPREAD[np.uint32(l & np.uint64(0xFF))]
            colour = colour_pf
            if score:
                colour = colour_p0 if group < 10 else colour_p1
            if playfield_first:
                pixels ^= (pixels ^ colour_p1) & mask_b
                pixels ^= (pixels ^ colour_p0) & mask_a
                pixels ^= (pixels ^ colour_pf) & mask_l
                pixels ^= (pixels ^ colour) & mask_p
            else:
                pixels ^= (pixels ^ colour_pf) & mask_l
                if score and group < 10:
                    # Quirk: left of the middle player and missile 1 do not cover a lit playfield pixel.
                    pixels ^= (pixels ^ colour_p1) & mask_b
                    pixels ^= (pixels ^ colour) & mask_p
                else:
                    pixels ^= (pixels ^ colour) & mask_p
                    pixels ^= (pixels ^ colour_p1) & mask_b
                pixels ^= (pixels ^ colour_p0) & mask_a
        if group == first and x0 & 7:
            keep = (ONE << np.uint64((x0 & 7) << 3)) - ONE
            pixels ^= (pixels ^ screen[at + group]) & keep
        if group == after - 1 and x1 & 7:
            keep = ~((ONE << np.uint64((x1 & 7) << 3)) - ONE)
            pixels ^= (pixels ^ screen[at + group]) & keep
        screen[at + group] = pixels


# --- frames, slots and pictures -------------------------------------------------------------------------------------


@separate("void(int32[::1], uint64[::1])")
def reset(s, screen):
    """System reset: registers and both pictures 0, no frame pending."""
    stand_alone()
    for i in range(TIA_WORDS):
        s[TIA + i] = 0
    for i in range(len(screen)):
        screen[i] = ZERO
    for slot in range(3):
        s[SLOT_DRAWN + slot] = DRAWN
        s[SLOT_COUNT + slot] = 0
    s[LOG_COUNT] = 0
    s[LOG_DONE] = 0
    s[LOG_BASE] = 0
    s[LOG_SLOT] = 0
    s[PICTURE] = 0
    start = LINE_CLOCKS * np.int64(s[ROM_YSTART])
    s[TIA + T_START] = start
    s[TIA + T_STOP] = start + LINE_CLOCKS * np.int64(s[ROM_HEIGHT])
    s[TIA + T_LAST] = start
    s[TIA + T_LEFT] = LINE_CLOCKS


@kernel
def start_frame(s, cycles, colour_loss):
    """Swap pictures and rebase clocks by `cycles`; the caller has set the new FRAME_START."""
    stand_alone()
    s[LOG_SLOT] = (s[LOG_SLOT] + 1) % 3
    s[PICTURE] ^= 1
    s[LOG_COUNT] = 0
    s[LOG_DONE] = 0
    s[LOG_BASE] = 0
    start = np.int64(s[FRAME_START]) + LINE_CLOCKS * np.int64(s[ROM_YSTART])
    s[TIA + T_FRAME_START] = s[FRAME_START]
    s[TIA + T_START] = start
    s[TIA + T_STOP] = start + LINE_CLOCKS * np.int64(s[ROM_HEIGHT])
    s[TIA + T_LAST] = start
    s[TIA + T_LEFT] = LINE_CLOCKS
    s[TIA + T_LINE] = 0
    s[TIA + T_PICTURE] = np.int64(s[PICTURE]) * np.int64(s[ROM_HEIGHT]) * LINE_WORDS
    s[TIA + T_LAST_HMOVE] -= 3 * cycles
    s[TIA + T_COLOUR_LOSS] = colour_loss
    for i in range(4):
        s[TIA + T_COLUP0 + i] = (s[TIA + T_COLUP0 + i] & 0xFE) | colour_loss
    slot = np.int64(s[LOG_SLOT])
    s[SLOT_DRAWN + slot] = DRAWING if s[OBSERVED] != 0 else PENDING
    for i in range(TIA_WORDS):
        s[TIA_SNAPSHOTS + slot * TIA_WORDS + i] = s[TIA + i]


@inlined
def last_access_target(s, t, log, count, base):
    """Clock up to which the log's last access draws."""
    target = np.int64(s[t + T_LAST])
    if count > 0:
        entry = np.int64(s[log + count - 1])
        reg = entry >> 8 & 0x3F
        clock = 3 * ((entry >> 14) + base)
        hpos = (clock - np.int64(s[t + T_FRAME_START])) % LINE_CLOCKS
        delay = WRITE_DELAY[reg]
        target = clock + (PLAYFIELD_DELAY[(hpos // 3) & 3] if delay < 0 else delay)
    return target


# SLOT_DRAWN: not drawn, drawn for good, being drawn as it runs while log and snapshot still hold all of it.
PENDING, DRAWN, DRAWING = 0, 1, 2

# What `serve` can be asked for.
CATCH_UP, SETTLE, END_FRAME, SHOW = 0, 1, 2, 3


@separate("void(int32[::1], uint64[::1], int64)")
def serve(s, screen, request):
    """Bring registers, collisions and pictures as far as `request` needs them.

    CATCH_UP: the live TIA takes in the whole log, for a collision latch that is read. SETTLE: all that has happened in
    the current frame is put on its picture and the log is emptied; from here on the frame is drawn as it runs, because
    the start of its log is gone. END_FRAME: the frame is complete. SHOW: the current picture shall be looked at.

    One function with one place that replays, because whatever contains `run` takes long to compile.
    """
    stand_alone()
    slot = np.int64(s[LOG_SLOT])
    two_ago = (slot + 1) % 3
    count = np.int64(s[LOG_COUNT])
    status = s[SLOT_DRAWN + slot]
    s[SLOT_COUNT + slot] = count
    final = False  # the picture must hold the current frame, over what it held before
    # First the live registers, then, if needed, the frame two ago and the current one from their snapshots.
    for stage in range(3):
        t, log, begin, end, base, draw = np.int64(TIA), LOGS + slot * LOG_CAPACITY, np.int64(0), count, np.int64(0), False
        if stage == 0:
            if s[LOG_DONE] == count:
                continue
            begin = np.int64(s[LOG_DONE])
            base = np.int64(s[LOG_BASE])
            draw = status != PENDING
        else:
            if stage == 1:
                # A frame cut short, or that may yet be, shows below what its picture held: the frame two ago.
                cut = request == END_FRAME and s[TIA + T_LAST] < s[TIA + T_STOP]
                unfinished = request == SETTLE or (request == SHOW and s[PARTIAL] != 0)
                final = cut or unfinished
                if status == DRAWN or not final or s[SLOT_DRAWN + two_ago] != PENDING:
                    continue
                if status == DRAWING:
                    status = np.int32(PENDING)  # what is drawn already will be drawn over
            elif status != PENDING or not (final or request == SHOW):
                continue
            which = two_ago if stage == 1 else slot
            t = TIA_SNAPSHOTS + which * TIA_WORDS
            log = LOGS + which * LOG_CAPACITY
            end = np.int64(s[SLOT_COUNT + which])
            draw = True
            if stage == 1:
                s[SLOT_DRAWN + which] = DRAWN
            else:
                status = np.int32(DRAWN)
        run(s, screen, t, log, begin, end, base, last_access_target(s, t, log, end, base), draw)
    if status == DRAWING and (final or request == END_FRAME):
        status = np.int32(DRAWN)
    s[SLOT_DRAWN + slot] = status
    s[LOG_DONE] = count
    if request == SETTLE or (request == SHOW and s[PARTIAL] != 0):
        s[LOG_COUNT] = 0
        s[LOG_DONE] = 0
