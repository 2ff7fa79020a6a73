"""The lines of a frame: the beam moves along them, from one visible change to the next.

An object's pixels on a line are a mask of 160 bits in three words (`masks.py`). The masks are constant
between two accesses with a visible effect. The pixels of such a *span* are drawn from the masks
(`drawing.py`), and its collisions take a few ANDs (`collisions.py`).
"""

from typing import NamedTuple

import numpy as np

from ..compiling.jit import inlined
from ..primitives.warp import on_gpu
from ..state import LINE_WORDS, T_COLLISIONS, T_COMB, T_PICTURE, T_VBLANK
from .collisions import ALL_PAIRS, overlaps
from .drawing import copy_line_above, draw_blank, draw_span
from .masks import ZERO, pixels_between, union
from .objects import after_span, line_begun, line_checked, with_changes, with_masks
from .spans import extend, record
from .writes import (
    BLANK_CLOCKS,
    DIRTY_ALL,
    DIRTY_COLOUR,
    LINE_CLOCKS,
    PLACED,
    end_line,
    lines_in,
)

COMB_END = BLANK_CLOCKS + 8  # clock of a line at which an HMOVE blank ("comb") ends


class Frame(NamedTuple):
    """The clocks and lines of a frame. They do not change during a replay."""

    begin: int  # clock at which its first line begins
    start: int  # clock of the first visible line
    stop: int  # clock after the last visible line
    from_line: int  # first line that is shown
    spans: int  # where its spans are recorded (`spans.py`); 0 if they are drawn at once


class Beam(NamedTuple):
    """How far the frame is replayed. A line that ends exactly at `clock` is not complete yet."""

    clock: int
    line: int
    left: int  # clocks until the end of the line


class Comb(NamedTuple):
    """The HMOVE blank at the start of the line that the beam is on."""

    on: bool
    since: int  # not ended before this clock


class Above(NamedTuple):
    """The line above."""

    same: bool  # it is completely drawn or recorded, and nothing in it has changed since
    comb: bool  # it starts with a comb


@inlined
def _beam_at(clock, start):
    line = (clock - start - 1) // LINE_CLOCKS
    return Beam(clock, line, LINE_CLOCKS * (line + 1) - (clock - start))


@inlined
def _moved(beam, target):
    """Return the beam at `target`, or at the end of its line if that comes first.

    After a complete line, all clocks of the next one are left, but `line` is not counted up yet.
    """
    if target > beam.clock + beam.left:
        return Beam(beam.clock + beam.left, beam.line, np.int64(LINE_CLOCKS))
    return Beam(target, beam.line, beam.left - (target - beam.clock))


@inlined
def has_ended(comb, beam, start, now):
    """Return whether a comb has ended by clock `now`, up to which nothing visible happens."""
    before_end = LINE_CLOCKS - COMB_END
    since = max(beam.clock, comb.since)
    return comb.on and lines_in(now - start + before_end) > lines_in(since - start + before_end)


@inlined
def _without(comb, r):
    """Return the ended comb."""
    r[T_COMB] = 0
    return Comb(False, comb.since)


@inlined
def _records(spans):
    """Return whether spans are recorded. On a GPU they always are, so drawing is not compiled for it."""
    return on_gpu() or spans != 0


@inlined
def _draw(r, screen, line, x0, x1, masks, comb, above):
    """Draw pixels x0 .. x1-1 of a line; return what the line below knows of it."""
    at = np.int64(r[T_PICTURE]) + line * LINE_WORDS
    whole = x0 == 0 and x1 == 160
    if r[T_VBLANK] & 2 != 0:
        draw_blank(screen, at, x0, x1)
        same = False
    elif above.same and whole and (comb.on or not above.comb):
        copy_line_above(screen, at)
        same = True
    else:
        p0, p1, m0, m1, bl, pf = masks
        draw_span(r, screen, at, x0, x1, union(p0, m0), union(p1, m1), pf, bl)
        same = whole
    if comb.on and x0 < 8:
        screen[np.uint64(at)] = ZERO
    return Above(same, comb.on)


