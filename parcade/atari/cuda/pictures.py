"""Compute pixels of observations from palette indices on a GPU; frames hold 8 indices or levels per word.

The sums have the same order as in `preprocess.observe`, so the results are bit-identical. A thread computes
each pixel independently.
"""

import numpy as np

from ..jit import inlined, product
from ..preprocess import rounded
from ..state import LINE_WORDS

WORD_PIXELS = 8


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
    levels = np.uint64(0)
    for k in range(WORD_PIXELS):
        mask = np.uint64(255) << np.uint64(8 * k)
        levels |= max(a & mask, b & mask)
    return levels


@inlined
def _level(levels, line, x):
    """Return the level of a source pixel."""
    return np.float32((levels[line * LINE_WORDS + (x >> 3)] >> np.uint64((x & 7) << 3)) & np.uint64(255))


@inlined
def _averaged(levels, row, x, lines, columns):
    """Return an output pixel that covers an integer number of source pixels."""
    total = np.float32(0)
    for k in range(lines):
        for j in range(columns):
            total += _level(levels, row * lines + k, x * columns + j)
    if lines == 2 and columns == 2:
        return np.uint8((np.int64(total) + 2) >> 2)
    return np.uint8(rounded(product(total, np.float32(1.0) / np.float32(lines * columns))))


@inlined
def observed_pixel(levels, pixel, picture):
    """Return pixel number `pixel` of an observation, from the levels uint64 [lines * 20] of one channel."""
    width = np.uint32(len(picture.column_start))
    row, x = np.int64(np.uint32(pixel) // width), np.int64(np.uint32(pixel) % width)
    if picture.whole[0] > 0:
        return _averaged(levels, row, x, np.int64(picture.whole[0]), np.int64(picture.whole[1]))
    start = np.int64(picture.column_start[x])
    first_line = np.int64(picture.row_start[row])
    total = np.float32(0)
    for k in range(np.int64(picture.row_count[row])):
        line_sum = product(_level(levels, first_line + k, start), picture.column_weight[0, x])
        for tap in range(1, picture.column_weight.shape[0]):
            if start + tap < WORD_PIXELS * LINE_WORDS:
                line_sum += product(
                    _level(levels, first_line + k, start + tap), picture.column_weight[tap, x]
                )
        weighted = product(line_sum, picture.row_weight[row, k])
        total = weighted if k == 0 else total + weighted
    return np.uint8(min(max(rounded(total), np.float32(0)), np.float32(255)))
