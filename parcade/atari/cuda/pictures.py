"""What one GPU thread does about pictures: drawing them from logs, and making observations of them.

| body                  | one thread for                          | does                                                            |
|-----------------------|-----------------------------------------|-----------------------------------------------------------------|
| `draw_thread`         | 30 lines of a frame                     | its lines, from the frame's log                                 |
| `grey_thread`         | 8 pixels of a picture                   | grey levels, the maximum of the pictures that are shown          |
| `observe_thread`      | pixel of observations                   | resize, frame stack; the last stack of an episode                |
| `begin_thread`        | pixel of observations                   | if the episode ended: an empty stack and its first picture      |
| `begin_cached_thread` | pixel of observations                   | the same from a cached start                                    |
| `share_thread`        | group of 256 consoles                   | gives picture slots to those who want one                       |

A wave of consoles is stepped at once. Its frames to be drawn stand in ``frames`` int32 [wave, 2, FRAME_WORDS], the last one and the
one before: the TIA as it was when the frame began, a TIA for every thread that draws it, its kind, how many log entries there are, and those.
The drawn pictures stand in ``pictures`` uint64 [wave, 2, height * 20], or, of consoles with a slot, in ``captured`` [slots, 3, height * 20].
Grey levels take the place of the first of a console's two pictures. Frames and pictures are scratch.
"""

import numpy as np

from .. import tia
from ..jit import inlined, kernel, product, stand_alone
from ..preprocess import rounded
from ..state import (
    LINE_WORDS,
    LOG_CAPACITY,
    LOGS,
    ROM_HMOVE_BLANKS,
    SLOT_COUNT,
    SLOT_DRAWN,
    T_FROM_LINE,
    T_PICTURE,
    T_START,
    T_STOP,
    TIA_SNAPSHOTS,
    TIA_WORDS,
)
from ..tia_writes import LINE_CLOCKS

BAND_LINES = 30  # drawn by one thread
MOST_BANDS = 9  # of a picture of 250 lines
GROUP = 256  # consoles that share slots
COMPLETE_SLOT, NEW_SLOT, LACKING_SLOT = 0, 1, 2  # what a slot's pictures are: all there, of somebody else, black where nothing is known

# A frame to be drawn.
FRAME_KIND = (1 + MOST_BANDS) * TIA_WORDS
FRAME_COUNT = FRAME_KIND + 1
FRAME_LOG = FRAME_COUNT + 1
FRAME_WORDS = FRAME_LOG + LOG_CAPACITY
NO_FRAME, COMPLETE, INCOMPLETE = 0, 1, 2  # an incomplete one shows black where nothing is known

# Words of the settings array.
(FRAME_SKIP, FRAME_LIMIT, MAX_POOL, CLIP, LIFE_LOSS, EPISODIC_LIFE, USE_FIRE, NOOP_MAX, NUM_SETTINGS) = range(9)


# --- pictures from logs --------------------------------------------------------------------------------------------------


@kernel
def is_logged(s, slot):
    """Whether the log of a slot's frame holds all of it."""
    stand_alone()
    return s[SLOT_DRAWN + slot] == tia.PENDING


@kernel
def put_frame(s, slot, complete, frame):
    """A slot's frame into `frame` int32 [FRAME_WORDS]; black if its log does not hold all of it."""
    stand_alone()
    for i in range(TIA_WORDS):
        frame[i] = s[TIA_SNAPSHOTS + slot * TIA_WORDS + i]
    frame[FRAME_KIND] = COMPLETE if complete else INCOMPLETE
    count = np.int64(s[SLOT_COUNT + slot]) if is_logged(s, slot) else np.int64(0)
    frame[FRAME_COUNT] = count
    for i in range(count):
        frame[FRAME_LOG + i] = s[LOGS + slot * LOG_CAPACITY + i]


