"""The arrays of an environment's consoles in a GPU's memory: names, shapes, types, and with them what fits.

| array                       | shape                      | kept                                                                     |
|-----------------------------|----------------------------|--------------------------------------------------------------------------|
| registers, memory           | [W, n], [n, 256]           | the console, W = LASTING_WORDS                                           |
| past                        | [PAST_WORDS, n]            | how its last two frames began (`history.py`)                             |
| whole, slot_of, ...         | [n]                        | what is known of its pictures                                            |
| seeds, draws                | [3, n]                     | of ale-py's three generators                                             |
| sticky                      | [n, 625]                   | the generator of sticky actions, where actions are sticky                |
| actions, rewards, ...       | [n], [n, 3 or 4]           | what a step takes and gives                                              |
| observations                | [n, stack, rows * columns] | the newest and the final ones                                            |
| screens, captured           | [slots, 2 or 3 pictures]   | pictures of the few consoles that need older ones                        |
| frames, pictures, decisions | [wave, ...]                | scratch of a wave: frames to be drawn, drawn pictures, repeated actions  |
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..state import LINE_WORDS, MEMORY_BYTES, TIA_WORDS
from .history import PAST_WORDS
from .pictures import FRAME_WORDS, GROUP
from .rows import LASTING_WORDS

WAVE = 32_768  # consoles stepped at once: about as many threads as the largest GPU has in flight
ALL_SLOTS = 4096  # up to so many consoles everyone has a slot
SLOT_SHARE = 16  # above, one of so many

Shapes = dict[str, tuple[tuple[int, ...], Any]]


def num_slots(num_consoles: int, *, everyone: bool = False) -> int:
    """Picture slots of so many consoles, the same number for every group of 256."""
    groups = -(-num_consoles // GROUP)
    if everyone or num_consoles <= ALL_SLOTS:
        return groups * min(num_consoles, GROUP)
    return groups * -(-max(ALL_SLOTS, num_consoles // SLOT_SHARE) // groups)


def wave_of(num_consoles: int) -> int:
    """Consoles in a wave."""
    return min(num_consoles, WAVE)


def console_shapes(n: int) -> Shapes:
    """What lasts of a console besides its observations and the generator of sticky actions."""
    return {
        "registers": ((LASTING_WORDS, n), np.int32),
        "memory": ((n, MEMORY_BYTES), np.uint8),
        "past": ((PAST_WORDS, n), np.int32),
        "seeds": ((3, n), np.uint32),
        "draws": ((3, n), np.int32),
        "whole": ((n,), np.uint8),
        "slot_of": ((n,), np.int32),
        "wanted": ((n,), np.bool_),
        "shown": ((n,), np.uint8),
        "in_slot": ((n,), np.bool_),
        "chosen": ((n,), np.int32),
        "incomplete": ((n,), np.int32),
        "elapsed": ((n,), np.int32),
        "actions": ((n,), np.int64),
        "counts": ((n, 4), np.int32),
        "counters": ((n, 3), np.int32),
        "rewards": ((n,), np.int32),
        "terminated": ((n,), np.bool_),
        "truncated": ((n,), np.bool_),
        "over": ((n,), np.bool_),
    }


def sticky_shapes(n: int, *, is_sticky: bool) -> Shapes:
    """The generator of sticky actions; a row that is not used where there are none."""
    return {"sticky": ((n if is_sticky else 1, 625), np.uint32)}


def seen_shapes(n: int, stack: int, rows: int, columns: int) -> Shapes:
    """Observations."""
    return {
        "observations": ((n, stack, rows * columns), np.uint8),
        "final_observations": ((n, stack, rows * columns), np.uint8),
    }


def slot_shapes(slots: int, height: int) -> Shapes:
    """Pictures in slots."""
    return {
        "screens": ((slots, 2 * height * LINE_WORDS), np.uint64),
        "captured": ((slots, 3, height * LINE_WORDS), np.uint64),
        "owner": ((slots,), np.int32),
        "slot_kind": ((slots,), np.uint8),
    }


def wave_shapes(wave: int, height: int) -> Shapes:
    """Scratch of a wave."""
    return {
        "decisions": ((wave, 2), np.int32),
        "frames": ((wave, 2, FRAME_WORDS), np.int32),
        "pictures": ((wave, 2, height * LINE_WORDS), np.uint64),
    }


def bytes_of(shapes: Shapes) -> int:
    """Bytes of arrays of these shapes."""
    return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes.values())


def environment_bytes(n: int, height: int, stack: int, rows: int, columns: int, *, is_sticky: bool = False, everyone: bool = False) -> int:
    """All bytes of n consoles with preprocessing; `everyone` has a slot."""
    return (
        bytes_of(console_shapes(n))
        + bytes_of(sticky_shapes(n, is_sticky=is_sticky))
        + bytes_of(seen_shapes(n, stack, rows, columns))
        + bytes_of(slot_shapes(num_slots(n, everyone=everyone), height))
        + bytes_of(wave_shapes(wave_of(n), height))
    )


def step_bytes(height: int, stack: int, pixels: int, log_entries: float) -> int:
    """Bytes that a console's step must read and write at least: every array once for each kernel that uses it.

    `log_entries` of a frame; observations of `pixels`.
    """
    console = 2 * (4 * LASTING_WORDS + MEMORY_BYTES) + 4 * PAST_WORDS
    frames = 2 * 2 * 4 * (TIA_WORDS + round(log_entries))
    picture = 8 * LINE_WORDS * height
    pictures = 2 * 2 * picture + 2 * picture  # drawn and read, two of them; grey levels once more
    return console + frames + pictures + pixels * (2 * stack - 1)


def arcade_shapes(n: int, height: int) -> Shapes:
    """The arrays of an `Arcade`, whose consoles keep both pictures."""
    return {
        "registers": ((LASTING_WORDS, n), np.int32),
        "memory": ((n, MEMORY_BYTES), np.uint8),
        "pictures": ((n, 2 * height * LINE_WORDS), np.uint64),
        "random": ((n, 3, 625), np.uint32),
        "rewards": ((n,), np.int32),
    }
