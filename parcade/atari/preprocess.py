"""Preprocessing of frames: conversion to grey or RGB, maximum over two frames, resize by area averaging.

The result is byte-identical to ale-py's `AtariVectorEnv`, which resizes with OpenCV's INTER_AREA: with
float32 weights, it sums each source line horizontally, accumulates the weighted lines, and rounds half to
even. A line equal to the one above it in every frame is not converted and summed again. Output rows whose
source lines have not changed are kept.
"""

import functools
import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .compiling.jit import inlined, kernel, product, separate, stand_alone
from .primitives.simd import bit_length, column_sums, has_byte_lookup, lowest_bit, pool_words
from .state import LINE_WORDS

WORK_COLUMNS = 160  # columns of the scratch of `observe`, float32 [3, WORK_COLUMNS]
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


def grey_frames(indices: np.ndarray, pal: bool) -> np.ndarray:
    """Return frames of palette indices, uint8 [n, height, 160], in grey, as ale-py's getScreenGrayscale."""
    frames = np.empty(indices.shape, np.uint8)
    _to_grey(_as_words(indices), _words_of_table(pal, False), _as_words(frames))
    return frames


def rgb_frames(indices: np.ndarray, pal: bool) -> np.ndarray:
    """Return frames of palette indices in colour, uint8 [n, height, 160, 3], as ale-py's getScreenRGB."""
    frames = np.empty((*indices.shape, 3), np.uint8)
    _to_rgb(_as_words(indices), _words_of_table(pal, True), _as_words(frames))
    return frames


@functools.cache
def _words_of_table(pal: bool, in_colour: bool) -> np.ndarray:
    """Return the grey level or, red in the lowest byte, the colour of each palette index, uint64 [256]."""
    if not in_colour:
        return grey_table(pal).astype(np.uint64)
    return rgb_table(pal) @ np.array([1, 1 << 8, 1 << 16], np.uint64)


def _as_words(pixels: np.ndarray) -> np.ndarray:
    return pixels.reshape(-1).view(np.uint64)


@inlined
def _looked_up(table, word, pixel):
    """Return the table's entry for one of a word's 8 palette indices."""
    return table[(word >> np.uint64(8 * pixel)) & np.uint64(255)]


@separate("void(uint64[::1], uint64[::1], uint64[::1])")
def _to_grey(words, greys, words_out):
    stand_alone()
    for w in range(len(words)):
        word = words[w]
        if word == (word & np.uint64(255)) * EVERY_BYTE:  # background: nearly every word
            words_out[w] = _looked_up(greys, word, 0) * EVERY_BYTE
            continue
        eight = np.uint64(0)
        for pixel in range(8):
            eight |= _looked_up(greys, word, pixel) << np.uint64(8 * pixel)
        words_out[w] = eight


@separate("void(uint64[::1], uint64[::1], uint64[::1])")
def _to_rgb(words, colours, words_out):
    """Replace 8 indices of a byte by 8 colours of 3 bytes, which take 3 words."""
    stand_alone()
    for w in range(len(words)):
        word = words[w]
        a = _looked_up(colours, word, 0)
        b = c = d = e = f = g = h = a
        if word != (word & np.uint64(255)) * EVERY_BYTE:
            b, c, d = _looked_up(colours, word, 1), _looked_up(colours, word, 2), _looked_up(colours, word, 3)
            e, f, g = _looked_up(colours, word, 4), _looked_up(colours, word, 5), _looked_up(colours, word, 6)
            h = _looked_up(colours, word, 7)
        words_out[3 * w] = _joined(a, 0) | _joined(b, 24) | _joined(c, 48)
        words_out[3 * w + 1] = _joined(c, -16) | _joined(d, 8) | _joined(e, 32) | _joined(f, 56)
        words_out[3 * w + 2] = _joined(f, -8) | _joined(g, 16) | _joined(h, 40)


@inlined
def _joined(colour, bits):
    """Return a colour shifted to its place in a word, `bits` to the left."""
    return colour << np.uint64(bits) if bits >= 0 else colour >> np.uint64(-bits)


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


def _sums_for(columns):
    """Return a function that computes the weighted sums of this number of columns."""
    starts, _, weights = _area_weights(160, columns)
    return column_sums(starts, weights.shape[1])


