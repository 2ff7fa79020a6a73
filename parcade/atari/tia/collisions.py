"""Collision latches, and the pairs of objects that must be checked for collisions.

Each latch belongs to a pair of objects. A pair must be checked only if it is *open*: both objects may have
pixels, one of them has changed since the pair was last checked on a complete line, the latch is not set, and
the objects are close enough to touch. After most writes of most games no pair is open, and then no masks are
computed and no lines processed.
"""

import numpy as np

from ..compiling.jit import inlined, kernel, stand_alone
from ..state import (
    T_COLLISIONS,
    T_MIRRORED,
    T_NUSIZ0,
    T_NUSIZ1,
    T_PF,
    T_POSBL,
    T_POSM0,
    T_POSM1,
    T_POSP0,
    T_POSP1,
    T_VBLANK,
)
from .masks import ONE, ZERO, common, meet
from .tables import COPIES, REVERSED

# Collision latches, in the order of the read addresses CXM0P .. CXPPMM, bit 7 first.
M0_P1, M0_P0, M1_P0, M1_P1, P0_PF, P0_BL, P1_PF, P1_BL = 1, 2, 4, 8, 16, 32, 64, 128
M0_PF, M0_BL, M1_PF, M1_BL, BL_PF, P0_P1, M0_M1 = 256, 512, 1024, 2048, 4096, 8192, 16384
ALL_PAIRS = 0x7FFF

PAIRS_OF_P0 = M0_P0 | M1_P0 | P0_PF | P0_BL | P0_P1
PAIRS_OF_P1 = M0_P1 | M1_P1 | P1_PF | P1_BL | P0_P1
PAIRS_OF_M0 = M0_P1 | M0_P0 | M0_PF | M0_BL | M0_M1
PAIRS_OF_M1 = M1_P0 | M1_P1 | M1_PF | M1_BL | M0_M1
PAIRS_OF_BL = P0_BL | P1_BL | M0_BL | M1_BL | BL_PF
PAIRS_OF_PF = P0_PF | P1_PF | M0_PF | M1_PF | BL_PF
_PAIRS_OF = (PAIRS_OF_P0, PAIRS_OF_P1, PAIRS_OF_M0, PAIRS_OF_M1, PAIRS_OF_BL, PAIRS_OF_PF)


def _pairs(of_set, none: int) -> np.ndarray:
    """Return a table of pairs by set of objects (DIRTY_ bits).

    `of_set(objects)` lists the objects whose pairs are added to `none` if it is 0, otherwise removed from it.
    """
    table = np.full(64, none, np.int64)
    for objects in range(64):
        for k in of_set(objects):
            table[objects] = table[objects] | _PAIRS_OF[k] if none == 0 else table[objects] & ~_PAIRS_OF[k]
    return table


# Pairs with at least one object of the set, and pairs with both objects in the set.
PAIRS_WITH = _pairs(lambda objects: [k for k in range(6) if objects >> k & 1], 0)
PAIRS_AMONG = _pairs(lambda objects: [k for k in range(6) if not objects >> k & 1], ALL_PAIRS)

# By NUSIZ bits 0-2: the factor that replicates a mask of 4-pixel cells for all copies.
CELLS_OF_COPIES = np.array(
    [sum(1 << (4 * k) for k in range(5) if copies >> k & 1) for copies in COPIES.tolist()], np.uint64
)
NOTHING_KNOWN = 0  # value of `near`, see `open_pairs`, of which no pair is known
_KNOWN = 16  # the bits of `near` from here on: pairs of which is known whether they are near


@inlined
def open_pairs(r, live, enabled, unchecked, near):
    """Return the open pairs, and `near`: the pairs known to be near or not, and among them the near ones."""
    if not live or r[T_VBLANK] & 2:
        return np.int64(0), near
    pairs = PAIRS_AMONG[enabled] & PAIRS_WITH[unchecked] & ~np.int64(r[T_COLLISIONS])
    if pairs == 0:
        return np.int64(0), near
    asked = pairs & ~(near >> _KNOWN)
    if asked != 0:
        near |= asked << _KNOWN | np.int64(near_pairs(r, asked))
    return pairs & near, near


@inlined
def forget_near(near, moved):
    """Return `near` without the pairs of objects that may have moved."""
    pairs = PAIRS_WITH[moved]
    return near & ~(pairs << _KNOWN | pairs)


@inlined
def _cells(first, last, copies):
    """Return the cells of 4 pixels from pixel `first` to `last` for all copies, on a ring of 40 cells."""
    cells = (ONE << np.uint64((last >> 2) - (first >> 2) + 1)) - ONE
    cells = (cells * copies) << np.uint64(first >> 2)
    return (cells | cells >> np.uint64(40)) & np.uint64(0xFFFFFFFFFF)


