"""Thread bodies of an `Arcade` on a GPU.

| body            | one thread per   | does                                                                |
|-----------------|------------------|---------------------------------------------------------------------|
| `power_thread`  | console          | ale-py's loadROM: power-on state, seeds, first reset                |
| `act_thread`    | console          | one raw video frame; records its spans                              |
| `reset_thread`  | console          | reset_game only                                                     |
| `show_thread`   | word of a frame  | copies the current frame                                            |
| `gather_block`  | block a console  | copies some consoles to arrays of their own                         |
| `scatter_block` | block a console  | copies such arrays back to consoles                                 |
| `record_thread` | console          | records RAM and counters of a frame, for comparisons                |
"""

import numpy as np

from .. import console, joystick
from ..compiling.jit import inlined
from ..state import (
    FRAME_NUMBER,
    LINE_WORDS,
    LIVES,
    MEMORY_BYTES,
    OBSERVED,
    PICTURE,
    ROM_HEIGHT,
    TERMINAL,
)
from .environments import load_thread as power_thread
from .environments import paint_block
from .rows import LASTING_WORDS, load, store

__all__ = [
    "act_thread", "gather_block", "paint_block", "power_thread", "record_thread", "reset_thread",
    "scatter_block", "show_thread",
]  # fmt: skip


@inlined
def act_thread(e, s, ram, game, consoles, actions, rewards_out):
    """Emulate one video frame of console `e` with an ale-py action id; record its spans."""
    action = np.int64(actions[e])
    if action < 0 or action > 17:
        action = np.int64(joystick.NOOP)
    load(e, s, ram, consoles)
    s[OBSERVED] = 1
    rewards_out[e] = console.act(
        s,
        ram,
        game.rom,
        consoles.screens[e],
        consoles.random[e],
        game.program,
        action,
        joystick.NOOP,
    )
    s[OBSERVED] = 0
    store(e, s, ram, consoles)


@inlined
def reset_thread(e, s, ram, game, consoles, mask):
    """Run reset_game on console `e` if `mask` [n] selects it."""
    if not mask[e]:
        return
    load(e, s, ram, consoles)
    console.reset_game(s, ram, game.rom, consoles.screens[e], consoles.random[e], game.program)
    store(e, s, ram, consoles)


@inlined
def record_thread(e, frame, consoles, rewards, ram_out, counters_out):
    """Record console `e` after frame `frame` of K.

    Shapes: RAM [K, n, 128]; counters [K, n, 4] (reward, lives, game over, frame number).
    """
    for i in range(128):
        ram_out[frame, e, i] = consoles.memory[e, i]
    counters_out[frame, e, 0] = rewards[e]
    counters_out[frame, e, 1] = consoles.registers[LIVES, e]
    counters_out[frame, e, 2] = consoles.registers[TERMINAL, e] != 0
    counters_out[frame, e, 3] = consoles.registers[FRAME_NUMBER, e]


@inlined
def show_thread(i, consoles, pictures_out):
    """Copy word `i` of all current frames, uint64 [n, lines * 20]."""
    words = pictures_out.shape[1]
    e = i // words
    word = i - e * words
    pictures_out[e, word] = consoles.screens[e, np.int64(consoles.registers[PICTURE, e]) * words + word]


@inlined
def _copy_console(t, threads, source, k, target_out, e):
    """Copy console `k` of one group to console `e` of another."""
    for i in range(t, LASTING_WORDS, threads):
        target_out.registers[i, e] = source.registers[i, k]
    for i in range(t, MEMORY_BYTES, threads):
        target_out.memory[e, i] = source.memory[k, i]
    for i in range(t, 2 * LINE_WORDS * np.int64(source.registers[ROM_HEIGHT, k]), threads):
        target_out.screens[e, i] = source.screens[k, i]
    for g in range(source.random.shape[1]):
        for i in range(t, source.random.shape[2], threads):
            target_out.random[e, g, i] = source.random[k, g, i]


@inlined
def gather_block(e, t, threads, consoles, rows, part_out):
    """Copy console `rows[e]` to console `e` of `part_out`."""
    _copy_console(t, threads, consoles, rows[e], part_out, e)


@inlined
def scatter_block(e, t, threads, part, rows, consoles_out):
    """Copy a console of `part` to console `rows[e]`, cyclically. All `rows` differ."""
    _copy_console(t, threads, part, e % part.memory.shape[0], consoles_out, rows[e])
