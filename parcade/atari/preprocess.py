"""Preprocessing of frames: conversion to grey or RGB, maximum over two frames, resize by area averaging.

The result is byte-identical to ale-py's `AtariVectorEnv`, which resizes with OpenCV's INTER_AREA: with
float32 weights, it sums each source line horizontally, accumulates the weighted lines, and rounds half to
even. A line equal to the one above it in every frame is not converted and summed again. Output rows whose
source lines have not changed are kept.
"""

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .jit import inlined, kernel, product, stand_alone
from .state import LINE_WORDS

EVERY_BYTE = np.uint64(0x0101010101010101)
TO_WHOLE = np.float32(1.5 * 2**23)  # adding it to a float32 rounds away all bits below 1


def grey_table(pal: bool) -> np.ndarray:
    """Return the grey level of each palette index, uint8 [256], as in ale-py's getScreenGrayscale.

    Odd indices occur only on PAL consoles. Their grey level is the blue byte of the next entry, as in ale-py.
    """
    return np.array(_palette()["pal" if pal else "ntsc"]["grey"], np.uint8)


def rgb_table(pal: bool) -> np.ndarray:
    """Return the colour of each palette index, uint8 [256, 3], as in ale-py's getScreenRGB."""
    return np.array(_palette()["pal" if pal else "ntsc"]["rgb"], np.uint8)


def level_tables(obs_type: str, pal: bool) -> np.ndarray:
    """Return the level of each palette index in each channel, uint8 [channels, 256].

    There is 1 channel for grey, 3 for rgb and 0 for ram.
    """
    if obs_type == "ram":
        return np.zeros((0, 256), np.uint8)
    return np.ascontiguousarray(rgb_table(pal).T) if obs_type == "rgb" else grey_table(pal)[None]


def _palette() -> dict:
    return json.loads(Path(__file__).with_name("palette.json").read_text())


class Resize(NamedTuple):
    """Weights of an area resize: output[i] sums weight[i, k] * source[start[i] + k] over k < count[i]."""

    column_start: np.ndarray  # int32 [width]
    column_weight: np.ndarray  # float32 [taps, width], zero where unused
    row_start: np.ndarray  # int32 [height]
    row_count: np.ndarray  # int32 [height]
    row_weight: np.ndarray  # float32 [height, taps]
    # int32 [2]: source lines and columns per output pixel if both are integers, else 0
    whole: np.ndarray


