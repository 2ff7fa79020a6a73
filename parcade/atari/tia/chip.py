"""The TIA: images and collisions, computed from a log of register accesses.

While the 6507 runs, its TIA accesses are only logged (`bus.py`). `replay.py` replays a part of the log:
it updates the registers and, within the visible area, ORs collisions and draws. That happens when the game
reads a collision latch, at the end of a frame, and when a frame is read. A frame that is never read is not
drawn, but it can be drawn later from the registers at its start (`serve`).

Sound is not emulated.
"""

import numpy as np

from ..compiling.jit import inlined, kernel, separate, stand_alone
from ..state import (
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
    T_COLOUR_LOSS,
    T_COLUP0,
    T_FRAME_START,
    T_LAST,
    T_LAST_HMOVE,
    T_LEFT,
    T_LINE,
    T_PICTURE,
    T_START,
    T_STOP,
    TIA,
    TIA_SNAPSHOTS,
    TIA_WORDS,
)
from .log import close_log, forget
from .masks import ZERO
from .replay import replay
from .tables import PLAYFIELD_DELAY, WRITE_DELAY
from .writes import LINE_CLOCKS, within_line


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

    All requests share one call of `replay`, because every function that contains it takes long to compile.
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
        replay(s, screen, t, log, begin, end, base, target, comb_allowed, stage == 0, draw)
    if status == DRAWING and (final or request == END_FRAME):
        status = np.int32(DRAWN)
    if not has_pictures and (request == SETTLE or (request == SHOW and s[PARTIAL] != 0)):
        status = np.int32(DRAWN)  # the log is about to be lost
    s[SLOT_DRAWN + slot] = status
    s[LOG_DONE] = count
    if request == SETTLE or (request == SHOW and s[PARTIAL] != 0):
        s[LOG_COUNT] = 0
        s[LOG_DONE] = 0
