"""Where the TIA's objects are on a line: masks of 160 pixels in three words, pixel 0 lowest."""

import numpy as np

from .jit import inlined, kernel, stand_alone
from .state import (
    T_DELAYED_ENABL,
    T_DELAYED_GRP0,
    T_DELAYED_GRP1,
    T_ENABL,
    T_GRP0,
    T_GRP1,
    T_REFP0,
    T_REFP1,
    T_VDELBL,
    T_VDELP0,
    T_VDELP1,
)
from .tia_tables import COPIES, DOUBLED, QUADRUPLED, REVERSED

ZERO = np.uint64(0)
ONE = np.uint64(1)


@inlined
def _place(bits, position):
    """A pattern of at most 32 pixels on the ring of 160, as three words."""
    if position < 64:
        return bits << np.uint64(position), (bits >> ONE) >> np.uint64(63 - position), ZERO
    if position < 128:
        return ZERO, bits << np.uint64(position - 64), (bits >> ONE) >> np.uint64(127 - position)
    return bits >> np.uint64(160 - position), ZERO, (bits << np.uint64(position - 128)) & np.uint64(0xFFFFFFFF)


@inlined
def _copies_of(bits, copies, position):
    """A pattern at every copy in `copies`, bit k standing for 16 k pixels to the right."""
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
    """Pixels of a player: `shown` is the displayed byte, `skip_first` omits the copy at the position itself."""
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
    """Pixels of a missile or the ball: `size` is the width's exponent, `mode` NUSIZ bits 0-2."""
    stand_alone()
    bits = (ONE << np.uint64(1 << size)) - ONE
    copies = COPIES[mode]
    return _place(bits, position) if copies == 1 else _copies_of(bits, copies, position)


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