@kernel
def draw_thread(i, first, registers, frames, pictures):
    """Lines of one of the two frames of a console: thread i is band i % B of frame i // B % 2, of console i // 2B of the wave."""
    stand_alone()
    lines = np.int64(pictures.shape[2]) // LINE_WORDS
    bands = (lines + BAND_LINES - 1) // BAND_LINES
    of_console = 2 * bands
    w = i // of_console
    which = (i - w * of_console) // bands
    band = i - w * of_console - which * bands
    frame = frames[w, which]
    if frame[FRAME_KIND] == NO_FRAME:
        return
    picture = pictures[w, which]
    from_line = band * BAND_LINES
    to_line = min(from_line + BAND_LINES, lines)
    if frame[FRAME_KIND] == INCOMPLETE:
        for word in range(from_line * LINE_WORDS, to_line * LINE_WORDS):
            picture[word] = np.uint64(0)
    count = np.int64(frame[FRAME_COUNT])
    if count == 0:
        return
    t = (1 + band) * TIA_WORDS
    for word in range(TIA_WORDS):
        frame[t + word] = frame[word]
    frame[t + T_PICTURE] = 0
    frame[t + T_FROM_LINE] = from_line
    frame[t + T_STOP] = min(np.int64(frame[T_STOP]), np.int64(frame[T_START]) + LINE_CLOCKS * to_line)
    target = tia.last_access_target(frame, t, np.int64(FRAME_LOG), count, np.int64(0))
    hmove_blanks = registers[ROM_HMOVE_BLANKS, first + w] != 0
    tia.run(frame, picture, t, np.int64(FRAME_LOG), np.int64(0), count, np.int64(0), target, hmove_blanks, False, True)


# --- slots ------------------------------------------------------------------------------------------------------------------


@kernel
def share_thread(i, first_group, wanted, whole, slot_of, owner, slot_kind):
    """Slots for the consoles of group `first_group` + i.

    Shapes: wanted [n] bool, whole [n] uint8, slot_of [n] int32 (-1 none), owner int32 [slots] (-1 free), slot_kind uint8 [slots]. A group has
    its share of the slots, slots / groups of them. Who is whole and wants none loses its slot.
    """
    stand_alone()
    n = len(slot_of)
    groups = (n + GROUP - 1) // GROUP
    share = len(owner) // groups
    group = first_group + i
    first_slot = group * share
    for slot in range(first_slot, first_slot + share):
        e = np.int64(owner[slot])
        if e >= 0 and whole[e] != 0 and not wanted[e]:
            slot_of[e] = -1
            owner[slot] = -1
    free = first_slot
    for e in range(group * GROUP, min(group * GROUP + GROUP, n)):
        if wanted[e] and slot_of[e] < 0:
            while free < first_slot + share and owner[free] >= 0:
                free += 1
            if free == first_slot + share:
                return
            owner[free] = e
            slot_of[e] = free
            slot_kind[free] = NEW_SLOT


@inlined
def words_in(pictures, slot):
    """Words of a row of [slots, words], none where there is no slot."""
    return np.int64(pictures.shape[1]) if slot >= 0 else np.int64(0)


# --- observations -----------------------------------------------------------------------------------------------------------


@kernel
def grey_thread(i, first, shown, in_slot, slot_of, captured, grey, pictures):
    """Word `i` of the wave's pictures: 8 grey levels, the maximum over as many pictures as are `shown` uint8 [n]."""
    stand_alone()
    words = np.int64(pictures.shape[2])
    w = i // words
    e = first + w
    num_pictures = np.int64(shown[e])
    if num_pictures == 0:
        return
    word = i - w * words
    source = captured[slot_of[e]] if in_slot[e] else pictures[w]
    levels = np.uint64(0)
    for k in range(8):
        shift = np.uint64(8 * k)
        level = grey[np.uint32((source[0, word] >> shift) & np.uint64(255))]
        for p in range(1, num_pictures):
            level = max(level, grey[np.uint32((source[p, word] >> shift) & np.uint64(255))])
        levels |= np.uint64(level) << shift
    pictures[w, 0, word] = levels