_sums_of_84, _sums_of_42 = _sums_for(84), _sums_for(42)


@inlined
def rounded(x):
    """Round a float32 of 0 to 2**22 half to even. np.rint does the same, but not on a GPU."""
    return (x + TO_WHOLE) - TO_WHOLE


@inlined
def _level(levels, word, k):
    return levels[np.uint32((word >> np.uint64(8 * k)) & np.uint64(255))]


@inlined
def _pool_pixels(first, second, third, levels, out):
    """Convert words of three frames pixel by pixel; `out` uint8 [8 * words]."""
    pooled = out.view(np.uint64)
    for word in range(len(first)):
        a, b, c = first[word], second[word], third[word]
        pixels = out[8 * word :]
        if a == b and a == c and a == (a & np.uint64(255)) * EVERY_BYTE:  # one colour, the common case
            pooled[word] = np.uint64(levels[np.uint32(a & np.uint64(255))]) * EVERY_BYTE
        elif a == b and a == c:
            for k in range(8):
                pixels[k] = _level(levels, a, k)
        else:
            for k in range(8):
                pixels[k] = max(max(_level(levels, a, k), _level(levels, b, k)), _level(levels, c, k))


@kernel
def pooled_line(pictures, num_pictures, line, start, stop, levels, out):
    """Convert words `start` .. `stop` - 1 of a line to levels of one channel, pooled over frames.

    A level is the maximum over the first `num_pictures` rows of `pictures`, uint64 [3, height * 20].
    `out` uint8 [160]; other words may be written, too.
    """
    stand_alone()
    at = line * LINE_WORDS
    first = pictures[0, at:]
    second = pictures[1 if num_pictures > 1 else 0, at:]
    third = pictures[2 if num_pictures > 2 else 0, at:]
    if has_byte_lookup():
        for word in (0, 8, LINE_WORDS - 8):  # a line is two and a half times 64 pixels; the last two overlap
            if start < word + 8 and word < stop:
                pool_words((first, second, third), levels, out, word)
    else:
        pixels = out[8 * start : 8 * stop]
        _pool_pixels(first[start:stop], second[start:stop], third[start:stop], levels, pixels)


@kernel
def as_above(pictures, num_pictures, line, start, stop):
    """Return whether words `start` .. `stop` - 1 of a line equal those above them in every frame."""
    at = line * LINE_WORDS
    changed = np.uint64(0)
    for p in range(num_pictures):
        here = pictures[p, at + start : at + stop]
        above = pictures[p, at - LINE_WORDS + start : at - LINE_WORDS + stop]
        for word in range(len(here)):
            changed |= here[word] ^ above[word]
    return changed == np.uint64(0)


@kernel
def _sum_along(level, column_start, column_weight, first, last, sums):
    """Compute the weighted sums of columns `first` .. `last` - 1, or of all, along a line of levels."""
    stand_alone()
    if len(column_start) == 84:
        _sums_of_84(level, column_weight, sums)
        return
    if len(column_start) == 42:
        _sums_of_42(level, column_weight, sums)
        return
    starts, sums = column_start[first:last], sums[first:last]
    for tap in range(column_weight.shape[0]):
        weights, shifted = column_weight[tap, first:], level[tap:]
        for x in range(len(sums)):
            term = product(np.float32(shifted[np.uint32(starts[x])]), weights[x])
            sums[x] = term if tap == 0 else sums[x] + term


@inlined
def _add_weighted(total, sums, weight, adds):
    """Add a line's weighted sums to those of its output row, or begin the row with them."""
    if adds:
        for x in range(len(total)):
            total[x] += product(sums[x], weight)
    else:
        for x in range(len(total)):
            total[x] = product(sums[x], weight)


@inlined
def _store_rounded(total, pixels, out, at, channels):
    """Round the sums of a row's pixels to bytes, and write them from pixel `at` of `out` on.

    `pixels` uint8: scratch. With it, rounding is contiguous for colours too.
    """
    for x in range(len(total)):
        pixels[x] = np.uint8(min(max(rounded(total[x]), np.float32(0)), np.float32(255)))
    if channels == 1:
        row_out = out[at : at + len(total)]
        for x in range(len(total)):
            row_out[x] = pixels[x]
    else:
        for x in range(len(total)):
            out[(at + x) * channels] = pixels[x]


