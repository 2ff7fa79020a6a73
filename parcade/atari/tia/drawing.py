"""Drawing of the pixels of a span of a scanline, from masks and colours.

A CPU draws 64 pixels at a time by vector instructions. A GPU's thread records the span instead (`spans.py`).
"""

import numpy as np

from ..compiling.jit import inlined, kernel, stand_alone
from ..primitives.simd import blend
from ..state import (
    LINE_WORDS,
    T_COLUBK,
    T_COLUP0,
    T_COLUP1,
    T_COLUPF,
    T_CTRLPF,
    T_ENAM0,
    T_ENAM1,
    T_RESMP0,
    T_RESMP1,
)
from .masks import ONE, ZERO, ball_enabled, player0_byte, player1_byte
from .tables import PIXELS_BELOW

EVERY_BYTE = np.uint64(0x0101010101010101)
LEFT_OF_MIDDLE = np.uint64(0xFFFF)  # in the second of three words: pixels 64 to 79
MIDDLE_GROUP = 10  # the first group of 8 pixels in the right half
HALF = np.uint64(32)
FOUR_BITS, SPREADING, FOUR_BYTES = np.uint64(0xF), np.uint64(0x204081), np.uint64(0x01010101)


@kernel
def draw_blank(screen, at, x0, x1):
    """Set pixels x0 .. x1-1 of the line at word `at` to 0."""
    stand_alone()
    first, last = np.uint64(at + (x0 >> 3)), np.uint64(at + ((x1 - 1) >> 3))
    head, tail = screen[first], screen[last]
    for word in range(first, last + np.uint64(1)):
        screen[word] = ZERO
    if x0 & 7:
        keep = (ONE << np.uint64((x0 & 7) << 3)) - ONE
        screen[first] ^= (screen[first] ^ head) & keep
    if x1 & 7:
        keep = ~((ONE << np.uint64((x1 & 7) << 3)) - ONE)
        screen[last] ^= (screen[last] ^ tail) & keep


@inlined
def copy_line_above(screen, at):
    """Copy the line above the line at word `at` to it."""
    first = np.uint64(at)
    for word in range(LINE_WORDS):
        screen[first + np.uint64(word)] = screen[first - np.uint64(LINE_WORDS - word)]


@inlined
def spread(bits):
    """Return 8 pixels of a mask, one per bit, as bytes 0 or 255."""
    low = ((bits & FOUR_BITS) * SPREADING & FOUR_BYTES) * np.uint64(255)
    high = ((bits >> np.uint64(4)) * SPREADING & FOUR_BYTES) * np.uint64(255)
    return low | high << HALF


@inlined
def _mix(screen, at, inside, a, b, field, background, colour_a, colour_b, left, right, middle):
    """Draw the pixels `inside` of the 64 pixels at word `at`. The masks a, b and field are disjoint.

    The colour of `field` is `left` before group `middle` of 8 pixels, and `right` from that group on.
    """
    right_half = ZERO if middle >= 8 else ~ZERO << np.uint64(8 * max(middle, 0))
    masks = (a, b, field & ~right_half, field & right_half)
    blend(screen, at, inside, background, masks, (colour_a, colour_b, left, right))


@inlined
def has_score_colours(r):
    """Return whether the halves of the playfield have the players' colours."""
    control = r[T_CTRLPF]
    if control & 6 != 6:
        return control & 2 != 0
    # Quirk: with playfield priority, score colours apply only if no other object is enabled.
    return not (
        player0_byte(r) != 0
        or player1_byte(r) != 0
        or (r[T_ENAM0] != 0 and r[T_RESMP0] == 0)
        or (r[T_ENAM1] != 0 and r[T_RESMP1] == 0)
        or ball_enabled(r) != 0
    )


@inlined
def layered(priority, score, first_pair, second_pair, playfield, ball):
    """Return the pixels of the pairs, the playfield and the ball that nothing covers, as disjoint masks.

    A pair is a player with its missile; `priority` puts playfield and ball over them. The playfield includes
    the ball, unless they differ in colour because of `score`. All masks have three words, named by number.
    """
    a0, a1, a2 = first_pair
    b0, b1, b2 = second_pair
    f0, f1, f2 = playfield
    l0, l1, l2 = ball
    if priority:
        a0, a1, a2 = a0 & ~(f0 | l0), a1 & ~(f1 | l1), a2 & ~(f2 | l2)
        b0, b1, b2 = b0 & ~(f0 | l0), b1 & ~(f1 | l1), b2 & ~(f2 | l2)
    elif score:
        # Quirk: in the left half, player 1 and missile 1 do not cover playfield pixels.
        b0 &= ~f0
        b1 &= ~(f1 & LEFT_OF_MIDDLE)
    b0, b1, b2 = b0 & ~a0, b1 & ~a1, b2 & ~a2
    f0, f1, f2 = f0 & ~(a0 | b0), f1 & ~(a1 | b1), f2 & ~(a2 | b2)
    l0, l1, l2 = l0 & ~(a0 | b0 | f0), l1 & ~(a1 | b1 | f1), l2 & ~(a2 | b2 | f2)
    if not score:
        f0, f1, f2 = f0 | l0, f1 | l1, f2 | l2
        l0, l1, l2 = ZERO, ZERO, ZERO
    return (a0, a1, a2), (b0, b1, b2), (f0, f1, f2), (l0, l1, l2)


@inlined
def draw_span(r, screen, at, x0, x1, first_pair, second_pair, playfield, ball):
    """Draw pixels x0 .. x1-1 of the line at word `at`: the background and the objects over it."""
    score = has_score_colours(r)
    (a0, a1, a2), (b0, b1, b2), (f0, f1, f2), (l0, l1, l2) = layered(
        r[T_CTRLPF] & 4 != 0, score, first_pair, second_pair, playfield, ball
    )
    background = np.uint64(r[T_COLUBK]) * EVERY_BYTE
    colour_f = np.uint64(r[T_COLUPF]) * EVERY_BYTE
    colour_a = np.uint64(r[T_COLUP0]) * EVERY_BYTE
    colour_b = np.uint64(r[T_COLUP1]) * EVERY_BYTE
    left, right = (colour_a, colour_b) if score else (colour_f, colour_f)
    for part in range(x0 >> 6, ((x1 - 1) >> 6) + 1):
        inside = PIXELS_BELOW[np.uint32(x1), np.uint32(part)] & ~PIXELS_BELOW[np.uint32(x0), np.uint32(part)]
        first, a, b, field, ball = 0, a0, b0, f0, l0
        if part == 1:
            first, a, b, field, ball = 8, a1, b1, f1, l1
        elif part == 2:  # the last 64 pixels of the line; only their second half is inside
            inside <<= HALF
            first = 12
            a, b, field, ball = (
                a2 << HALF | a1 >> HALF,
                b2 << HALF | b1 >> HALF,
                f2 << HALF | f1 >> HALF,
                l2 << HALF | l1 >> HALF,
            )
        _mix(
            screen, at + first, inside, a, b, field,
            background, colour_a, colour_b, left, right, MIDDLE_GROUP - first,
        )  # fmt: skip
        ball &= inside
        if ball != ZERO:
            _mix(
                screen, at + first, ball, ZERO, ZERO, ball,
                colour_f, colour_f, colour_f, colour_f, colour_f, 8,
            )  # fmt: skip
