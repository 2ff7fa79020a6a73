"""The shape table of `atari/cuda`: the arrays of consoles in GPU memory, and their sizes.

Kernels take arrays in groups, each a NamedTuple. `n` consoles, frames of `lines` lines, W = LASTING_WORDS. An
observed image is the maximum of a step's last two frames (max-pooling).

| group    | array              | shape                            | contents                                |
|----------|--------------------|----------------------------------|-----------------------------------------|
| Game     |                    | per ROM                          | ROM image, rules, power-on state        |
| Consoles | registers          | [W, n] int32                     | persistent words of a row               |
|          | memory             | [n, 256] uint8                   | RAM                                     |
|          | random             | [n, 3, 625] uint32               | ale-py's three generators               |
|          | screens            | [n, 2 * lines * 20 + LIST_WORDS] | both frame buffers, as in `state.py`,   |
|          |                    | uint64                           | and the list of spans to paint          |
| How      |                    |                                  | step settings, action set               |
| Seen     | observations       | [n, stack, frame_bytes] uint8    | newest stacks                           |
|          | final_observations | [n, stack, frame_bytes] uint8    | last stacks of episodes that ended      |
|          | levels             | [n, channels, lines * 20] uint64 | levels of the newest observed image     |
|          | second             | [n] uint8                        | place of the second pooled frame        |
|          | kept               | [n, lines * 20] uint64           | copy of that frame if it is overwritten |
| Outcome  |                    | [n], [n, 3], [n, 4]              | inputs and outputs of a step            |
| Picture  |                    |                                  | level tables, `preprocess.Resize`       |

With RAM observations there are no channels and frames have no lines. A TIA log is per-thread memory and is
not kept between kernels, so every frame is drawn before a kernel ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from ..settings import NUM_SETTINGS
from ..state import LINE_WORDS, MEMORY_BYTES
from ..tia.spans import SPAN_WORDS
from .rows import LASTING_WORDS

# Spans that a console may record before it paints them itself. Games record up to 1,464 a step
# (docs/gpu-internals.md).
MOST_SPANS = 1500
LIST_WORDS = 1 + SPAN_WORDS * MOST_SPANS

Shapes = dict[str, tuple[tuple[int, ...], Any]]

# Where the second pooled frame is: nowhere (black), in the console's other frame buffer, or in `kept`.
BLACK, OTHER, KEPT = 0, 1, 2
# Columns of `counts`: points, frames, place of the step's second-to-last frame (BLACK for none), life lost.
REWARD, FRAMES, THIRD, LIFE_LOST = range(4)


class Game(NamedTuple):
    """Arrays that all consoles of a ROM share."""

    rom: Any
    program: Any
    powered: Any
    powered_memory: Any
    powered_random: Any


class Consoles(NamedTuple):
    """State of consoles that persists between kernels."""

    registers: Any
    memory: Any
    screens: Any
    random: Any


class How(NamedTuple):
    """Settings of a step."""

    settings: Any
    action_set: Any


class Seen(NamedTuple):
    """Observations."""

    observations: Any
    final_observations: Any
    levels: Any
    kept: Any
    second: Any


class Outcome(NamedTuple):
    """Inputs and outputs of a step; `chosen` is the cached start of a new episode."""

    actions: Any
    rewards: Any
    terminated: Any
    truncated: Any
    over: Any
    counts: Any
    counters: Any
    elapsed: Any
    chosen: Any


class Picture(NamedTuple):
    """Weights of pixels (`preprocess.Resize`); `row_weight` is flat [height * taps].

    `levels` uint8 [channels, 256]: see `preprocess.level_tables`.
    """

    levels: Any
    column_start: Any
    column_weight: Any
    row_start: Any
    row_count: Any
    row_weight: Any
    whole: Any


def game_shapes(rom_bytes: int = 4096, rule_words: int = 100) -> Shapes:
    """Shapes of `Game`."""
    return {
        "rom": ((rom_bytes,), np.uint8),
        "program": ((rule_words,), np.int32),
        "powered": ((LASTING_WORDS,), np.int32),
        "powered_memory": ((MEMORY_BYTES,), np.uint8),
        "powered_random": ((625,), np.uint32),
    }


def console_shapes(n: int, lines: int) -> Shapes:
    """Shapes of `Consoles`."""
    return {
        "registers": ((LASTING_WORDS, n), np.int32),
        "memory": ((n, MEMORY_BYTES), np.uint8),
        "screens": ((n, 2 * lines * LINE_WORDS + (LIST_WORDS if lines else 0)), np.uint64),
        "random": ((n, 3, 625), np.uint32),
    }


def how_shapes(actions: int = 18) -> Shapes:
    """Shapes of `How`."""
    return {"settings": ((NUM_SETTINGS,), np.int32), "action_set": ((actions,), np.int64)}


class Size(NamedTuple):
    """Sizes that determine array shapes, together with the number of consoles."""

    lines: int  # of a frame; 0 if nothing is drawn
    channels: int
    stack: int
    frame_bytes: int  # of one image in the stack


def seen_shapes(n: int, size: Size) -> Shapes:
    """Shapes of `Seen`."""
    lines = size.lines
    return {
        "observations": ((n, size.stack, size.frame_bytes), np.uint8),
        "final_observations": ((n, size.stack, size.frame_bytes), np.uint8),
        "levels": ((n, size.channels, lines * LINE_WORDS), np.uint64),
        "kept": ((n, lines * LINE_WORDS), np.uint64),
        "second": ((n,), np.uint8),
    }


def outcome_shapes(n: int) -> Shapes:
    """Shapes of `Outcome`."""
    return {
        "actions": ((n,), np.int64),
        "rewards": ((n,), np.int32),
        "terminated": ((n,), np.bool_),
        "truncated": ((n,), np.bool_),
        "over": ((n,), np.bool_),
        "counts": ((n, 4), np.int32),
        "counters": ((n, 3), np.int32),  # lives, frame number, episode frame number
        "elapsed": ((n,), np.int32),
        "chosen": ((n,), np.int32),
    }


def picture_shapes() -> Shapes:
    """Types of `Picture`; lengths are placeholders, because they depend on the image sizes."""
    words = ((1,), np.int32)
    return {
        "levels": ((1, 256), np.uint8), "column_start": words, "column_weight": ((1, 1), np.float32),
        "row_start": words, "row_count": words, "row_weight": ((1,), np.float32), "whole": words,
    }  # fmt: skip


def numba_type(group: type, shapes: Shapes) -> numba.types.Type:
    """Return the Numba type of a group: a NamedTuple of C-contiguous arrays."""
    arrays = [
        numba.types.Array(numba.from_dtype(np.dtype(dtype)), len(shape), "C")
        for shape, dtype in shapes.values()
    ]
    assert tuple(shapes) == group._fields
    return numba.types.NamedTuple(arrays, group)


def group_types() -> dict[type, numba.types.Type]:
    """Return the Numba types of all groups."""
    shapes = {
        Game: game_shapes(), Consoles: console_shapes(1, 1), How: how_shapes(),
        Seen: seen_shapes(1, Size(1, 1, 1, 1)), Outcome: outcome_shapes(1), Picture: picture_shapes(),
    }  # fmt: skip
    return {group: numba_type(group, table) for group, table in shapes.items()}


def zeros(group: type, shapes: Shapes, threads: Any) -> Any:
    """Return a group of zeroed arrays of these shapes in the memory of `threads`."""
    return group(**{name: threads.zeros(*shape) for name, shape in shapes.items()})


def bytes_of(shapes: Shapes) -> int:
    """Return the total size of arrays of these shapes in bytes."""
    return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes.values())


def environment_bytes(n: int, size: Size) -> int:
    """Return the total bytes of n consoles with preprocessing."""
    return (
        bytes_of(console_shapes(n, size.lines)) + bytes_of(seen_shapes(n, size)) + bytes_of(outcome_shapes(n))
    )


def arcade_bytes(n: int, lines: int) -> int:
    """Return the total bytes of n consoles of an `Arcade`, with rewards, actions and `screen`."""
    return bytes_of(console_shapes(n, lines)) + (4 + 8 + 8 * LINE_WORDS * lines) * n


def step_bytes(size: Size) -> int:
    """Return the minimum memory traffic of a console's step: every array once per kernel that uses it."""
    console = 2 * (4 * LASTING_WORDS + MEMORY_BYTES)
    # Two frames drawn, two frames read per channel, levels written.
    pictures = 8 * LINE_WORDS * size.lines * (2 + 2 * size.channels + size.channels)
    return console + pictures + size.frame_bytes * (2 * size.stack - 1)
