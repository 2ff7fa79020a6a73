"""The span list: what a GPU's thread records where a CPU draws.

The consoles of a warp rarely draw at the same time, and a line is 20 words. So a thread of a GPU only records
every span of a line, with the registers that its pixels depend on, and blocks paint the spans afterwards
(`cuda/environments.py`). Whole lines that look like the one above join its span.

A console's list is behind its two frame buffers in its row of `screen`: a word with the number of spans, then
SPAN_WORDS words per span. Without room for a list, the frames are drawn at once. The words of a span, bits
from the lowest:

| word | contents                                                                                         |
|------|--------------------------------------------------------------------------------------------------|
| 0    | colours: background, players 0 and 1, playfield (8 bits each); line, number of lines, x0, x1 (8) |
| 1    | player 0 and its missile, then player 1 and its missile (32 bits each, see `_pair`)              |
| 2    | playfield (20), mirrored (1), ball (11, see `_small`), priority, score, comb, frame buffer (1)   |

In VBLANK everything but the place, the comb and the frame buffer is 0, which is a black span.
"""

import numpy as np

from ..compiling.jit import inlined, kernel, stand_alone
from ..state import (
    LINE_WORDS,
    ROM_HEIGHT,
    T_COLUBK,
    T_COLUP0,
    T_COLUP1,
    T_COLUPF,
    T_CTRLPF,
    T_ENAM0,
    T_ENAM1,
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
    T_REFP0,
    T_REFP1,
    T_RESMP0,
    T_RESMP1,
    T_SKIP0,
    T_SKIP1,
    T_VBLANK,
)
from .drawing import EVERY_BYTE, MIDDLE_GROUP, has_score_colours, layered, spread
from .masks import (
    ONE,
    ZERO,
    ball_enabled,
    missile_mask,
    player0_byte,
    player1_byte,
    player_mask,
    playfield_mask,
    union,
)
from .tables import REVERSED

SPAN_WORDS = 3
LINE_SHIFT, LINES_SHIFT, X0_SHIFT, X1_SHIFT = 32, 40, 48, 56  # bits of word 0
BYTE = np.uint64(0xFF)
WHOLE_WORD = ~ZERO
PRIORITY, SCORE, COMB, SECOND_BUFFER = 32, 33, 34, 35  # bits of word 2
LOOK_WORDS = 15  # of `look_of`: an odd number, so that lanes that write theirs meet in few memory banks


@inlined
def list_in(s, screen):
    """Return the word of `screen` at which the span list begins; 0 if there is none."""
    after_frames = 2 * LINE_WORDS * np.int64(s[ROM_HEIGHT])
    return after_frames if len(screen) > after_frames else np.int64(0)


# --- recording ----------------------------------------------------------------------------------------------


@inlined
def _small(shown, size, position):
    """Return 11 bits of a missile or the ball, 2**`size` wide: shown (1), size (2), position (8)."""
    return np.int64(shown) | np.int64(size) << 1 | np.int64(position) << 3


@inlined
def _pair(shown, nusiz, skips_first, position, missile):
    """Return 31 bits of a player with its missile.

    Displayed byte (8), mode (3), without its first copy (1), position (8), missile (11).
    """
    return (
        np.int64(shown) | (nusiz & 7) << 8 | np.int64(skips_first != 0) << 11
        | np.int64(position) << 12 | missile << 20
    )  # fmt: skip


@inlined
def _players(r):
    """Return word 1 of a span."""
    nusiz0, nusiz1 = np.int64(r[T_NUSIZ0]), np.int64(r[T_NUSIZ1])
    shown0, shown1 = player0_byte(r), player1_byte(r)
    shown0 = np.int64(REVERSED[shown0]) if r[T_REFP0] != 0 else shown0
    shown1 = np.int64(REVERSED[shown1]) if r[T_REFP1] != 0 else shown1
    shape = r[T_M0_SHAPE]
    size0 = nusiz0 >> 4 & 3 | (1 if shape == 1 else 0)
    missile0 = _small(r[T_ENAM0] != 0 and r[T_RESMP0] == 0 and shape != 2, size0, r[T_POSM0])
    missile1 = _small(r[T_ENAM1] != 0 and r[T_RESMP1] == 0, nusiz1 >> 4 & 3, r[T_POSM1])
    first = _pair(shown0, nusiz0, r[T_SKIP0], r[T_POSP0], missile0)
    return np.uint64(first | _pair(shown1, nusiz1, r[T_SKIP1], r[T_POSP1], missile1) << 32)


