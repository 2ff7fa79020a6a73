"""Compute pixels of observations from palette indices on a GPU; frames hold 8 indices or levels per word.

The sums have the same order as in `preprocess.observe`, so the results are bit-identical.
"""

import numpy as np

from ..compiling.jit import inlined, product
from ..preprocess import rounded
from ..state import PICTURE_WIDTH

TOP_BITS = np.uint64(0x8080808080808080)
FEW, SOME = (
    3,
    6,
)  # weights of a column for whose number there is a loop: down to a width of 80 and of 40 pixels


@inlined
def levels_of_word(indices, table):
    """Return the 8 levels of 8 palette indices in one channel."""
    levels = np.uint64(0)
    for k in range(8):
        shift = np.uint64(8 * k)
        levels |= np.uint64(table[np.uint32((indices >> shift) & np.uint64(255))]) << shift
    return levels


@inlined
def brighter(a, b):
    """Return the elementwise maximum of 8 levels."""
    # Bit 7 of each byte of `at_least`: a >= b, from a subtraction of the low 7 bits that never borrows.
    low = (a | TOP_BITS) - (b & ~TOP_BITS)
    at_least = ((a & ~b) | (~(a ^ b) & low)) & TOP_BITS
    return b ^ ((a ^ b) & ((at_least << np.uint64(1)) - (at_least >> np.uint64(7))))


@inlined
def _level(levels, place):
    """Return the level of source pixel number `place`."""
    return np.float32(levels[np.uint32(place)])


@inlined
def _averaged(levels, row, x, lines, columns):
    """Return an output pixel that covers an integer number of source pixels."""
    total = np.float32(0)
    for k in range(lines):
        for j in range(columns):
            total += _level(levels, (row * lines + k) * PICTURE_WIDTH + x * columns + j)
    if lines == 2 and columns == 2:
        return np.uint8((np.int64(total) + 2) >> 2)
    return np.uint8(rounded(product(total, np.float32(1.0) / np.float32(lines * columns))))


@inlined
def _weight(picture, tap, x):
    """Return a weight of column `x`, 0 behind its last one."""
    weights = picture.column_weight
    return weights[np.uint32(tap), x] if tap < weights.shape[0] else np.float32(0)


@inlined
def _line_sum(taps, levels, place, x, picture, weights):
    """Return the weighted sum of the source pixels of a line from `place` on.

    With FEW or SOME `taps`, the first weights are in `weights`, and the others are 0. So it does not matter
    that there may be pixels of the next line behind the last one.
    """
    line_sum = product(_level(levels, place), weights[0])
    if taps > SOME:
        for tap in range(1, taps):
            pixel = min(np.int64(picture.column_start[x]) + tap, PICTURE_WIDTH - 1) - picture.column_start[x]
            line_sum += product(_level(levels, place + pixel), _weight(picture, tap, x))
        return line_sum
    line_sum += product(_level(levels, place + np.uint32(1)), weights[1])
    line_sum += product(_level(levels, place + np.uint32(2)), weights[2])
    if taps > FEW:
        line_sum += product(_level(levels, place + np.uint32(3)), weights[3])
        line_sum += product(_level(levels, place + np.uint32(4)), weights[4])
        line_sum += product(_level(levels, place + np.uint32(5)), weights[5])
    return line_sum


@inlined
def _write_rows(taps, levels, x, row, step, picture, out, at, skipped):
    """Write a column's pixels of rows `row`, `row` + `step` and so on to `at`, `at` + `skipped` and so on.

    Numbers have 32 bits, of which a GPU computes twice as many as of 64.
    """
    weights = (
        _weight(picture, 0, x), _weight(picture, 1, x), _weight(picture, 2, x),
        _weight(picture, 3, x), _weight(picture, 4, x), _weight(picture, 5, x),
    )  # fmt: skip
    start, rows = np.uint32(picture.column_start[x]), np.uint32(len(picture.row_start))
    most_lines = np.uint32(np.uint32(len(picture.row_weight)) // rows)
    while row < rows:
        place = np.uint32(np.uint32(picture.row_start[row]) * np.uint32(PICTURE_WIDTH) + start)
        weight = np.uint32(row * most_lines)
        end = np.uint32(weight + np.uint32(picture.row_count[row]))
        total = np.float32(0)
        while weight < end:
            line_sum = _line_sum(taps, levels, place, x, picture, weights)
            total += product(line_sum, picture.row_weight[weight])
            place, weight = np.uint32(place + np.uint32(PICTURE_WIDTH)), np.uint32(weight + np.uint32(1))
        out[at] = np.uint8(min(max(rounded(total), np.float32(0)), np.float32(255)))
        row, at = np.uint32(row + step), np.uint32(at + skipped)


@inlined
def _write_averages(levels, x, row, step, picture, out, at, skipped):
    """Write pixels that cover an integer number of source pixels each."""
    lines, columns = np.int64(picture.whole[0]), np.int64(picture.whole[1])
    while row < np.uint32(len(picture.row_start)):
        out[at] = _averaged(levels, np.int64(row), np.int64(x), lines, columns)
        row, at = np.uint32(row + step), np.uint32(at + skipped)


@inlined
def write_column(levels, x, row, step, picture, out, channel):
    """Write column `x` of every `step`-th row of an observation, from `row` on.

    `levels` uint8 [lines * 160] of one channel, with further bytes behind; `out` uint8 [rows * columns *
    channels].
    """
    columns, channels = np.uint32(len(picture.column_start)), np.uint32(len(picture.levels))
    at, skipped = np.uint32((row * columns + x) * channels + channel), np.uint32(step * columns * channels)
    taps = picture.column_weight.shape[0]
    if picture.whole[0] > 0:
        _write_averages(levels, x, row, step, picture, out, at, skipped)
    elif taps <= FEW:
        _write_rows(FEW, levels, x, row, step, picture, out, at, skipped)
    elif taps <= SOME:
        _write_rows(SOME, levels, x, row, step, picture, out, at, skipped)
    else:
        _write_rows(taps, levels, x, row, step, picture, out, at, skipped)