def _area_weights(source: int, target: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if target > source:
        raise ValueError(f"cannot enlarge {source} pixels to {target}; use at most {source}")
    scale = source / target
    starts, lists = [], []
    for index in range(target):
        low = index * scale
        high = low + scale
        cell = min(scale, source - low)
        first = math.ceil(low)
        last = min(math.floor(high), source - 1)
        first = min(first, last)
        weights, start = [], first
        if first - low > 1e-3:
            weights.append((first - low) / cell)
            start = first - 1
        weights += [1.0 / cell] * (last - first)
        if high - last > 1e-3:
            weights.append(min(min(high - last, 1.0), cell) / cell)
        starts.append(start)
        lists.append(weights)
    taps = max(map(len, lists))
    table = np.zeros((target, taps), np.float32)
    for row, weights in zip(table, lists, strict=True):
        row[: len(weights)] = weights
    return np.array(starts, np.int32), np.array([len(weights) for weights in lists], np.int32), table


def resize_to(source_height: int, height: int, width: int) -> Resize:
    """Return the weights for a resize from [source_height, 160] to [height, width]."""
    column_start, _, column_weight = _area_weights(160, width)
    row_start, row_count, row_weight = _area_weights(source_height, height)
    whole = (
        (source_height // height, 160 // width)
        if source_height % height == 0 and 160 % width == 0
        else (0, 0)
    )
    return Resize(
        column_start,
        np.ascontiguousarray(column_weight.T),
        row_start,
        row_count,
        row_weight,
        np.array(whole, np.int32),
    )


@inlined
def rounded(x):
    """Round a float32 of 0 to 2**22 half to even. np.rint does the same, but not on a GPU."""
    return (x + TO_WHOLE) - TO_WHOLE


@kernel
def pooled_line(pictures, num_pictures, line, levels, out):
    """Convert a line to levels of one channel: the maximum over the first `num_pictures` rows of `pictures`.

    pictures: uint64 [3, height * 20].
    """
    stand_alone()
    at = line * LINE_WORDS
    first = pictures[0, at : at + LINE_WORDS]
    second = pictures[1 if num_pictures > 1 else 0, at : at + LINE_WORDS]
    third = pictures[2 if num_pictures > 2 else 0, at : at + LINE_WORDS]
    for word in range(LINE_WORDS):
        a, b, c = first[word], second[word], third[word]
        if a == b and a == c and a == (a & np.uint64(255)) * EVERY_BYTE:  # one colour, the common case
            level = np.float32(levels[np.uint32(a & np.uint64(255))])
            for k in range(8):
                out[8 * word + k] = level
        elif a == b and a == c:
            for k in range(8):
                out[8 * word + k] = np.float32(levels[np.uint32((a >> np.uint64(8 * k)) & np.uint64(255))])
        else:
            for k in range(8):
                level = levels[np.uint32((a >> np.uint64(8 * k)) & np.uint64(255))]
                level = max(level, levels[np.uint32((b >> np.uint64(8 * k)) & np.uint64(255))])
                level = max(level, levels[np.uint32((c >> np.uint64(8 * k)) & np.uint64(255))])
                out[8 * word + k] = np.float32(level)


@kernel
def as_above(pictures, num_pictures, line):
    """Return whether a line equals the one above it in every frame."""
    at = line * LINE_WORDS
    changed = np.uint64(0)
    for p in range(num_pictures):
        here = pictures[p, at : at + LINE_WORDS]
        above = pictures[p, at - LINE_WORDS : at]
        for word in range(LINE_WORDS):
            changed |= here[word] ^ above[word]
    return changed == np.uint64(0)


@kernel
def _sum_along(level, column_start, column_weight, sums):
    """Compute the weighted sums [width] along a line. `level` is zero past the end of the line."""
    stand_alone()
    width = len(column_start)
    taps = column_weight.shape[0]
    if taps == 3:  # the usual 84 columns, in one pass
        left, middle, right = column_weight[0], column_weight[1], column_weight[2]
        for x in range(width):
            at = np.uint32(column_start[x])
            total = product(level[at], left[x])
            total += product(level[at + np.uint32(1)], middle[x])
            sums[x] = total + product(level[at + np.uint32(2)], right[x])
        return
    first_weight = column_weight[0]
    for x in range(width):
        sums[x] = product(level[np.uint32(column_start[x])], first_weight[x])
    for tap in range(1, taps):
        tap_weight = column_weight[tap]
        shifted = level[tap:]
        for x in range(width):
            sums[x] += product(shifted[np.uint32(column_start[x])], tap_weight[x])


@kernel
def _some(changed, first, count):
    """Return whether any of the `count` lines from `first` has changed."""
    for line in range(first, first + count):
        if changed[line]:
            return True
    return False


@kernel
def _observe_whole(pictures, num_pictures, levels, lines, columns, width, height, level, total, changed, out):
    """Resize by integer ratios: OpenCV averages blocks of pixels. For 2x2 blocks, it rounds halves up."""
    stand_alone()
    scale = np.float32(1.0) / np.float32(lines * columns)
    for row in range(height):
        if not _some(changed, row * lines, lines):
            continue
        if lines == 1 and row > 0 and as_above(pictures, num_pictures, row):
            for x in range(width):
                out[row * width + x] = out[(row - 1) * width + x]
            continue
        for x in range(width):
            total[x] = np.float32(0)
        for k in range(lines):
            pooled_line(pictures, num_pictures, row * lines + k, levels, level)
            for x in range(width):
                for j in range(columns):
                    total[x] += level[x * columns + j]
        for x in range(width):
            if lines == 2 and columns == 2:
                out[row * width + x] = np.uint8((np.int64(total[x]) + 2) >> 2)
            else:
                out[row * width + x] = np.uint8(rounded(product(total[x], scale)))


@kernel
def observe(
    pictures, num_pictures, levels,
    column_start, column_weight, row_start, row_count, row_weight, whole,
    work, changed, out,
):  # fmt: skip
    """Resize one channel of the maximum over frames into `out`, uint8 [height * width].

    `out` contains the previous observation on entry.
    `levels` uint8 [256]: level of each palette index in this channel.
    `changed` bool [lines]: an output row is kept if none of its source lines has changed.
    `work` float32 [3, 160 + width]: scratch; row 0 the line's levels, row 1 its horizontal sums, row 2 the
    accumulated output row.
    """
    stand_alone()
    width = len(column_start)
    height = len(row_start)
    level = work[0]
    sums = work[1]
    total = work[2]
    if whole[0] > 0:
        _observe_whole(
            pictures, num_pictures, levels, whole[0], whole[1], width, height, level, total, changed, out
        )
        return
    summed = -1  # the line that `sums` belongs to
    for row in range(height):
        if not _some(changed, row_start[row], row_count[row]):
            continue
        for k in range(row_count[row]):
            line = row_start[row] + k
            if line != summed:
                if summed < 0 or line != summed + 1 or not as_above(pictures, num_pictures, line):
                    pooled_line(pictures, num_pictures, line, levels, level)
                    _sum_along(level, column_start, column_weight, sums)
                summed = line
            weight = row_weight[row, k]
            if k == 0:
                for x in range(width):
                    total[x] = product(sums[x], weight)
            else:
                for x in range(width):
                    total[x] += product(sums[x], weight)
        for x in range(width):
            value = rounded(total[x])
            out[row * width + x] = np.uint8(min(max(value, np.float32(0)), np.float32(255)))