@inlined
def _level(levels, line, x):
    """Grey level of a source pixel."""
    return np.float32((levels[line * LINE_WORDS + (x >> 3)] >> np.uint64((x & 7) << 3)) & np.uint64(255))


@kernel
def observed_pixel(levels, row, x, column_start, column_weight, row_start, row_count, row_weight, whole):
    """One pixel of `preprocess.observe`, by the same sums in the same order."""
    stand_alone()
    if whole[0] > 0:
        lines, columns = np.int64(whole[0]), np.int64(whole[1])
        total = np.float32(0)
        for k in range(lines):
            for j in range(columns):
                total += _level(levels, row * lines + k, x * columns + j)
        if lines == 2 and columns == 2:
            return np.uint8((np.int64(total) + 2) >> 2)
        return np.uint8(rounded(product(total, np.float32(1.0) / np.float32(lines * columns))))
    start = np.int64(column_start[x])
    first_line = np.int64(row_start[row])
    total = np.float32(0)
    for k in range(np.int64(row_count[row])):
        line_sum = product(_level(levels, first_line + k, start), column_weight[0, x])
        for tap in range(1, column_weight.shape[0]):
            weight = column_weight[tap, x]
            if start + tap < 8 * LINE_WORDS:
                line_sum += product(_level(levels, first_line + k, start + tap), weight)
        weighted = product(line_sum, row_weight[row, k])
        total = weighted if k == 0 else total + weighted
    return np.uint8(min(max(rounded(total), np.float32(0)), np.float32(255)))


@kernel
def observe_thread(
    i, first, shown, over, pictures, column_start, column_weight, row_start, row_count, row_weight, whole, observations, final_out,
):  # fmt: skip
    """Pixel `i` of the wave's observations: push the new frame on the stack [n, k, height * width].

    Where nothing is `shown` the newest frame is seen once more.
    """
    stand_alone()
    pixels = observations.shape[2]
    w = i // pixels
    e = first + w
    pixel = i - w * pixels
    newest = observations.shape[1] - 1
    level = observations[e, newest, pixel]
    if shown[e] != 0:
        width = len(column_start)
        row = pixel // width
        level = observed_pixel(pictures[w, 0], row, pixel - row * width, column_start, column_weight, row_start, row_count, row_weight, whole)
    for k in range(newest):
        observations[e, k, pixel] = observations[e, k + 1, pixel]
    observations[e, newest, pixel] = level
    if over[e] != 0:
        for k in range(newest + 1):
            final_out[e, k, pixel] = observations[e, k, pixel]


@kernel
def begin_thread(
    i, first, over, pictures, column_start, column_weight, row_start, row_count, row_weight, whole, observations
):  # fmt: skip
    """Pixel `i` of the wave's observations: the first stack of the episodes that have just begun."""
    stand_alone()
    pixels = observations.shape[2]
    w = i // pixels
    e = first + w
    if over[e] == 0:
        return
    pixel = i - w * pixels
    width = len(column_start)
    row = pixel // width
    newest = observations.shape[1] - 1
    for k in range(newest):
        observations[e, k, pixel] = np.uint8(0)
    observations[e, newest, pixel] = observed_pixel(
        pictures[w, 0], row, pixel - row * width, column_start, column_weight, row_start, row_count, row_weight, whole
    )


@kernel
def begin_cached_thread(i, over, chosen, start_observations, observations):
    """Pixel `i` of all observations: where an episode has begun, the stack of the start `chosen` [n], one of [K, k, pixels]."""
    stand_alone()
    pixels = observations.shape[2]
    e = i // pixels
    if over[e] == 0:
        return
    pixel = i - e * pixels
    for k in range(observations.shape[1]):
        observations[e, k, pixel] = start_observations[chosen[e], k, pixel]
