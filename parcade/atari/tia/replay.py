"""The replay of the TIA's log: registers, collisions and pixels up to a clock.

An object's pixels on a scanline are a mask of 160 bits in three words (`masks.py`). The masks are
constant between two accesses with a visible effect. The pixels of such a *span* are drawn from the masks
(`drawing.py`), and its collisions take a few ANDs (`collisions.py`). If nothing is drawn and no pair
of objects can set a latch, a write only changes registers, and its line is not processed.

As in ale-py's core, registers take effect a few clocks after the write (`WRITE_DELAY`); nothing outside the
visible area is simulated, including collisions; and if drawing stops exactly at the end of a line, the
changes between lines happen in the next call.
"""

import numpy as np

from ..compiling.jit import inlined, separate, stand_alone
from ..primitives.warp import any_of, least_of, on_gpu, together
from ..state import (
    LINE_WORDS,
    T_ARK,
    T_COLLISIONS,
    T_COMB,
    T_FRAME_START,
    T_FROM_LINE,
    T_LAST,
    T_LEFT,
    T_LINE,
    T_PICTURE,
    T_START,
    T_STOP,
    T_VBLANK,
    TIA_WORDS,
)
from .collisions import (
    ALL_PAIRS,
    NOTHING_KNOWN,
    PAIRS_OF_BL,
    PAIRS_OF_M0,
    PAIRS_OF_M1,
    PAIRS_OF_P0,
    PAIRS_OF_P1,
    PAIRS_OF_PF,
    forget_near,
    open_pairs,
    overlaps,
)
from .drawing import copy_line_above, draw_blank, draw_span
from .log import is_due, next_news, time_of
from .masks import (
    DIRTY_BL,
    DIRTY_M0,
    DIRTY_M1,
    DIRTY_P0,
    DIRTY_P1,
    DIRTY_PF,
    ZERO,
    enabled_objects,
    mask_of_ball,
    mask_of_missile0,
    mask_of_missile1,
    mask_of_player0,
    mask_of_player1,
    mask_of_playfield,
    pixels_between,
    union,
)
from .writes import (
    AWAIT_LINE_END,
    AWAITING,
    BLANK_CLOCKS,
    DIRTY_ALL,
    DIRTY_COLOUR,
    HMOVE,
    LINE_CLOCKS,
    PLACED,
    SHOWN,
    TELLING,
    UNCHECKED,
    apply,
    awaited_line_end,
    draw_target,
    end_line,
    is_effective,
    is_plain,
    lines_in,
    store,
    telling_rewrites,
)

LINE_CYCLES = LINE_CLOCKS // 3
COMB_END = BLANK_CLOCKS + 8  # clock of a line at which an HMOVE blank ("comb") ends


@inlined
def _comb_ended(since, now):
    """Return whether a comb has ended between two clocks of the visible area."""
    before_end = LINE_CLOCKS - COMB_END
    return lines_in(now + before_end) > lines_in(since + before_end)


@inlined
def _with_masks(r, masks, dirty, pairs):
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


