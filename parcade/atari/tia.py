"""The TIA: pictures and collisions from a log of register accesses.

While the 6507 runs, its TIA accesses are only logged (`bus.py`). `run` replays a stretch of the log: it moves
the registers on and, for the part inside the picture, ORs collisions and draws. It is called when the game reads
a collision latch, at the end of a frame, and when somebody looks at a picture: a frame nobody looks at is
never drawn, but can be, later, from the registers at its start (`serve`).

Each object's scanline is a mask of 160 bits in three words. Between two accesses that change anything visible the
masks stand still, so a *span* of pixels is drawn 8 at a time and its collisions are a few ANDs.

Peculiarities kept, because ale-py's core has them: registers take effect a few clocks after the write
(`WRITE_DELAY`); nothing outside the picture is simulated, collisions included; when a draw stops exactly at the end
of a line, what happens between lines waits for the next draw.

Left out: sound.
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
    T_COLUBK,
    T_COLUP0,
    T_COLUP1,
    T_COLUPF,
    T_COMB,
    T_CTRLPF,
    T_ENAM0,
    T_ENAM1,
    T_FRAME_START,
    T_FROM_LINE,
    T_LAST,
    T_LAST_HMOVE,
    T_LEFT,
    T_LINE,
    T_M0_SHAPE,
    T_MIRRORED,
    T_NUSIZ0,
    T_NUSIZ1,
    T_PF,
    T_PICTURE,
    T_POSBL,
    T_POSM0,
    T_POSM1,
    T_POSP0,
    T_POSP1,
    T_RESMP0,
    T_RESMP1,
    T_SKIP0,
    T_SKIP1,
    T_START,
    T_STOP,
    T_VBLANK,
    TIA,
    TIA_SNAPSHOTS,
    TIA_WORDS,
)
from .tia_masks import ONE, ZERO, ball_enabled, missile_mask, player_mask, playfield_mask, shown_player0, shown_player1
from .tia_tables import NEVER_SEEN, PIXELS_BELOW, PLAYFIELD_DELAY, SPREAD, WRITE_DELAY
from .tia_writes import (
    BLANK_CLOCKS,
    DIRTY_ALL,
    DIRTY_BL,
    DIRTY_COLOUR,
    DIRTY_M0,
    DIRTY_M1,
    DIRTY_P0,
    DIRTY_P1,
    DIRTY_PF,
    LINE_CLOCKS,
    NOTHING,
    apply,
    draw_target,
    is_effective,
    move_ark,
)

# Collision latches, in the order of the read addresses CXM0P .. CXPPMM, bit 7 first.
M0_P1, M0_P0, M1_P0, M1_P1, P0_PF, P0_BL, P1_PF, P1_BL = 1, 2, 4, 8, 16, 32, 64, 128
M0_PF, M0_BL, M1_PF, M1_BL, BL_PF, P0_P1, M0_M1 = 256, 512, 1024, 2048, 4096, 8192, 16384

EVERY_BYTE = np.uint64(0x0101010101010101)
LEFT_OF_MIDDLE = np.uint64(0xFFFF)  # of the middle one of three words: pixels 64 to 79


@inlined
def _overlaps(va, vb, vc, p0a, p0b, p0c, p1a, p1b, p1c, m0a, m0b, m0c, m1a, m1b, m1c, bla, blb, blc, pfa, pfb, pfc):
    """The collision latches that objects set within the pixels v*. Three words each: players, missiles, ball, playfield."""
    hits = 0
    if (pfa | pfb | pfc) != ZERO:
        qa, qb, qc = pfa & va, pfb & vb, pfc & vc
        hits |= P0_PF if ((p0a & qa) | (p0b & qb) | (p0c & qc)) != ZERO else 0
        hits |= P1_PF if ((p1a & qa) | (p1b & qb) | (p1c & qc)) != ZERO else 0
        hits |= M0_PF if ((m0a & qa) | (m0b & qb) | (m0c & qc)) != ZERO else 0
        hits |= M1_PF if ((m1a & qa) | (m1b & qb) | (m1c & qc)) != ZERO else 0
        hits |= BL_PF if ((bla & qa) | (blb & qb) | (blc & qc)) != ZERO else 0
    if (p0a | p0b | p0c) != ZERO:
        qa, qb, qc = p0a & va, p0b & vb, p0c & vc
        hits |= P0_P1 if ((p1a & qa) | (p1b & qb) | (p1c & qc)) != ZERO else 0
        hits |= M0_P0 if ((m0a & qa) | (m0b & qb) | (m0c & qc)) != ZERO else 0
        hits |= M1_P0 if ((m1a & qa) | (m1b & qb) | (m1c & qc)) != ZERO else 0
        hits |= P0_BL if ((bla & qa) | (blb & qb) | (blc & qc)) != ZERO else 0
    if (p1a | p1b | p1c) != ZERO:
        qa, qb, qc = p1a & va, p1b & vb, p1c & vc
        hits |= M0_P1 if ((m0a & qa) | (m0b & qb) | (m0c & qc)) != ZERO else 0
        hits |= M1_P1 if ((m1a & qa) | (m1b & qb) | (m1c & qc)) != ZERO else 0
        hits |= P1_BL if ((bla & qa) | (blb & qb) | (blc & qc)) != ZERO else 0
    if (m0a | m0b | m0c) != ZERO:
        qa, qb, qc = m0a & va, m0b & vb, m0c & vc
        hits |= M0_M1 if ((m1a & qa) | (m1b & qb) | (m1c & qc)) != ZERO else 0
        hits |= M0_BL if ((bla & qa) | (blb & qb) | (blc & qc)) != ZERO else 0
    if ((m1a & bla & va) | (m1b & blb & vb) | (m1c & blc & vc)) != ZERO:
        hits |= M1_BL
    return hits


@separate("void(int32[::1], uint64[::1], int64, int64, int64, int64, int64, int64, boolean, boolean, boolean)")
def run(s, screen, t, log, begin, end, base, last_clock, comb_allowed, live, draw):
    """Replay entries `begin` to `end` (exclusive) of the log at `log` on the registers at `t`, then draw up to `last_clock`.

    Times of entries count from cycle `base`. Registers that are `live` take in all entries, and collisions are ORed into
    T_COLLISIONS. With `draw` the pixels are written to `screen`, from line T_FROM_LINE on.
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
    dirty = DIRTY_ALL
    same_as_above = False  # this line has looked like the one above so far, and that one is drawn in full
    comb_above = False  # that one began with a comb
    collided = False  # the masks of this whole line have been checked for collisions already
    p0a, p0b, p0c, p1a, p1b, p1c = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
    m0a, m0b, m0c, m1a, m1b, m1c = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
    bla, blb, blc, pfa, pfb, pfc = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
    for i in range(begin, end + 1):
        reg, value, clock, hpos = np.int64(NOTHING), np.int64(0), np.int64(0), np.int64(0)
        target = np.int64(last_clock)
        if i < end:
            if not live and last >= stop:
                break
            entry = np.int64(s[np.uint32(log + i)])
            reg = entry >> 8 & 0x3F
            if NEVER_SEEN[np.uint32(reg)]:
                continue
            value = entry & 0xFF
            clock = 3 * ((entry >> 14) + base)
            if not is_effective(r, reg, value, clock):
                continue
            hpos = (clock - frame_start) % LINE_CLOCKS
            target = draw_target(r, reg, clock, hpos)

        if start <= target and last < stop and last < target:
            target = min(target, stop)
            while True:
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
                    if dirty & DIRTY_ALL and not blanked:
                        if dirty & DIRTY_P0:
                            shown = shown_player0(r)
                            p0a, p0b, p0c = ZERO, ZERO, ZERO
                            if shown != 0:
                                p0a, p0b, p0c = player_mask(shown, np.int64(r[T_NUSIZ0]), np.int64(r[T_POSP0]), r[T_SKIP0])
                        if dirty & DIRTY_P1:
                            shown = shown_player1(r)
                            p1a, p1b, p1c = ZERO, ZERO, ZERO
                            if shown != 0:
                                p1a, p1b, p1c = player_mask(shown, np.int64(r[T_NUSIZ1]), np.int64(r[T_POSP1]), r[T_SKIP1])
                        if dirty & DIRTY_M0:
                            m0a, m0b, m0c = ZERO, ZERO, ZERO
                            shape = r[T_M0_SHAPE]
                            if r[T_ENAM0] != 0 and r[T_RESMP0] == 0 and shape != 2:
                                size = np.int64(r[T_NUSIZ0]) >> 4 & 3
                                m0a, m0b, m0c = missile_mask(size | (1 if shape == 1 else 0), np.int64(r[T_NUSIZ0]) & 7, np.int64(r[T_POSM0]))
                        if dirty & DIRTY_M1:
                            m1a, m1b, m1c = ZERO, ZERO, ZERO
                            if r[T_ENAM1] != 0 and r[T_RESMP1] == 0:
                                m1a, m1b, m1c = missile_mask(np.int64(r[T_NUSIZ1]) >> 4 & 3, np.int64(r[T_NUSIZ1]) & 7, np.int64(r[T_POSM1]))
                        if dirty & DIRTY_BL:
                            bla, blb, blc = ZERO, ZERO, ZERO
                            if ball_enabled(r) != 0:
                                bla, blb, blc = missile_mask(np.int64(r[T_CTRLPF]) >> 4 & 3, np.int64(0), np.int64(r[T_POSBL]))
                        if dirty & DIRTY_PF:
                            pfa, pfb, pfc = ZERO, ZERO, ZERO
                            if r[T_PF] != 0:
                                pfa, pfb, pfc = playfield_mask(np.int64(r[T_PF]), r[T_MIRRORED])
                        dirty = 0
                        same_as_above = False
                        collided = False
                    if dirty & DIRTY_COLOUR:
                        same_as_above = False
                        dirty &= ~DIRTY_COLOUR

                    if live and not blanked and not collided:
                        va = PIXELS_BELOW[x1, 0] & ~PIXELS_BELOW[x0, 0]
                        vb = PIXELS_BELOW[x1, 1] & ~PIXELS_BELOW[x0, 1]
                        vc = PIXELS_BELOW[x1, 2] & ~PIXELS_BELOW[x0, 2]
                        r[T_COLLISIONS] |= _overlaps(
                            va, vb, vc, p0a, p0b, p0c, p1a, p1b, p1c, m0a, m0b, m0c, m1a, m1b, m1c, bla, blb, blc, pfa, pfb, pfc
                        )  # fmt: skip
                        collided = x0 == 0 and x1 == 160

                    if draw:
                        at = np.int64(r[T_PICTURE]) + line * LINE_WORDS
                        if blanked:
                            _draw_blank(screen, at, x0, x1)
                            same_as_above = False
                        elif same_as_above and x0 == 0 and x1 == 160 and (comb or not comb_above):
                            for word in range(LINE_WORDS):
                                screen[at + word] = screen[at - LINE_WORDS + word]
                        else:
                            _draw_span(
                                r, screen, at, x0, x1,
                                p0a | m0a, p0b | m0b, p0c | m0c, p1a | m1a, p1b | m1b, p1c | m1c,
                                pfa, pfb, pfc, bla, blb, blc,
                            )  # fmt: skip
                            same_as_above = x0 == 0 and x1 == 160
                        comb_above = comb
                        if comb and x0 < 8:
                            screen[at] = ZERO
                if comb and position < 76 and position + clocks >= 76:
                    comb = False
                    r[T_COMB] = 0

                if left == LINE_CLOCKS:
                    line += 1
                    if r[T_MIRRORED] != r[T_CTRLPF] & 1:
                        r[T_MIRRORED] = r[T_CTRLPF] & 1
                        dirty |= DIRTY_PF
                    if r[T_SKIP0] != 0:
                        r[T_SKIP0] = 0
                        dirty |= DIRTY_P0
                    if r[T_SKIP1] != 0:
                        r[T_SKIP1] = 0
                        dirty |= DIRTY_P1
                    if r[T_ARK] != 0:
                        move_ark(r)
                        dirty |= DIRTY_M0
                if last >= target:
                    break
        if i < end:
            dirty |= apply(r, reg, value, clock, hpos, comb_allowed)
            comb = r[T_COMB] != 0
    r[T_LAST] = last
    r[T_LEFT] = left
    r[T_LINE] = line


