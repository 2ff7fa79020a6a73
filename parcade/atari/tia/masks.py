"""Pixels of the TIA's objects on a line: masks of 160 bits in three words, pixel 0 lowest."""

import numpy as np

from ..compiling.jit import inlined, kernel, stand_alone
from ..state import (
    T_CTRLPF,
    T_DELAYED_ENABL,
    T_DELAYED_GRP0,
    T_DELAYED_GRP1,
    T_ENABL,
    T_ENAM0,
    T_ENAM1,
    T_GRP0,
    T_GRP1,
    T_M0_SHAPE,
    T_MIRRORED,
    T_NUSIZ0,
    T_NUSIZ1,
    T_PF,
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
    T_VDELBL,
    T_VDELP0,
    T_VDELP1,
)
from .tables import COPIES, DOUBLED, PIXELS_BELOW, QUADRUPLED, REVERSED

# Bits of sets of objects, named after their first use: the objects whose masks must be recomputed.
DIRTY_P0, DIRTY_P1, DIRTY_M0, DIRTY_M1, DIRTY_BL, DIRTY_PF = 1, 2, 4, 8, 16, 32

ZERO = np.uint64(0)
ONE = np.uint64(1)


@inlined
def union(a, b):
    """Return the pixels of either mask."""
    return a[0] | b[0], a[1] | b[1], a[2] | b[2]


@inlined
def common(a, b):
    """Return the pixels of both masks."""
    return a[0] & b[0], a[1] & b[1], a[2] & b[2]


@inlined
def meet(a, b):
    """Return whether two masks have a pixel in common."""
    return (a[0] & b[0]) | (a[1] & b[1]) | (a[2] & b[2]) != ZERO


@inlined
def pixels_between(x0, x1):
    """Return pixels x0 .. x1-1."""
    left, right = np.uint32(x0), np.uint32(x1)
    return (
        PIXELS_BELOW[right, 0] & ~PIXELS_BELOW[left, 0],
        PIXELS_BELOW[right, 1] & ~PIXELS_BELOW[left, 1],
        PIXELS_BELOW[right, 2] & ~PIXELS_BELOW[left, 2],
    )


@inlined
def _place(bits, position):
    """Place a pattern of at most 32 pixels on the ring of 160 pixels; return three words."""
    shift = np.uint64(position & 63)
    low = bits << shift
    high = (bits >> ONE) >> (np.uint64(63) - shift)
    word0 = low if position < 64 else low >> np.uint64(32) if position >= 128 else ZERO
    word1 = high if position < 64 else low if position < 128 else ZERO
    word2 = ZERO if position < 64 else high if position < 128 else low & np.uint64(0xFFFFFFFF)
    return word0, word1, word2


@inlined
def _copies_of(bits, copies, position):
    """Place a pattern at every copy in `copies`; bit k is the copy 16 * k pixels to the right."""
    word0, word1, word2 = ZERO, ZERO, ZERO
    for k in range(5):
        if copies >> k & 1:
            at = position + 16 * k
            a, b, c = _place(bits, at - 160 if at >= 160 else at)
            word0 |= a
            word1 |= b
            word2 |= c
    return word0, word1, word2


@kernel
def player_mask(shown, nusiz, position, skip_first):
    """Return the pixels of a player. `shown` is the displayed byte; `skip_first` omits the first copy."""
    stand_alone()
    mode = nusiz & 7
    bits = REVERSED[shown]
    if mode == 5:
        bits = DOUBLED[np.int64(bits)] << ONE
    elif mode == 7:
        bits = QUADRUPLED[np.int64(bits)]
    if mode == 7:
        position += 1
    copies = COPIES[mode]
    if skip_first != 0:
        copies &= ~np.int64(1)
    elif copies == 1:
        return _place(bits, position - 160 if position >= 160 else position)
    return _copies_of(bits, copies, position)


@kernel
def missile_mask(size, mode, position):
    """Return the pixels of a missile or the ball, 2**`size` wide. `mode` is NUSIZ bits 0-2."""
    stand_alone()
    bits = (ONE << np.uint64(1 << size)) - ONE
    copies = COPIES[mode]
    return _place(bits, position) if copies == 1 else _copies_of(bits, copies, position)


@kernel
def playfield_mask(pf, mirrored):
    """Return the pixels of the playfield from its 20 bits."""
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
def player0_byte(r):
    """Return the byte that player 0 displays, before reflection."""
    return np.int64(r[T_DELAYED_GRP0] if r[T_VDELP0] != 0 else r[T_GRP0])


@inlined
def player1_byte(r):
    """Return the byte that player 1 displays, before reflection."""
    return np.int64(r[T_DELAYED_GRP1] if r[T_VDELP1] != 0 else r[T_GRP1])


@inlined
def ball_enabled(r):
    """Return ENABL, or its delayed copy if VDELBL is set."""
    return np.int64(r[T_DELAYED_ENABL] if r[T_VDELBL] != 0 else r[T_ENABL])


@inlined
def enabled_objects(r):
    """Return the objects that may have pixels, as DIRTY_ bits."""
    objects = DIRTY_P0 if player0_byte(r) != 0 else 0
    objects |= DIRTY_P1 if player1_byte(r) != 0 else 0
    objects |= DIRTY_M0 if (r[T_ENAM0] != 0) & (r[T_RESMP0] == 0) else 0
    objects |= DIRTY_M1 if (r[T_ENAM1] != 0) & (r[T_RESMP1] == 0) else 0
    objects |= DIRTY_BL if ball_enabled(r) != 0 else 0
    return objects | (DIRTY_PF if r[T_PF] != 0 else 0)


@inlined
def mask_of_player0(r):
    shown = player0_byte(r)
    if shown == 0:
        return ZERO, ZERO, ZERO
    shown = np.int64(REVERSED[shown]) if r[T_REFP0] != 0 else shown
    return player_mask(shown, np.int64(r[T_NUSIZ0]), np.int64(r[T_POSP0]), r[T_SKIP0])


@inlined
def mask_of_player1(r):
    shown = player1_byte(r)
    if shown == 0:
        return ZERO, ZERO, ZERO
    shown = np.int64(REVERSED[shown]) if r[T_REFP1] != 0 else shown
    return player_mask(shown, np.int64(r[T_NUSIZ1]), np.int64(r[T_POSP1]), r[T_SKIP1])


@inlined
def mask_of_missile0(r):
    shape = r[T_M0_SHAPE]
    if r[T_ENAM0] == 0 or r[T_RESMP0] != 0 or shape == 2:
        return ZERO, ZERO, ZERO
    size = np.int64(r[T_NUSIZ0]) >> 4 & 3
    return missile_mask(size | (1 if shape == 1 else 0), np.int64(r[T_NUSIZ0]) & 7, np.int64(r[T_POSM0]))


@inlined
def mask_of_missile1(r):
    if r[T_ENAM1] == 0 or r[T_RESMP1] != 0:
        return ZERO, ZERO, ZERO
    return missile_mask(np.int64(r[T_NUSIZ1]) >> 4 & 3, np.int64(r[T_NUSIZ1]) & 7, np.int64(r[T_POSM1]))


@inlined
def mask_of_ball(r):
    if ball_enabled(r) == 0:
        return ZERO, ZERO, ZERO
    return missile_mask(np.int64(r[T_CTRLPF]) >> 4 & 3, np.int64(0), np.int64(r[T_POSBL]))


@inlined
def mask_of_playfield(r):
    if r[T_PF] == 0:
        return ZERO, ZERO, ZERO
    return playfield_mask(np.int64(r[T_PF]), r[T_MIRRORED])
