"""The TIA: images and collisions, computed from a log of register accesses.

While the 6507 runs, its TIA accesses are only logged (`bus.py`). `run` replays a part of the log: it updates
the registers and, within the visible area, ORs collisions and draws. It runs when the game reads a collision
latch, at the end of a frame, and when a frame is read. A frame that is never read is not drawn, but it can be
drawn later from the registers at its start (`serve`).

An object's pixels on a scanline are a mask of 160 bits in three words (`tia_masks.py`). The masks are
constant between two accesses with a visible effect. The pixels of such a *span* are drawn from the masks
(`tia_drawing.py`), and its collisions take a few ANDs (`tia_collisions.py`). Four of five writes leave the
register unchanged, which one comparison detects. If nothing is drawn and no pair of objects can set a latch,
a write only changes registers, and its line is not processed.

As in ale-py's core, registers take effect a few clocks after the write (`WRITE_DELAY`); nothing outside the
visible area is simulated, including collisions; and if drawing stops exactly at the end of a line, the
changes between lines happen in the next call.

Sound is not emulated.
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
    LOG_OPEN,
    LOG_SLOT,
    LOGS,
    OBSERVED,
    PARTIAL,
    PICTURE,
    RECENT_CUTS,
    ROM_HEIGHT,
    ROM_HMOVE_BLANKS,
    ROM_YSTART,
    SLOT_COUNT,
    SLOT_DRAWN,
    T_ARK,
    T_COLLISIONS,
    T_COLOUR_LOSS,
    T_COLUP0,
    T_COMB,
    T_FRAME_START,
    T_FROM_LINE,
    T_LAST,
    T_LAST_HMOVE,
    T_LEFT,
    T_LINE,
    T_PICTURE,
    T_START,
    T_STOP,
    T_VBLANK,
    TIA,
    TIA_SNAPSHOTS,
    TIA_WORDS,
)
from .tia_collisions import (
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
from .tia_drawing import copy_line_above, draw_blank, draw_span
from .tia_log import close_log, forget, is_due, next_news, time_of
from .tia_masks import (
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
)
from .tia_tables import PIXELS_BELOW, PLAYFIELD_DELAY, WRITE_DELAY
from .tia_writes import (
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
    within_line,
)
from .warp import any_of, least_of, on_gpu, together

LINE_CYCLES = LINE_CLOCKS // 3
COMB_END = BLANK_CLOCKS + 8  # clock of a line at which an HMOVE blank ("comb") ends


@inlined
def _comb_ended(since, now):
    """Return whether a comb has ended between two clocks of the visible area."""
    before_end = LINE_CLOCKS - COMB_END
    return lines_in(now + before_end) > lines_in(since + before_end)


@separate(
    "void(int32[::1], uint64[::1], int64, int64, int64, int64, int64, int64, boolean, boolean, boolean)"
)
def run(s, screen, t, log, begin, end, base, last_clock, comb_allowed, live, draw):
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
    p0a, p0b, p0c, p1a, p1b, p1c = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
    m0a, m0b, m0c, m1a, m1b, m1c = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
    bla, blb, blc, pfa, pfb, pfc = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
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
                else:
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
                        wanted = ALL_PAIRS if draw else pairs
                        if dirty & DIRTY_P0 and wanted & PAIRS_OF_P0:
                            dirty ^= DIRTY_P0
                            p0a, p0b, p0c = mask_of_player0(r)
                        if dirty & DIRTY_P1 and wanted & PAIRS_OF_P1:
                            dirty ^= DIRTY_P1
                            p1a, p1b, p1c = mask_of_player1(r)
                        if dirty & DIRTY_M0 and wanted & PAIRS_OF_M0:
                            dirty ^= DIRTY_M0
                            m0a, m0b, m0c = mask_of_missile0(r)
                        if dirty & DIRTY_M1 and wanted & PAIRS_OF_M1:
                            dirty ^= DIRTY_M1
                            m1a, m1b, m1c = mask_of_missile1(r)
                        if dirty & DIRTY_BL and wanted & PAIRS_OF_BL:
                            dirty ^= DIRTY_BL
                            bla, blb, blc = mask_of_ball(r)
                        if dirty & DIRTY_PF and wanted & PAIRS_OF_PF:
                            dirty ^= DIRTY_PF
                            pfa, pfb, pfc = mask_of_playfield(r)
                        same_as_above = False
                    if dirty & DIRTY_COLOUR:
                        same_as_above = False
                        dirty &= ~DIRTY_COLOUR

                    if pairs != 0:
                        va = PIXELS_BELOW[np.uint32(x1), 0] & ~PIXELS_BELOW[np.uint32(x0), 0]
                        vb = PIXELS_BELOW[np.uint32(x1), 1] & ~PIXELS_BELOW[np.uint32(x0), 1]
                        vc = PIXELS_BELOW[np.uint32(x1), 2] & ~PIXELS_BELOW[np.uint32(x0), 2]
                        hits = overlaps(
                            pairs, va, vb, vc, p0a, p0b, p0c, p1a, p1b, p1c,
                            m0a, m0b, m0c, m1a, m1b, m1c, bla, blb, blc, pfa, pfb, pfc,
                        )  # fmt: skip
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
                            draw_span(
                                r, screen, at, x0, x1,
                                p0a | m0a, p0b | m0b, p0c | m0c, p1a | m1a, p1b | m1b, p1c | m1c,
                                pfa, pfb, pfc, bla, blb, blc,
                            )  # fmt: skip
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


# --- frames, slots and frame buffers ------------------------------------------------------------------------


@separate("void(int32[::1], uint64[::1])")
def reset(s, screen):
    """System reset: clear the registers and both frame buffers; no frame is pending."""
    stand_alone()
    for i in range(TIA_WORDS):
        s[TIA + i] = 0
    for i in range(len(screen)):
        screen[i] = ZERO
    for slot in range(3):
        s[SLOT_DRAWN + slot] = DRAWN
        s[SLOT_COUNT + slot] = 0
    forget(s)
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
    """Swap the frame buffers and rebase clocks by `cycles`. The caller has set the new FRAME_START."""
    stand_alone()
    s[LOG_SLOT] = (s[LOG_SLOT] + 1) % 3
    s[PICTURE] ^= 1
    s[LOG_COUNT] = 0
    s[LOG_OPEN] = 0
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
    """Return the clock up to which the last access of the log draws."""
    target = np.int64(s[t + T_LAST])
    if count > 0:
        entry = np.int64(s[log + count - 1])
        reg = entry >> 8 & 0x3F
        clock = 3 * ((entry >> 14) + base)
        hpos = within_line(clock - np.int64(s[t + T_FRAME_START]))
        delay = WRITE_DELAY[reg]
        target = clock + (PLAYFIELD_DELAY[(hpos // 3) & 3] if delay < 0 else delay)
    return target


# SLOT_DRAWN: not drawn; drawn, log not needed; drawn while it runs, log and snapshot still complete.
PENDING, DRAWN, DRAWING = 0, 1, 2

# Requests to `serve`.
CATCH_UP, SETTLE, END_FRAME, SHOW = 0, 1, 2, 3


@separate("void(int32[::1], uint64[::1], int64)")
def serve(s, screen, request):
    """Bring registers, collisions and frame buffers up to date for `request`.

    - CATCH_UP: apply the complete log to the live TIA, before a collision latch is read.
    - SETTLE: draw the current frame so far and empty the log. From then on the frame is drawn while it runs,
      because the start of its log is lost.
    - END_FRAME: finish the frame.
    - SHOW: draw the current frame, before it is read. A frame that is not finished is settled.

    With an empty `screen`, nothing is drawn, and a frame is PENDING as long as its log is complete.

    All requests share one call of `run`, because every function that contains `run` takes long to compile.
    """
    stand_alone()
    slot = np.int64(s[LOG_SLOT])
    two_ago = (slot + 1) % 3
    count = close_log(s)
    status = s[SLOT_DRAWN + slot]
    has_pictures = len(screen) > 0
    comb_allowed = s[ROM_HMOVE_BLANKS] != 0
    s[SLOT_COUNT + slot] = count
    final = False  # the current frame must be drawn now, over the previous contents of its frame buffer
    # Stage 0 replays the live registers. Stages 1 and 2 draw the frame two ago and the current frame from
    # their snapshots, if necessary.
    for stage in range(3):
        t, log, begin, end, base, draw = (
            np.int64(TIA), LOGS + slot * LOG_CAPACITY, np.int64(0), count, np.int64(0), False,
        )  # fmt: skip
        if stage == 0:
            if s[LOG_DONE] == count:
                continue
            begin = np.int64(s[LOG_DONE])
            base = np.int64(s[LOG_BASE])
            draw = status != PENDING and has_pictures
        else:
            if stage == 1:
                # A frame that is cut short, or may still be, shows the frame two ago below its end.
                cut = request == END_FRAME and s[TIA + T_LAST] < s[TIA + T_STOP]
                if request == END_FRAME:
                    s[RECENT_CUTS] = s[RECENT_CUTS] << 1 & 2 | (1 if cut else 0)
                unfinished = request == SETTLE or (request == SHOW and s[PARTIAL] != 0)
                final = cut or unfinished
                if status == DRAWN or not final or s[SLOT_DRAWN + two_ago] != PENDING or not has_pictures:
                    continue
                if status == DRAWING:
                    status = np.int32(PENDING)  # redraw it over the frame two ago
            elif status != PENDING or not (final or request == SHOW) or not has_pictures:
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
        target = last_access_target(s, t, log, end, base)
        run(s, screen, t, log, begin, end, base, target, comb_allowed, stage == 0, draw)
    if status == DRAWING and (final or request == END_FRAME):
        status = np.int32(DRAWN)
    if not has_pictures and (request == SETTLE or (request == SHOW and s[PARTIAL] != 0)):
        status = np.int32(DRAWN)  # the log is about to be lost
    s[SLOT_DRAWN + slot] = status
    s[LOG_DONE] = count
    if request == SETTLE or (request == SHOW and s[PARTIAL] != 0):
        s[LOG_COUNT] = 0
        s[LOG_DONE] = 0
