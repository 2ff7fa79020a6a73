"""The TIA's objects during a replay: which masks are out of date, and which pairs must be checked.

Masks (`masks.py`) and pairs (`collisions.py`) are computed only when a visible line needs them.
"""

from typing import NamedTuple

import numpy as np

from ..compiling.jit import inlined
from .collisions import (
    NOTHING_KNOWN,
    PAIRS_OF_BL,
    PAIRS_OF_M0,
    PAIRS_OF_M1,
    PAIRS_OF_P0,
    PAIRS_OF_P1,
    PAIRS_OF_PF,
    forget_near,
    open_pairs,
)
from .masks import (
    DIRTY_BL,
    DIRTY_M0,
    DIRTY_M1,
    DIRTY_P0,
    DIRTY_P1,
    DIRTY_PF,
    enabled_objects,
    mask_of_ball,
    mask_of_missile0,
    mask_of_missile1,
    mask_of_player0,
    mask_of_player1,
    mask_of_playfield,
)
from .writes import DIRTY_ALL, DIRTY_COLOUR, PLACED, SHOWN, UNCHECKED


class Objects(NamedTuple):
    """Which objects have changed, as sets of DIRTY_ bits, and which pairs of them must be checked."""

    enabled: int  # may have pixels
    dirty: int  # their masks are out of date; includes DIRTY_COLOUR
    changed: int  # have changed since the start of the last visible line
    unchecked: int  # have not been checked for collisions on a complete line
    near: int  # the pairs known to be near or not (`open_pairs`)
    pairs: int  # the open pairs


@inlined
def all_changed(r, live):
    """Return the objects at the start of a replay: nothing is known of them."""
    everything, nothing = np.int64(DIRTY_ALL), np.int64(NOTHING_KNOWN)
    return _reopened(
        r, live, Objects(enabled_objects(r), everything, everything, everything, nothing, np.int64(0))
    )


@inlined
def _reopened(r, live, o):
    """Return the objects `o` with the pairs that are open now."""
    pairs, near = open_pairs(r, live, o.enabled, o.unchecked, o.near)
    return Objects(o.enabled, o.dirty, o.changed, o.unchecked, near, pairs)


@inlined
def line_begun(r, live, o):
    """Return the objects `o` at the start of a visible line.

    What has not changed since the start of the last one has been checked on a complete line.
    """
    return _reopened(r, live, Objects(o.enabled, o.dirty, np.int64(0), o.changed, o.near, o.pairs))


@inlined
def after_span(o, dirty, pairs):
    """Return the objects `o` after a span that leaves these masks out of date and these pairs open."""
    return Objects(o.enabled, dirty, o.changed, o.unchecked, o.near, pairs)


@inlined
def line_checked(o):
    """Return the objects `o` after complete lines without an open pair."""
    return Objects(o.enabled, o.dirty, o.changed, o.changed, o.near, o.pairs)


@inlined
def with_changes(r, live, o, changes):
    """Return the objects `o` after a change with these effects (`writes.py`)."""
    dirty = o.dirty | changes & (DIRTY_ALL | DIRTY_COLOUR)
    if changes & UNCHECKED:
        changes |= DIRTY_ALL
    moved = changes & DIRTY_ALL
    enabled, near = o.enabled, o.near
    if changes & PLACED:
        near = forget_near(near, moved)
    if changes & SHOWN:
        enabled = enabled_objects(r)
    o = Objects(enabled, dirty, o.changed | moved, o.unchecked | moved, near, o.pairs)
    if moved != 0:
        o = _reopened(r, live, o)
    return o


@inlined
def with_masks(r, masks, dirty, pairs):
    """Compute the masks of `dirty` objects that `pairs` contain; return all masks and what remains dirty."""
    p0, p1, m0, m1, bl, pf = masks
    if dirty & DIRTY_P0 and pairs & PAIRS_OF_P0:
        dirty ^= DIRTY_P0
        p0 = mask_of_player0(r)
    if dirty & DIRTY_P1 and pairs & PAIRS_OF_P1:
        dirty ^= DIRTY_P1
        p1 = mask_of_player1(r)
    if dirty & DIRTY_M0 and pairs & PAIRS_OF_M0:
        dirty ^= DIRTY_M0
        m0 = mask_of_missile0(r)
    if dirty & DIRTY_M1 and pairs & PAIRS_OF_M1:
        dirty ^= DIRTY_M1
        m1 = mask_of_missile1(r)
    if dirty & DIRTY_BL and pairs & PAIRS_OF_BL:
        dirty ^= DIRTY_BL
        bl = mask_of_ball(r)
    if dirty & DIRTY_PF and pairs & PAIRS_OF_PF:
        dirty ^= DIRTY_PF
        pf = mask_of_playfield(r)
    return (p0, p1, m0, m1, bl, pf), dirty
