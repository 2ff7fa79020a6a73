"""Vector instructions against plain Python, and observations of which only a part is computed again."""

import os
import subprocess
import sys

import llvmlite.binding
import numba
import numpy as np
import pytest

from parcade.atari import preprocess
from parcade.atari.primitives import simd
from parcade.atari.state import LINE_WORDS

LINES = 210
ZERO_TO_63 = np.arange(64, dtype=np.uint64)


def random_words(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.integers(0, 2**64, shape, dtype=np.uint64)


@numba.njit
def differing(a, b):
    return simd.differing_words(a, b)


@numba.njit
def bits_of(mask):
    return simd.lowest_bit(mask), simd.bit_length(mask)


@pytest.mark.quick
def test_the_words_that_differ_are_bits_of_a_mask():
    random = np.random.default_rng(0)
    line = random_words(random, LINE_WORDS + 1)
    assert differing(line, line.copy()) == 0
    for word in range(LINE_WORDS):
        other = line.copy()
        other[word] ^= np.uint64(1) << np.uint64(random.integers(64))
        assert differing(line, other) == 1 << word
    other = line.copy()
    other[LINE_WORDS] ^= np.uint64(1)
    assert differing(line, other) == 0, "the next line is not looked at"
    assert differing(line, ~line) == simd.EVERY_WORD


@pytest.mark.quick
def test_bits_of_masks():
    for low, high in ((0, 0), (3, 19), (19, 19), (0, 62)):
        assert bits_of(1 << low | 1 << high) == (low, high + 1)


@pytest.mark.quick
@pytest.mark.parametrize("bits_are_conditions", [simd.BITS_ARE_CONDITIONS, False])
def test_pixels_inside_get_the_colour_of_the_last_mask_that_has_them(bits_are_conditions, monkeypatch):
    monkeypatch.setattr(simd, "BITS_ARE_CONDITIONS", bits_are_conditions)

    @numba.njit
    def blended(pixels, word, inside, background, masks, colours):
        simd.blend(pixels, word, inside, background, masks, colours)

    random = np.random.default_rng(1)
    for _ in range(50):
        before = random_words(random, 12)
        inside, background, *masks = random_words(random, 6)
        colours = tuple(random_words(random, 4))
        expected = before.copy()
        row = expected[2:10].view(np.uint8)
        has = [(mask >> ZERO_TO_63) & np.uint64(1) == 1 for mask in (inside, *masks)]
        drawn = np.full(64, np.uint8(int(background) & 255))
        for mask, colour in zip(has[1:], colours, strict=True):
            drawn[mask] = int(colour) & 255
        row[has[0]] = drawn[has[0]]
        blended(before, 2, inside, background, tuple(masks), colours)
        np.testing.assert_array_equal(before, expected)


@numba.njit
def observed(pictures, num_pictures, levels, sizes, work, changed, out):
    starts, weights, row_start, row_count, row_weight, whole = sizes
    preprocess.observe(
        pictures, num_pictures, levels, starts, weights, row_start, row_count, row_weight, whole,
        work, changed, 1, out,
    )  # fmt: skip


# 42 and 84 columns have code of their own; 80x105 and 160x210 are resized by whole numbers.
@pytest.mark.parametrize("shape", [(84, 84), (42, 42), (84, 42), (50, 43), (105, 80), (210, 160)])
@pytest.mark.parametrize("num_pictures", [1, 3])
def test_a_part_computed_again_equals_the_whole_computed_again(shape, num_pictures):
    random = np.random.default_rng(2)
    sizes = tuple(preprocess.resize_to(LINES, *shape))
    levels = preprocess.grey_table(False)
    work = np.zeros((3, preprocess.WORK_COLUMNS), np.float32)
    pictures = np.repeat(random_words(random, 3, LINES, 1), LINE_WORDS, axis=2)  # lines of one pattern
    pictures[:, 60:90] = pictures[:, 59:60]
    kept = np.zeros(shape[0] * shape[1], np.uint8)
    changed = np.full(LINES, simd.EVERY_WORD, np.int32)
    for _ in range(30):
        observed(pictures.reshape(3, -1), num_pictures, levels, sizes, work, changed, kept)
        fresh = np.zeros_like(kept)
        every = np.full(LINES, simd.EVERY_WORD, np.int32)
        work[:] = random.random(work.shape, np.float32)  # nothing is carried over in scratch
        observed(pictures.reshape(3, -1), num_pictures, levels, sizes, work, every, fresh)
        np.testing.assert_array_equal(kept, fresh)
        before = pictures.copy()
        for _ in range(random.integers(1, 12)):
            line, word = random.integers(LINES), random.integers(LINE_WORDS)
            lines, words = (
                slice(line, line + random.integers(1, 9)),
                slice(word, word + random.integers(1, 4)),
            )
            pictures[random.integers(3), lines, words] = random_words(random, 1)
        changed[:] = ((pictures != before).any(0) << np.arange(LINE_WORDS)).sum(1)
    assert (kept != 0).any()


POOLING = """
import sys, numba, numpy as np
from parcade.atari import preprocess
from parcade.atari.primitives import simd

@numba.njit
def pool(pictures, num_pictures, line, start, stop, levels, out):
    preprocess.pooled_line(pictures, num_pictures, line, start, stop, levels, out)

@numba.njit
def looks_up():
    return simd.has_byte_lookup()

random = np.random.default_rng(4)
for pal in (False, True):
    levels = preprocess.grey_table(pal)
    for num_pictures in (1, 2, 3):
        for start, stop in ((0, 20), (0, 1), (7, 9), (11, 20), (19, 20)):
            pixels = random.integers(0, 256, (3, 5, 160)).astype(np.uint8)
            pixels[:, :, 40:80] = pixels[:1, :, 40:80]
            pixels[:, :, 80:120] = 26
            out = np.zeros(640, np.uint8)
            pool(pixels.view(np.uint64).reshape(3, -1), num_pictures, 2, start, stop, levels, out)
            expected = levels[pixels[:num_pictures, 2]].max(0)
            part = slice(8 * start, 8 * stop)
            assert (out[part] == expected[part]).all() and not out[160:].any()
print(looks_up())
"""


# A CPU with AVX2 but without AVX-512, and this one.
@pytest.mark.parametrize("cpu", [{"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2"}, {}])
def test_levels_of_a_line_are_the_largest_of_all_frames(cpu):
    script = [sys.executable, "-c", POOLING]
    done = subprocess.run(script, env=os.environ | cpu, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    has_lookup = not cpu and llvmlite.binding.get_host_cpu_features().get("avx512vbmi", False)
    assert done.stdout.split() == [str(has_lookup)]


@pytest.mark.quick
@pytest.mark.parametrize("columns", [42, 84])
def test_sums_of_columns_add_from_left_to_right(columns):
    random = np.random.default_rng(3)
    resize = preprocess.resize_to(LINES, columns, columns)
    level = random.integers(0, 256, 224).astype(np.uint8)
    weight, sums = resize.column_weight, np.zeros(columns, np.float32)
    add = {42: preprocess._sums_of_42, 84: preprocess._sums_of_84}[columns]

    @numba.njit
    def add_up(level, weight, sums):
        add(level, weight, sums)

    add_up(level, weight, sums)
    for x, start in enumerate(resize.column_start):
        total = np.float32(0)
        for tap in range(len(weight)):
            total = np.float32(total + np.float32(weight[tap, x] * np.float32(level[start + tap])))
        assert sums[x] == total
