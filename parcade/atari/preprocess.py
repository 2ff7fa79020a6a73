"""From pictures to observations: grey or a colour, maximum of two frames, resized by area averaging.

Equal byte for byte to ale-py's `AtariVectorEnv`, which resizes with OpenCV's INTER_AREA: float32 weights, each source
line first summed along the line, then lines accumulated with their weight, rounded half to even. Lines that equal the
one above in every picture are converted and summed only once, rows whose lines are all as they were stay.
"""

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .jit import inlined, kernel, product, stand_alone
from .state import LINE_WORDS

EVERY_BYTE = np.uint64(0x0101010101010101)
TO_WHOLE = np.float32(1.5 * 2**23)  # adding it leaves no bits below 1


def grey_table(pal: bool) -> np.ndarray:
    """Grey level of each palette index, uint8 [256], as ale-py's getScreenGrayscale.

    Odd indices appear only on PAL consoles; their grey is the blue byte of the next entry's colour, as in ale-py.
    """
    return np.array(_palette()["pal" if pal else "ntsc"]["grey"], np.uint8)


def rgb_table(pal: bool) -> np.ndarray:
    """Colour of each palette index, uint8 [256, 3], as ale-py's getScreenRGB."""
    return np.array(_palette()["pal" if pal else "ntsc"]["rgb"], np.uint8)


def level_tables(obs_type: str, pal: bool) -> np.ndarray:
    """What each palette index shows in every channel of a pixel, uint8 [channels, 256]: 1 channel of grey, 3 of rgb, 0 of ram."""
    if obs_type == "ram":
        return np.zeros((0, 256), np.uint8)
    return np.ascontiguousarray(rgb_table(pal).T) if obs_type == "rgb" else grey_table(pal)[None]


def _palette() -> dict:
    return json.loads(Path(__file__).with_name("palette.json").read_text())


class Resize(NamedTuple):
    """Weights of an area resize: output i sums weight[i, k] * source[start[i] + k] for k < count[i]."""

    column_start: np.ndarray  # int32 [width]
    column_weight: np.ndarray  # float32 [4, width], zero where unused
    row_start: np.ndarray  # int32 [height]
    row_count: np.ndarray  # int32 [height]
    row_weight: np.ndarray  # float32 [height, taps]
    whole: (
        np.ndarray
    )  # int32 [2]: source lines and columns to an output pixel if both are whole numbers, else 0


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
    """Weights from [source_height, 160] to [height, width]."""
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
    """A float32 of 0 to 2**22, rounded half to even. np.rint does the same, but not on a GPU."""
    return (x + TO_WHOLE) - TO_WHOLE


@kernel
def pooled_line(pictures, num_pictures, line, levels, out):
    """Levels of a line in one channel, the maximum over the first `num_pictures` rows of `pictures` [3, height * 20] uint64."""
    stand_alone()
    at = line * LINE_WORDS
    first = pictures[0, at : at + LINE_WORDS]
    second = pictures[1 if num_pictures > 1 else 0, at : at + LINE_WORDS]
    third = pictures[2 if num_pictures > 2 else 0, at : at + LINE_WORDS]
    for word in range(LINE_WORDS):
        a, b, c = first[word], second[word], third[word]
        if a == b and a == c and a == (a & np.uint64(255)) * EVERY_BYTE:  # most of a line is of one colour
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
    """Whether a line equals the one above it in every picture."""
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
    """Weighted sums [width] along a line; past the line stand zeros."""
    stand_alone()
    width = len(column_start)
    taps = column_weight.shape[0]
    if taps == 3:  # 84 columns, what everybody uses, in one pass
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
    """Whether one of `count` lines from `first` on changed."""
    for line in range(first, first + count):
        if changed[line]:
            return True
    return False


@kernel
def _observe_whole(pictures, num_pictures, levels, lines, columns, width, height, level, total, changed, out):
    """Whole-number ratios: OpenCV averages blocks of pixels, two by two in integers with halves rounded up."""
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
    pictures,
    num_pictures,
    levels,
    column_start,
    column_weight,
    row_start,
    row_count,
    row_weight,
    whole,
    work,
    changed,
    out,
):
    """Resize the maximum of pictures into `out` [height * width] uint8, which holds the observation before: one channel of it.

    `levels` uint8 [256]: what each palette index shows in this channel.
    `changed` bool [lines]: rows that show none of these lines stay as they are.
    `work` float32 [3, 160 + width]: scratch; row 0 the line's levels, row 1 its sums along the line, row 2 the accumulated row.
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
    summed = -1  # the line `sums` belongs to
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