@inlined
def _record(r, screen, spans, line, x0, x1, comb, above):
    """Record pixels x0 .. x1-1 of a line; return what the line below knows of it."""
    whole = x0 == 0 and x1 == 160
    if above.same and whole and comb.on == above.comb:
        extend(screen, spans, np.int64(1))
    else:
        record(r, screen, spans, line, x0, x1, comb.on)
    return Above(whole, comb.on)


@inlined
def _show(r, screen, spans, line, x0, x1, live, draw, objects, masks, comb, above):
    """Check pixels x0 .. x1-1 of a visible line for collisions, and draw or record them if `draw`.

    Return the objects, masks and the line above thereafter.
    """
    blanked = r[T_VBLANK] & 2 != 0
    has_changed = objects.changed != 0 and not blanked
    if x0 == 0 and not blanked:
        objects = line_begun(r, live, objects)
    dirty, pairs = objects.dirty, objects.pairs
    draws, records = draw and not _records(spans), draw and _records(spans)
    if dirty & DIRTY_ALL and (pairs != 0 or (draws and not blanked)):
        masks, dirty = with_masks(r, masks, dirty, ALL_PAIRS if draws else pairs)
        above = Above(above.same and not draws, above.comb)
    if dirty & DIRTY_COLOUR:
        above = Above(False, above.comb)
        dirty &= ~DIRTY_COLOUR
    if pairs != 0:
        hits = overlaps(pairs, pixels_between(x0, x1), masks)
        r[T_COLLISIONS] |= hits
        pairs &= ~hits
    if draws:
        above = _draw(r, screen, line, x0, x1, masks, comb, above)
    if records:
        above = Above(above.same and not has_changed, above.comb)
        above = _record(r, screen, spans, line, x0, x1, comb, above)
    return after_span(objects, dirty, pairs), masks, above


@inlined
def _goes_on(spans, objects, comb, above):
    """Return whether the lines that follow look like the last span, if nothing happens."""
    alike = above.same and not (comb.on or above.comb)
    return _records(spans) and alike and objects.changed == 0 and objects.dirty & DIRTY_COLOUR == 0


@inlined
def _next_line(r, screen, spans, live, draw, beam, target, objects, comb, above):
    """Begin the next line, or a later one if nothing happens in between; return beam, objects and comb."""
    clock, line = beam.clock, beam.line + 1
    changes = end_line(r)
    if changes != 0:
        objects = with_changes(r, live, objects, changes | PLACED)
    elif (
        objects.pairs == 0 and (not draw or _goes_on(spans, objects, comb, above))
        and target - clock > LINE_CLOCKS
    ):  # fmt: skip
        lines = (target - clock - 1) // LINE_CLOCKS
        line += lines
        clock += lines * LINE_CLOCKS
        comb = _without(comb, r)
        objects = line_checked(objects)
        if draw:
            extend(screen, spans, lines)
    return Beam(clock, line, beam.left), objects, comb


@inlined
def skip(r, frame, unseen, beam, comb, objects):
    """Move the beam to clock `unseen`, up to which nothing visible happens; return beam, comb and objects."""
    if has_ended(comb, beam, frame.start, unseen):
        comb = _without(comb, r)
    line = beam.line
    beam = _beam_at(unseen, frame.start)
    if beam.line - line > 1:
        objects = line_checked(objects)
    return beam, comb, objects


@inlined
def advance(r, screen, frame, live, draw, target, beam, comb, objects, masks, above):
    """Move the beam to clock `target`, or to the end of the line if that comes first.

    Return beam, comb, objects, masks and the line above.
    """
    clock, position = beam.clock, LINE_CLOCKS - beam.left
    beam = _moved(beam, target)
    end = position + beam.clock - clock
    x0 = max(position, BLANK_CLOCKS) - BLANK_CLOCKS
    x1 = end - BLANK_CLOCKS
    if x1 > x0 and beam.line >= frame.from_line:
        objects, masks, above = _show(
            r, screen, frame.spans, beam.line, x0, x1, live, draw, objects, masks, comb, above
        )
    if comb.on and position < COMB_END and end >= COMB_END:
        comb = _without(comb, r)
    if beam.left == LINE_CLOCKS:
        beam, objects, comb = _next_line(
            r, screen, frame.spans, live, draw, beam, target, objects, comb, above
        )
    return beam, comb, objects, masks, above