@inlined
def _player_cells(position, nusiz):
    mode = nusiz & 7
    return _cells(position, position + (16 if mode == 5 else 32 if mode == 7 else 7), CELLS_OF_COPIES[mode])


@inlined
def _small_cells(position, nusiz):
    """Return the cells of a missile or the ball of any width."""
    return _cells(position, position + 7, CELLS_OF_COPIES[nusiz & 7])


@inlined
def _playfield_cells(pf, mirrored):
    right = np.uint64(pf)
    if mirrored != 0:
        low, middle, high = REVERSED[pf & 0xFF], REVERSED[pf >> 8 & 0xFF], REVERSED[pf >> 16 & 0xF]
        right = low << np.uint64(12) | middle << np.uint64(4) | high >> np.uint64(4)
    return np.uint64(pf) | right << np.uint64(20)


@kernel
def near_pairs(r, pairs):
    """Return those of `pairs` that may have pixels in the same cell of 4.

    The result holds for all player bytes and all widths of missiles and ball.
    """
    stand_alone()
    nusiz0, nusiz1 = np.int64(r[T_NUSIZ0]), np.int64(r[T_NUSIZ1])
    p0, p1, m0, m1, bl = ZERO, ZERO, ZERO, ZERO, ZERO
    if pairs & PAIRS_OF_P0:
        p0 = _player_cells(np.int64(r[T_POSP0]), nusiz0)
    if pairs & PAIRS_OF_P1:
        p1 = _player_cells(np.int64(r[T_POSP1]), nusiz1)
    if pairs & PAIRS_OF_M0:
        m0 = _small_cells(np.int64(r[T_POSM0]), nusiz0)
    if pairs & PAIRS_OF_M1:
        m1 = _small_cells(np.int64(r[T_POSM1]), nusiz1)
    if pairs & PAIRS_OF_BL:
        bl = _small_cells(np.int64(r[T_POSBL]), np.int64(0))
    near = 0
    if pairs & PAIRS_OF_PF:
        pf = _playfield_cells(np.int64(r[T_PF]), r[T_MIRRORED])
        near |= P0_PF if p0 & pf != ZERO else 0
        near |= P1_PF if p1 & pf != ZERO else 0
        near |= M0_PF if m0 & pf != ZERO else 0
        near |= M1_PF if m1 & pf != ZERO else 0
        near |= BL_PF if bl & pf != ZERO else 0
    if pairs & PAIRS_OF_P0:
        near |= P0_P1 if p0 & p1 != ZERO else 0
        near |= M0_P0 if m0 & p0 != ZERO else 0
        near |= M1_P0 if m1 & p0 != ZERO else 0
        near |= P0_BL if bl & p0 != ZERO else 0
    if pairs & PAIRS_OF_P1:
        near |= M0_P1 if m0 & p1 != ZERO else 0
        near |= M1_P1 if m1 & p1 != ZERO else 0
        near |= P1_BL if bl & p1 != ZERO else 0
    near |= M0_M1 if m0 & m1 != ZERO else 0
    near |= M0_BL if bl & m0 != ZERO else 0
    near |= M1_BL if bl & m1 != ZERO else 0
    return near & pairs


@inlined
def overlaps(pairs, seen, masks):
    """Return which of `pairs` overlap within the pixels `seen`."""
    p0, p1, m0, m1, bl, pf = masks
    hits = 0
    if pairs & PAIRS_OF_PF:
        shown = common(pf, seen)
        hits |= P0_PF if meet(p0, shown) else 0
        hits |= P1_PF if meet(p1, shown) else 0
        hits |= M0_PF if meet(m0, shown) else 0
        hits |= M1_PF if meet(m1, shown) else 0
        hits |= BL_PF if meet(bl, shown) else 0
    if pairs & PAIRS_OF_P0:
        shown = common(p0, seen)
        hits |= P0_P1 if meet(p1, shown) else 0
        hits |= M0_P0 if meet(m0, shown) else 0
        hits |= M1_P0 if meet(m1, shown) else 0
        hits |= P0_BL if meet(bl, shown) else 0
    if pairs & (M0_P1 | M1_P1 | P1_BL):
        shown = common(p1, seen)
        hits |= M0_P1 if meet(m0, shown) else 0
        hits |= M1_P1 if meet(m1, shown) else 0
        hits |= P1_BL if meet(bl, shown) else 0
    if pairs & (M0_M1 | M0_BL | M1_BL):
        shown = common(m0, seen)
        hits |= M0_M1 if meet(m1, shown) else 0
        hits |= M0_BL if meet(bl, shown) else 0
        hits |= M1_BL if meet(m1, common(bl, seen)) else 0
    return hits & pairs