@inlined
def _changed_words(changed, line, count):
    """Return a mask of the words that have changed in any of `count` lines from `line`."""
    mask = np.int64(0)
    for k in range(count):
        mask |= np.int64(changed[line + k])
    return mask


@kernel
def _observe_whole(
    pictures, num_pictures, levels, lines, columns, width, height, level, total, changed, channels, out
):
    """Resize by integer ratios: OpenCV averages blocks of pixels. For 2x2 blocks, it rounds halves up."""
    stand_alone()
    scale = np.float32(1.0) / np.float32(lines * columns)
    for row in range(height):
        if _changed_words(changed, row * lines, lines) == 0:
            continue
        if lines == 1 and row > 0 and as_above(pictures, num_pictures, row, 0, LINE_WORDS):
            for x in range(width):
                out[(row * width + x) * channels] = out[((row - 1) * width + x) * channels]
            continue
        for x in range(width):
            total[x] = np.float32(0)
        for k in range(lines):
            pooled_line(pictures, num_pictures, row * lines + k, 0, LINE_WORDS, levels, level)
            for x in range(width):
                for j in range(columns):
                    total[x] += np.float32(level[x * columns + j])
        for x in range(width):
            if lines == 2 and columns == 2:
                out[(row * width + x) * channels] = np.uint8((np.int64(total[x]) + 2) >> 2)
            else:
                out[(row * width + x) * channels] = np.uint8(rounded(product(total[x], scale)))


@kernel
def observe(
    pictures, num_pictures, levels,
    column_start, column_weight, row_start, row_count, row_weight, whole,
    work, changed, channels, out,
):  # fmt: skip
    """Resize one channel of the maximum over frames into every `channels`-th byte of `out`.

    `out` uint8 [height * width * channels], or from a later channel on; it contains the previous observation.
    `levels` uint8 [256]: level of each palette index in this channel.
    `changed` int32 [lines]: a mask of the words that have changed in each line, bit 0 the leftmost.
    `work` float32 [3, WORK_COLUMNS]: scratch; row 0 the line's levels as bytes, then the output row's, row 1
    the line's horizontal sums, row 2 the accumulated output row.
    """
    stand_alone()
    width = len(column_start)
    height = len(row_start)
    level = work[0].view(np.uint8)
    pixels = level[WORK_COLUMNS:]
    sums = work[1]
    total = work[2]
    if whole[0] > 0:
        _observe_whole(
            pictures, num_pictures, levels, whole[0], whole[1], width, height,
            level, total, changed, channels, out,
        )  # fmt: skip
        return
    taps = column_weight.shape[0]
    summed = np.int64(-1)  # the line that `sums` belongs to, in columns `summed_first` .. `summed_last` - 1
    summed_first, summed_last = np.int64(0), np.int64(0)
    for row in range(height):
        mask = _changed_words(changed, row_start[row], row_count[row])
        if mask == 0:
            continue
        # The columns that the changed words contribute to, and the words that contribute to these columns.
        first = lowest_bit(mask) * width // LINE_WORDS
        last = (bit_length(mask) * width + LINE_WORDS - 1) // LINE_WORDS
        start = np.int64(column_start[first]) // 8
        stop = min((np.int64(column_start[last - 1]) + taps - 1) // 8 + 1, LINE_WORDS)
        covers = summed_first <= first and last <= summed_last
        for k in range(row_count[row]):
            line = np.int64(row_start[row]) + k
            if line != summed or not covers:
                is_next = covers and line == summed + 1
                if not (is_next and as_above(pictures, num_pictures, line, start, stop)):
                    pooled_line(pictures, num_pictures, line, start, stop, levels, level)
                    _sum_along(level, column_start, column_weight, first, last, sums)
                summed, summed_first, summed_last, covers = line, first, last, True
            _add_weighted(total[first:last], sums[first:last], row_weight[row, k], k > 0)
        _store_rounded(total[first:last], pixels, out, row * width + first, channels)