@kernel
def _draw_blank(screen, at, x0, x1):
    """Pixels x0 .. x1-1 of the line at word `at` become 0."""
    stand_alone()
    first, last = at + (x0 >> 3), at + ((x1 - 1) >> 3)
    head, tail = screen[first], screen[last]
    for word in range(first, last + 1):
        screen[word] = ZERO
    _keep_outside(screen, first, last, x0, x1, head, tail)


@inlined
def _keep_outside(screen, first, last, x0, x1, head, tail):
    """Give the pixels of the words `first` and `last` that lie outside x0 .. x1-1 back what they were."""
    if x0 & 7:
        keep = (ONE << np.uint64((x0 & 7) << 3)) - ONE
        screen[first] ^= (screen[first] ^ head) & keep
    if x1 & 7:
        keep = ~((ONE << np.uint64((x1 & 7) << 3)) - ONE)
        screen[last] ^= (screen[last] ^ tail) & keep


@inlined
def _pixels_of(mask, shift):
    """The 8 pixels of a mask from bit `shift` on, as bytes 0 or 255."""
    return SPREAD[np.uint32((mask >> shift) & np.uint64(0xFF))]


@inlined
def _draw_span(r, screen, at, x0, x1, aa, ab, ac, ba, bb, bc, pa, pb, pc, la, lb, lc):
    """Draw pixels x0 .. x1-1 of the line at word `at`, 8 at a time: the background and three layers over it.

    Masks of three words each: a* player and missile 0, b* player and missile 1, p* playfield, l* ball.
    """
    control = r[T_CTRLPF]
    playfield_first = control & 4 != 0
    score = control & 2 != 0
    if playfield_first and score:
        # Quirk: score colours hold with priority only while the playfield is the one enabled object.
        score = not (
            shown_player0(r) != 0
            or shown_player1(r) != 0
            or (r[T_ENAM0] != 0 and r[T_RESMP0] == 0)
            or (r[T_ENAM1] != 0 and r[T_RESMP1] == 0)
            or ball_enabled(r) != 0
        )
    colour_bk = np.uint64(r[T_COLUBK]) * EVERY_BYTE
    colour_pf = np.uint64(r[T_COLUPF]) * EVERY_BYTE
    colour_a = np.uint64(r[T_COLUP0]) * EVERY_BYTE
    colour_b = np.uint64(r[T_COLUP1]) * EVERY_BYTE
    if playfield_first:
        aa, ab, ac = aa & ~(pa | la), ab & ~(pb | lb), ac & ~(pc | lc)
        ba, bb, bc = ba & ~(pa | la), bb & ~(pb | lb), bc & ~(pc | lc)
    elif score:
        # Quirk: left of the middle player and missile 1 do not cover a lit playfield pixel.
        ba &= ~pa
        bb &= ~(pb & LEFT_OF_MIDDLE)
    first, last = x0 >> 3, (x1 - 1) >> 3
    head, tail = screen[at + first], screen[at + last]
    for group in range(first, last + 1):
        shift = np.uint64((group & 7) << 3)
        if group < 8:
            a, b, field, ball = aa, ba, pa, la
        elif group < 16:
            a, b, field, ball = ab, bb, pb, lb
        else:
            a, b, field, ball = ac, bc, pc, lc
        pixels = colour_bk
        if score:
            pixels ^= (pixels ^ colour_pf) & _pixels_of(ball, shift)
            pixels ^= (pixels ^ (colour_a if group < 10 else colour_b)) & _pixels_of(field, shift)
        else:
            pixels ^= (pixels ^ colour_pf) & _pixels_of(field | ball, shift)
        pixels ^= (pixels ^ colour_b) & _pixels_of(b, shift)
        pixels ^= (pixels ^ colour_a) & _pixels_of(a, shift)
        screen[at + group] = pixels
    _keep_outside(screen, at + first, at + last, x0, x1, head, tail)