@inlined
def _field(r):
    """Return word 2 of a span, without comb and frame buffer."""
    ball = _small(ball_enabled(r) != 0, np.int64(r[T_CTRLPF]) >> 4 & 3, r[T_POSBL])
    return np.uint64(
        np.int64(r[T_PF]) | np.int64(r[T_MIRRORED] != 0) << 20 | ball << 21
        | np.int64(r[T_CTRLPF] & 4 != 0) << PRIORITY | np.int64(has_score_colours(r)) << SCORE
    )  # fmt: skip


@kernel
def record(r, screen, spans, line, x0, x1, comb):
    """Append pixels x0 .. x1-1 of a line to the list. A full list is painted first."""
    stand_alone()
    count = np.int64(screen[np.uint64(spans)])
    if SPAN_WORDS * (count + 1) >= len(screen) - spans:
        paint(screen, spans)
        count = np.int64(0)
    colours, players, field = ZERO, ZERO, ZERO
    if r[T_VBLANK] & 2 == 0:
        colours = np.uint64(
            np.int64(r[T_COLUBK]) | np.int64(r[T_COLUP0]) << 8 | np.int64(r[T_COLUP1]) << 16
            | np.int64(r[T_COLUPF]) << 24
        )  # fmt: skip
        players, field = _players(r), _field(r)
    place = line << LINE_SHIFT | 1 << LINES_SHIFT | x0 << X0_SHIFT | x1 << X1_SHIFT
    at = np.uint64(spans + 1 + SPAN_WORDS * count)
    screen[at] = colours | np.uint64(place)
    screen[at + ONE] = players
    screen[at + ONE + ONE] = (
        field | np.uint64(comb) << np.uint64(COMB) | np.uint64(r[T_PICTURE] != 0) << np.uint64(SECOND_BUFFER)
    )
    screen[np.uint64(spans)] = np.uint64(count + 1)


@inlined
def extend(screen, spans, lines):
    """Let the last span, a whole line, cover `lines` more lines."""
    last = spans + 1 + SPAN_WORDS * (np.int64(screen[np.uint64(spans)]) - 1)
    screen[np.uint64(last)] += np.uint64(lines) << np.uint64(LINES_SHIFT)


# --- painting -----------------------------------------------------------------------------------------------


@inlined
def _bits(word, shift, mask):
    return np.int64(word >> np.uint64(shift)) & mask


@inlined
def _small_of(small, mode):
    """Return the mask of a missile or the ball from its bits (`_small`)."""
    if small & 1 == 0:
        return ZERO, ZERO, ZERO
    return missile_mask(small >> 1 & 3, mode, small >> 3 & 0xFF)


@inlined
def _pair_of(pair):
    """Return the mask of a player and its missile from their bits (`_pair`)."""
    player = (ZERO, ZERO, ZERO)
    if pair & 0xFF != 0:
        player = player_mask(pair & 0xFF, pair >> 8 & 7, pair >> 12 & 0xFF, pair >> 11 & 1)
    return union(player, _small_of(pair >> 20, pair >> 8 & 7))


@inlined
def _layers_of(players, field):
    """Return the masks of a span from its words 1 and 2, as `layered` does."""
    playfield = (ZERO, ZERO, ZERO)
    if _bits(field, 0, 0xFFFFF) != 0:
        playfield = playfield_mask(_bits(field, 0, 0xFFFFF), _bits(field, 20, 1))
    return layered(
        _bits(field, PRIORITY, 1) != 0, _bits(field, SCORE, 1) != 0,
        _pair_of(_bits(players, 0, 0xFFFFFFFF)), _pair_of(_bits(players, 32, 0xFFFFFFFF)),
        playfield, _small_of(_bits(field, 21, 0x7FF), np.int64(0)),
    )  # fmt: skip


