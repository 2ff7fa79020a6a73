"""The replay of the TIA's log: registers, collisions and pixels up to a clock.

Before a write takes effect, the pixels up to the beam's place at that clock are drawn and checked for
collisions (`lines.py`). If nothing is drawn and no pair of objects can set a latch, a write only changes
registers, and its line is not processed.

As in ale-py's core, registers take effect a few clocks after the write (`WRITE_DELAY`); nothing outside the
visible area is simulated, including collisions; and if drawing stops exactly at the end of a line, the
changes between lines happen in the next call.
"""

import numpy as np

from ..compiling.jit import inlined, separate, stand_alone
from ..primitives.warp import any_of, least_of, on_gpu, together
from ..state import (
    T_ARK,
    T_COMB,
    T_FRAME_START,
    T_FROM_LINE,
    T_LAST,
    T_LEFT,
    T_LINE,
    T_START,
    T_STOP,
    TIA_WORDS,
)
from .lines import Above, Beam, Comb, Frame, advance, has_ended, skip
from .log import is_due, next_news, time_of
from .masks import ZERO
from .objects import all_changed, with_changes
from .spans import list_in
from .writes import (
    AWAIT_LINE_END,
    AWAITING,
    HMOVE,
    LINE_CLOCKS,
    TELLING,
    apply,
    awaited_line_end,
    draw_target,
    is_effective,
    is_plain,
    store,
    telling_rewrites,
)

LINE_CYCLES = LINE_CLOCKS // 3


@inlined
def _write(r, entry, base, frame, comb_allowed, unseen, beam, comb, telling):
    """Apply an effective entry of the log; return its effects, the comb and `telling`."""
    reg = entry >> 8 & 0x3F
    if is_plain(reg):
        return store(r, reg, entry & 0xFF), comb, telling
    clock = 3 * ((entry >> 14) + base)
    if reg == HMOVE and has_ended(comb, beam, frame.start, unseen):
        r[T_COMB] = 0  # this HMOVE may begin none
    changes = apply(r, reg, entry & 0xFF, clock, clock - frame.begin, comb_allowed)
    if reg == HMOVE:
        comb = Comb(r[T_COMB] != 0, unseen)
    if not on_gpu() and changes & AWAITING:
        telling = awaited_line_end(r)
    elif on_gpu() and changes & TELLING:
        telling = telling_rewrites(r)
    return changes, comb, telling


@separate(
    "void(int32[::1], uint64[::1], int64, int64, int64, int64, int64, int64, boolean, boolean, boolean)"
)
def replay(s, screen, t, log, begin, end, base, last_clock, comb_allowed, live, draw):
    """Replay entries `begin` .. `end` - 1 of the log at `log` on the registers at `t`, up to `last_clock`.

    Entry times count from cycle `base`. If `live`, all entries are applied to the registers and collisions
    are ORed into T_COLLISIONS. If `draw`, pixels are written to `screen`, starting at line T_FROM_LINE, or
    recorded in its span list.
    """
    stand_alone()
    r = s[t : t + TIA_WORDS]
    frame = Frame(
        np.int64(r[T_FRAME_START]), np.int64(r[T_START]), np.int64(r[T_STOP]), np.int64(r[T_FROM_LINE]),
        list_in(s, screen),
    )  # fmt: skip
    beam = Beam(np.int64(r[T_LAST]), np.int64(r[T_LINE]), np.int64(r[T_LEFT]))
    comb = Comb(r[T_COMB] != 0, beam.clock)
    unseen = beam.clock  # clock up to which no line has a visible effect or a collision
    objects = all_changed(r, live)
    nothing = (ZERO, ZERO, ZERO)
    masks = (nothing, nothing, nothing, nothing, nothing, nothing)  # players, missiles, ball, playfield
    above = Above(False, False)
    telling = awaited_line_end(r) if not on_gpu() else telling_rewrites(r)
    next_entry, over = np.uint32(log + begin), np.uint32(log + end)
    entry = np.int64(s[next_entry]) if next_entry < over else np.int64(0)
    following = entry  # the entry after it, on a GPU
    group = together()
    while any_of(group, next_entry <= over):
        # Lanes of a group go through the log in step: only those within a line of the one furthest behind
        # apply entries.
        bound = least_of(group, time_of(entry, next_entry, over)) + LINE_CYCLES
        here, entry, following = next_news(s, r, next_entry, over, entry, following, telling, bound)
        next_entry = here
        if not is_due(time_of(entry, here, over), bound):
            continue
        is_write = here < over
        next_entry = np.uint32(next_entry + np.uint32(1))
        target = np.int64(max(last_clock, unseen))
        if is_write:
            if not live and beam.clock >= frame.stop:
                next_entry = np.uint32(over + np.uint32(1))
                continue
            reg = entry >> 8 & 0x3F
            clock = 3 * ((entry >> 14) + base)
            if not is_plain(reg) and not is_effective(r, reg, entry & 0xFF, clock):
                if on_gpu():
                    telling = telling_rewrites(r)
                entry = following
                continue
            target = draw_target(r, reg, clock, clock - frame.begin)

        if is_write and not draw and objects.pairs == 0 and telling & AWAIT_LINE_END == 0 and r[T_ARK] == 0:
            if target >= frame.start:
                unseen = max(unseen, min(target, frame.stop))
        elif target >= frame.start and (unseen < target or not is_write):
            target = min(target, frame.stop)
            if beam.clock < min(unseen, target):
                beam, comb, objects = skip(r, frame, unseen, beam, comb, objects)
            while beam.clock < target:
                beam, comb, objects, masks, above = advance(
                    r, screen, frame, live, draw, target, beam, comb, objects, masks, above
                )
        if is_write:
            # Decode the entry again: on GPUs its fields would occupy registers during drawing.
            entry = np.int64(s[here])
            changes, comb, telling = _write(r, entry, base, frame, comb_allowed, unseen, beam, comb, telling)
            entry = following
            objects = with_changes(r, live, objects, changes)
    r[T_LAST] = beam.clock
    r[T_LEFT] = beam.left
    r[T_LINE] = beam.line
