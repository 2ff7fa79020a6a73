"""Compute pixels of observations from palette indices on a GPU; frames hold 8 indices or levels per word.

The sums have the same order as in `preprocess.observe`, so the results are bit-identical. A thread computes
each pixel independently.
"""

import numpy as np

from ..compiling.jit import inlined, product
from ..preprocess import rounded
from ..state import PICTURE_WIDTH

WORD_PIXELS = 8
TOP_BITS = np.uint64(0x8080808080808080)


@inlined
def levels_of_word(indices, table):
    """Return the 8 levels of 8 palette indices in one channel."""
    levels = np.uint64(0)
    for k in range(WORD_PIXELS):
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
def _line_sum(levels, place, x, first, second, third, taps, weights):
    """Return the weighted sum of `taps` source pixels of a line; the weights of the first three are given."""
    line_sum = product(_level(levels, place), first)
    if taps > 1:
        line_sum += product(_level(levels, place + 1), second)
    if taps > 2:
        line_sum += product(_level(levels, place + 2), third)
    for tap in range(3, taps):
        line_sum += product(_level(levels, place + tap), weights[np.uint32(tap), x])
    return line_sum


@inlined
def observed_pixel(levels, row, x, picture, whole_lines, whole_columns):
    """Return pixel `x` of a row of an observation, from the levels uint8 [lines * 160] of one channel.

    A pixel covers `whole_lines` times `whole_columns` source pixels, or parts of some if they are 0.
    """
    if whole_lines > 0:
        return _averaged(levels, np.int64(row), np.int64(x), whole_lines, whole_columns)
    weights = picture.column_weight
    start = np.int32(picture.column_start[x])
    place = np.int32(picture.row_start[row]) * PICTURE_WIDTH + start
    taps = min(np.int32(weights.shape[0]), np.int32(PICTURE_WIDTH - start))
    first = weights[np.uint32(0), x]
    second = weights[np.uint32(1), x] if taps > 1 else first
    third = weights[np.uint32(2), x] if taps > 2 else first
    total = np.float32(0)
    for k in range(np.int32(picture.row_count[row])):
        line_sum = _line_sum(levels, place, x, first, second, third, taps, weights)
        weighted = product(line_sum, picture.row_weight[row, np.uint32(k)])
        total = weighted if k == 0 else total + weighted
        place += PICTURE_WIDTH
    return np.uint8(min(max(rounded(total), np.float32(0)), np.float32(255)))