@inlined
def look_of(screen, spans, number, looks, at):
    """Write what `paint_word` needs of a span to `looks[at : at + LOOK_WORDS]`."""
    first = np.uint64(spans + 1 + SPAN_WORDS * number)
    a, b, field, ball = _layers_of(screen[first + ONE], screen[first + ONE + ONE])
    for k in range(3):
        looks[np.uint32(at + k)] = a[k]
        looks[np.uint32(at + 3 + k)] = b[k]
        looks[np.uint32(at + 6 + k)] = field[k]
        looks[np.uint32(at + 9 + k)] = ball[k]
    looks[np.uint32(at + 12)] = screen[first]
    looks[np.uint32(at + 13)] = screen[first + ONE + ONE]


@inlined
def _pixels(a, b, field, ball, colours, score, group):
    """Return 8 pixels from the bits of the masks there and word 0 of the span."""
    background = (colours & BYTE) * EVERY_BYTE
    colour_a = (colours >> np.uint64(8) & BYTE) * EVERY_BYTE
    colour_b = (colours >> np.uint64(16) & BYTE) * EVERY_BYTE
    colour_ball = (colours >> np.uint64(24) & BYTE) * EVERY_BYTE
    colour_field = colour_ball
    if score:
        colour_field = colour_a if group < MIDDLE_GROUP else colour_b
    return (
        background ^ (spread(a) & (colour_a ^ background)) ^ (spread(b) & (colour_b ^ background))
        ^ (spread(field) & (colour_field ^ background)) ^ (spread(ball) & (colour_ball ^ background))
    )  # fmt: skip


@inlined
def paint_word(screen, spans, place, field_word, a, b, field, ball, group):
    """Paint the 8 pixels `group` of all lines of a span, if they belong to it.

    `a`, `b`, `field` and `ball` are the words of the masks that contain the group.
    """
    x0, x1 = _bits(place, X0_SHIFT, 0xFF), _bits(place, X1_SHIFT, 0xFF)
    if 8 * group + 8 <= x0 or 8 * group >= x1:
        return
    left, right = np.uint64(8 * max(x0 - 8 * group, 0)), np.uint64(8 * max(8 * group + 8 - x1, 0))
    inside = (WHOLE_WORD << left) & (WHOLE_WORD >> right)
    shift = np.uint64(8 * (group & 7))
    pixels = _pixels(
        a >> shift & BYTE, b >> shift & BYTE, field >> shift & BYTE, ball >> shift & BYTE,
        place, _bits(field_word, SCORE, 1) != 0, group,
    )  # fmt: skip
    if group == 0 and _bits(field_word, COMB, 1) != 0:  # blanks all 8, as in `lines.py`
        pixels, inside = ZERO, WHOLE_WORD
    buffer = (spans >> 1) * _bits(field_word, SECOND_BUFFER, 1)
    word = np.uint64(buffer + LINE_WORDS * _bits(place, LINE_SHIFT, 0xFF) + group)
    for _ in range(_bits(place, LINES_SHIFT, 0xFF)):
        before = pixels if inside == WHOLE_WORD else screen[word]
        screen[word] = before ^ ((before ^ pixels) & inside)
        word += np.uint64(LINE_WORDS)


@inlined
def paint_look(screen, spans, looks, at, group):
    """Paint the 8 pixels `group` of all lines of a span from `looks`, see `look_of`."""
    a = np.uint32(at + (group >> 3))
    b, field, ball = a + np.uint32(3), a + np.uint32(6), a + np.uint32(9)
    paint_word(
        screen, spans, looks[np.uint32(at + 12)], looks[np.uint32(at + 13)],
        looks[a], looks[b], looks[field], looks[ball], group,
    )  # fmt: skip


@kernel
def paint(screen, spans):
    """Paint all spans of a list and empty it, as one thread."""
    stand_alone()
    for number in range(np.int64(screen[np.uint64(spans)])):
        first = np.uint64(spans + 1 + SPAN_WORDS * number)
        place, field_word = screen[first], screen[first + ONE + ONE]
        a, b, field, ball = _layers_of(screen[first + ONE], field_word)
        for group in range(LINE_WORDS):
            if group < 8:
                masks = a[0], b[0], field[0], ball[0]
            elif group < 16:
                masks = a[1], b[1], field[1], ball[1]
            else:
                masks = a[2], b[2], field[2], ball[2]
            paint_word(
                screen, spans, place, field_word, masks[0], masks[1], masks[2], masks[3], np.int64(group)
            )
    screen[np.uint64(spans)] = ZERO
