"""The arrays of consoles in a GPU's memory: the shape table of `atari/cuda`, and what fits.

Kernels take arrays in groups, each a NamedTuple. `n` consoles, pictures of `lines` lines, W = LASTING_WORDS:

| group, array             | shape               | holds                                                                     |
|--------------------------|---------------------|---------------------------------------------------------------------------|
| Game                     | of a ROM            | image, rules, and a console after power-on                                |
| Consoles: registers      | [W, n] int32        | the lasting words of a console's row                                      |
| memory, random           | [n, 256], [n, 3, 625] | RAM; ale-py's three generators                                          |
| screens                  | [n, 2 * lines * 20] uint64 | both pictures, as in `state.py`                                    |
| How                      | settings            | of a step, and the actions that an agent chooses from                     |
| Seen: observations, final_observations | [n, stack, bytes of a frame] uint8 | the newest; the last ones of an episode       |
| levels                   | [n, channels, lines * 20] uint64 | levels of the newest frame, the maximum of its pictures      |
| second, kept             | [n] uint8, [n, lines * 20] uint64 | which picture is the frame's second; one that is overwritten |
| Outcome                  | [n], [n, 3 or 4]    | what a step takes and gives                                               |
| Picture                  | weights             | of grey levels and of resizing, `preprocess.Resize`                       |

Of RAM as observation there are no channels, and pictures have no lines. Logs are a thread's own and are lost between kernels, so every
frame is on its picture before a kernel ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from ..state import LINE_WORDS, MEMORY_BYTES
from .rows import LASTING_WORDS

Shapes = dict[str, tuple[tuple[int, ...], Any]]

# Where the second picture of a frame is: nowhere (black), the console's other picture, or `kept`.
BLACK, OTHER, KEPT = 0, 1, 2
# Columns of `counts`: points, frames, the third picture of a step (as above, BLACK for none), whether a life was lost.
REWARD, FRAMES, THIRD, LIFE_LOST = range(4)
# Words of `settings`.
FRAME_SKIP, FRAME_LIMIT, MAX_POOL, CLIP, LIFE_LOSS, EPISODIC_LIFE, USE_FIRE, NOOP_MAX, NUM_SETTINGS = range(9)


class Game(NamedTuple):
    """What all consoles of a ROM share."""

    rom: Any
    program: Any
    powered: Any
    powered_memory: Any
    powered_random: Any


class Consoles(NamedTuple):
    """Everything of a console that lasts."""

    registers: Any
    memory: Any
    screens: Any
    random: Any


class How(NamedTuple):
    """How steps are played."""

    settings: Any
    action_set: Any


class Seen(NamedTuple):
    """What has been observed."""

    observations: Any
    final_observations: Any
    levels: Any
    kept: Any
    second: Any


class Outcome(NamedTuple):
    """What a step takes and gives; `chosen` is the cached start of an episode that began."""

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
    """From palette indices to pixels of an observation; `levels` uint8 [channels, 256], of `preprocess.level_tables`."""

    levels: Any
    column_start: Any
    column_weight: Any
    row_start: Any
    row_count: Any
    row_weight: Any
    whole: Any


def game_shapes(rom_bytes: int = 4096, rule_words: int = 100) -> Shapes:
    """Arrays of a ROM."""
    return {
        "rom": ((rom_bytes,), np.uint8),
        "program": ((rule_words,), np.int32),
        "powered": ((LASTING_WORDS,), np.int32),
        "powered_memory": ((MEMORY_BYTES,), np.uint8),
        "powered_random": ((625,), np.uint32),
    }


def console_shapes(n: int, lines: int) -> Shapes:
    """What lasts of a console."""
    return {
        "registers": ((LASTING_WORDS, n), np.int32),
        "memory": ((n, MEMORY_BYTES), np.uint8),
        "screens": ((n, 2 * lines * LINE_WORDS), np.uint64),
        "random": ((n, 3, 625), np.uint32),
    }


def how_shapes(actions: int = 18) -> Shapes:
    """Settings."""
    return {"settings": ((NUM_SETTINGS,), np.int32), "action_set": ((actions,), np.int64)}


class Size(NamedTuple):
    """What decides the sizes of arrays besides the number of consoles."""

    lines: int  # of a picture, 0 where nothing is drawn
    channels: int
    stack: int
    frame_bytes: int  # of an observation


def seen_shapes(n: int, size: Size) -> Shapes:
    """Observations."""
    lines = size.lines
    return {
        "observations": ((n, size.stack, size.frame_bytes), np.uint8),
        "final_observations": ((n, size.stack, size.frame_bytes), np.uint8),
        "levels": ((n, size.channels, lines * LINE_WORDS), np.uint64),
        "kept": ((n, lines * LINE_WORDS), np.uint64),
        "second": ((n,), np.uint8),
    }


def outcome_shapes(n: int) -> Shapes:
    """What goes in and comes out of a step."""
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
    """Weights; their lengths depend on sizes, their types do not."""
    words, weights = ((1,), np.int32), ((1, 1), np.float32)
    return {
        "levels": ((1, 256), np.uint8), "column_start": words, "column_weight": weights, "row_start": words, "row_count": words,
        "row_weight": weights, "whole": words,
    }  # fmt: skip


def numba_type(group: type, shapes: Shapes) -> numba.types.Type:
    """The type of a group as kernels take it: C-contiguous arrays."""
    arrays = [
        numba.types.Array(numba.from_dtype(np.dtype(dtype)), len(shape), "C")
        for shape, dtype in shapes.values()
    ]
    assert tuple(shapes) == group._fields
    return numba.types.NamedTuple(arrays, group)


def group_types() -> dict[type, numba.types.Type]:
    """The types of all groups."""
    shapes = {
        Game: game_shapes(), Consoles: console_shapes(1, 1), How: how_shapes(), Seen: seen_shapes(1, Size(1, 1, 1, 1)), Outcome: outcome_shapes(1),
        Picture: picture_shapes(),
    }  # fmt: skip
    return {group: numba_type(group, table) for group, table in shapes.items()}


def zeros(group: type, shapes: Shapes, threads: Any) -> Any:
    """A group of arrays of these shapes in the memory of the device whose `threads` are given."""
    return group(**{name: threads.zeros(*shape) for name, shape in shapes.items()})


def bytes_of(shapes: Shapes) -> int:
    """Bytes of arrays of these shapes."""
    return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes.values())


def environment_bytes(n: int, size: Size) -> int:
    """All bytes of n consoles with preprocessing."""
    return (
        bytes_of(console_shapes(n, size.lines)) + bytes_of(seen_shapes(n, size)) + bytes_of(outcome_shapes(n))
    )


def arcade_bytes(n: int, lines: int) -> int:
    """All bytes of n consoles of an `Arcade`."""
    return bytes_of(console_shapes(n, lines)) + 4 * n


def step_bytes(size: Size) -> int:
    """Bytes that a console's step must read and write at least: every array once for each kernel that uses it."""
    console = 2 * (4 * LASTING_WORDS + MEMORY_BYTES)
    pictures = (
        8 * LINE_WORDS * size.lines * (2 + 2 * size.channels + size.channels)
    )  # two drawn, two read, levels written
    return console + pictures + size.frame_bytes * (2 * size.stack - 1)