# --- frames, slots and pictures -------------------------------------------------------------------------------------


@separate("void(int32[::1], uint64[::1])")
def reset(s, screen):
    """System reset: registers and both pictures 0, no frame pending."""
    stand_alone()
    for i in range(TIA_WORDS):
        s[TIA + i] = 0
    for i in range(len(screen)):
        screen[i] = ZERO
    for slot in range(3):
        s[SLOT_DRAWN + slot] = DRAWN
        s[SLOT_COUNT + slot] = 0
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
    """Swap pictures and rebase clocks by `cycles`; the caller has set the new FRAME_START."""
    stand_alone()
    s[LOG_SLOT] = (s[LOG_SLOT] + 1) % 3
    s[PICTURE] ^= 1
    s[LOG_COUNT] = 0
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
    """Clock up to which the log's last access draws."""
    target = np.int64(s[t + T_LAST])
    if count > 0:
        entry = np.int64(s[log + count - 1])
        reg = entry >> 8 & 0x3F
        clock = 3 * ((entry >> 14) + base)
        hpos = (clock - np.int64(s[t + T_FRAME_START])) % LINE_CLOCKS
        delay = WRITE_DELAY[reg]
        target = clock + (PLAYFIELD_DELAY[(hpos // 3) & 3] if delay < 0 else delay)
    return target


# SLOT_DRAWN: not drawn, drawn for good, being drawn as it runs while log and snapshot still hold all of it.
PENDING, DRAWN, DRAWING = 0, 1, 2

# What `serve` can be asked for.
CATCH_UP, SETTLE, END_FRAME, SHOW = 0, 1, 2, 3


@separate("void(int32[::1], uint64[::1], int64)")
def serve(s, screen, request):
    """Bring registers, collisions and pictures as far as `request` needs them.

    CATCH_UP: the live TIA takes in the whole log, for a collision latch that is read. SETTLE: all that has happened in
    the current frame is put on its picture and the log is emptied; from here on the frame is drawn as it runs, because
    the start of its log is gone. END_FRAME: the frame is complete. SHOW: the current picture shall be looked at.
    With an empty `screen` nothing is drawn: a frame keeps PENDING for as long as its log holds all of it.

    One function with one place that replays, because whatever contains `run` takes long to compile.
    """
    stand_alone()
    slot = np.int64(s[LOG_SLOT])
    two_ago = (slot + 1) % 3
    count = np.int64(s[LOG_COUNT])
    status = s[SLOT_DRAWN + slot]
    has_pictures = len(screen) > 0
    comb_allowed = s[ROM_HMOVE_BLANKS] != 0
    s[SLOT_COUNT + slot] = count
    final = False  # the picture must hold the current frame, over what it held before
    # First the live registers, then, if needed, the frame two ago and the current one from their snapshots.
    for stage in range(3):
        t, log, begin, end, base, draw = np.int64(TIA), LOGS + slot * LOG_CAPACITY, np.int64(0), count, np.int64(0), False
        if stage == 0:
            if s[LOG_DONE] == count:
                continue
            begin = np.int64(s[LOG_DONE])
            base = np.int64(s[LOG_BASE])
            draw = status != PENDING and has_pictures
        else:
            if stage == 1:
                # A frame cut short, or that may yet be, shows below what its picture held: the frame two ago.
                cut = request == END_FRAME and s[TIA + T_LAST] < s[TIA + T_STOP]
                if request == END_FRAME:
                    s[RECENT_CUTS] = s[RECENT_CUTS] << 1 & 2 | (1 if cut else 0)
                unfinished = request == SETTLE or (request == SHOW and s[PARTIAL] != 0)
                final = cut or unfinished
                if status == DRAWN or not final or s[SLOT_DRAWN + two_ago] != PENDING or not has_pictures:
                    continue
                if status == DRAWING:
                    status = np.int32(PENDING)  # what is drawn already will be drawn over
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