@separate(
    "void(int32[::1], uint64[::1], int64, int64, int64, int64, int64, int64, boolean, boolean, boolean)"
)
def replay(s, screen, t, log, begin, end, base, last_clock, comb_allowed, live, draw):
    """Replay entries `begin` .. `end` - 1 of the log at `log` on the registers at `t`, up to `last_clock`.

    Entry times count from cycle `base`. If `live`, all entries are applied to the registers and collisions
    are ORed into T_COLLISIONS. If `draw`, pixels are written to `screen`, starting at line T_FROM_LINE.
    """
    stand_alone()
    r = s[t : t + TIA_WORDS]
    from_line = np.int64(r[T_FROM_LINE])
    last = np.int64(r[T_LAST])
    left = np.int64(r[T_LEFT])
    stop = np.int64(r[T_STOP])
    start = np.int64(r[T_START])
    frame_start = np.int64(r[T_FRAME_START])
    line = np.int64(r[T_LINE])
    comb = r[T_COMB] != 0
    unseen = last  # clock up to which no line has a visible effect or a collision
    comb_since = last
    dirty = DIRTY_ALL  # objects whose masks are out of date
    unchecked = DIRTY_ALL  # objects that have not been checked for collisions on a complete line
    changed = DIRTY_ALL  # objects that have changed since the start of the last visible line
    enabled = enabled_objects(r)
    telling = awaited_line_end(r) if not on_gpu() else telling_rewrites(r)
    pairs, near = open_pairs(r, live, enabled, unchecked, np.int64(NOTHING_KNOWN))
    same_as_above = False  # the masks and colours equal those of the line above, which is completely drawn
    comb_above = False  # the line above starts with a comb
    nothing = (ZERO, ZERO, ZERO)
    masks = (nothing, nothing, nothing, nothing, nothing, nothing)  # players, missiles, ball, playfield
    next_entry, over = np.uint32(log + begin), np.uint32(log + end)
    entry = np.int64(s[next_entry]) if next_entry < over else np.int64(0)
    following = entry  # the entry after it, on a GPU
    group = together()
    while any_of(group, next_entry <= over):
        # Lanes of a group go through the log in step: only those within a line of the one furthest behind
        # apply entries. The others draw the lines that are complete by then.
        bound = least_of(group, time_of(entry, next_entry, over)) + LINE_CYCLES
        here, entry, following = next_news(s, r, next_entry, over, entry, following, telling, bound)
        next_entry = here
        due = is_due(time_of(entry, here, over), bound)
        is_write = due and here < over
        if due:
            next_entry = np.uint32(next_entry + np.uint32(1))
            target = np.int64(max(last_clock, unseen))
        elif draw and here <= over:
            target = start + (3 * (bound + base) - start) // LINE_CLOCKS * LINE_CLOCKS
            target = min(target, np.int64(last_clock))
        else:
            continue
        if is_write:
            if not live and last >= stop:
                next_entry = np.uint32(over + np.uint32(1))
                continue
            reg = entry >> 8 & 0x3F
            clock = 3 * ((entry >> 14) + base)
            if not is_plain(reg) and not is_effective(r, reg, entry & 0xFF, clock):
                if on_gpu():
                    telling = telling_rewrites(r)
                entry = following
                continue
            target = draw_target(r, reg, clock, clock - frame_start)

        if is_write and not draw and pairs == 0 and telling & AWAIT_LINE_END == 0 and r[T_ARK] == 0:
            if target >= start:
                unseen = max(unseen, min(target, stop))
        elif start <= target and last < target and last < stop and (unseen < target or not is_write):
            target = min(target, stop)
            if unseen > last:
                if comb and _comb_ended(max(last, comb_since) - start, unseen - start):
                    comb = False
                    r[T_COMB] = 0
                # If `last` is exactly at the end of a line, that line is not finished yet.
                last = unseen
                if (last - start - 1) // LINE_CLOCKS - line > 1:
                    unchecked = changed
                line = (last - start - 1) // LINE_CLOCKS
                left = LINE_CLOCKS * (line + 1) - (last - start)
            while last < target:
                position = LINE_CLOCKS - left
                if target > last + left:
                    clocks = left
                    left = np.int64(LINE_CLOCKS)
                    last += clocks
                else:  # a line that ends exactly at the target is not complete
                    clocks = target - last
                    left -= clocks
                    last = target
                x0 = max(position, BLANK_CLOCKS) - BLANK_CLOCKS
                x1 = position + clocks - BLANK_CLOCKS
                if x1 > x0 and line >= from_line:
                    blanked = r[T_VBLANK] & 2 != 0
                    if x0 == 0 and not blanked:
                        unchecked = changed
                        changed = 0
                        pairs, near = open_pairs(r, live, enabled, unchecked, near)
                    if dirty & DIRTY_ALL and (pairs != 0 or (draw and not blanked)):
                        masks, dirty = _with_masks(r, masks, dirty, ALL_PAIRS if draw else pairs)
                        same_as_above = False
                    if dirty & DIRTY_COLOUR:
                        same_as_above = False
                        dirty &= ~DIRTY_COLOUR

                    if pairs != 0:
                        hits = overlaps(pairs, pixels_between(x0, x1), masks)
                        r[T_COLLISIONS] |= hits
                        pairs &= ~hits

                    if draw:
                        at = np.int64(r[T_PICTURE]) + line * LINE_WORDS
                        if blanked:
                            draw_blank(screen, at, x0, x1)
                            same_as_above = False
                        elif same_as_above and x0 == 0 and x1 == 160 and (comb or not comb_above):
                            copy_line_above(screen, at)
                        else:
                            p0, p1, m0, m1, bl, pf = masks
                            draw_span(r, screen, at, x0, x1, union(p0, m0), union(p1, m1), pf, bl)
                            same_as_above = x0 == 0 and x1 == 160
                        comb_above = comb
                        if comb and x0 < 8:
                            screen[np.uint64(at)] = ZERO
                if comb and position < COMB_END and position + clocks >= COMB_END:
                    comb = False
                    r[T_COMB] = 0

                if left == LINE_CLOCKS:
                    line += 1
                    changes = end_line(r)
                    if changes != 0:
                        dirty |= changes
                        changed |= changes
                        unchecked |= changes
                        near = forget_near(near, changes)
                        pairs, near = open_pairs(r, live, enabled, unchecked, near)
                    elif pairs == 0 and not draw and target - last > LINE_CLOCKS:
                        lines = (target - last - 1) // LINE_CLOCKS
                        line += lines
                        last += lines * LINE_CLOCKS
                        comb = False
                        r[T_COMB] = 0
                        unchecked = changed
        if is_write:
            # Decode the entry again: on GPUs its fields would occupy registers during drawing.
            entry = np.int64(s[here])
            reg = entry >> 8 & 0x3F
            if is_plain(reg):
                changes = store(r, reg, entry & 0xFF)
            else:
                clock = 3 * ((entry >> 14) + base)
                if reg == HMOVE and comb and _comb_ended(max(last, comb_since) - start, unseen - start):
                    r[T_COMB] = 0  # this HMOVE may begin none
                changes = apply(r, reg, entry & 0xFF, clock, clock - frame_start, comb_allowed)
                if reg == HMOVE:
                    comb = r[T_COMB] != 0
                    comb_since = unseen
                if not on_gpu() and changes & AWAITING:
                    telling = awaited_line_end(r)
                elif on_gpu() and changes & TELLING:
                    telling = telling_rewrites(r)
            entry = following
            dirty |= changes & (DIRTY_ALL | DIRTY_COLOUR)
            if changes & UNCHECKED:
                changes |= DIRTY_ALL
            if changes & PLACED:
                near = forget_near(near, changes & DIRTY_ALL)
            if changes & SHOWN:
                enabled = enabled_objects(r)
            if changes & DIRTY_ALL:
                changed |= changes & DIRTY_ALL
                unchecked |= changes & DIRTY_ALL
                pairs, near = open_pairs(r, live, enabled, unchecked, near)
    r[T_LAST] = last
    r[T_LEFT] = left
    r[T_LINE] = line
