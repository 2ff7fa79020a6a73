"""Thread bodies of an `Arcade` on a GPU.

| body            | one thread per   | does                                                                |
|-----------------|------------------|---------------------------------------------------------------------|
| `power_thread`  | console          | ale-py's loadROM: power-on state, seeds, first reset                |
| `act_thread`    | console          | one raw video frame, drawn as it is emulated (its log is not kept)  |
| `reset_thread`  | console          | reset_game only                                                     |
| `show_thread`   | word of a frame  | copies the current frame                                            |
| `record_thread` | console          | records RAM and counters of a frame, for comparisons                |
"""

import numpy as np

from .. import console
from ..compiling.jit import inlined
from ..state import FRAME_NUMBER, LIVES, OBSERVED, PICTURE, TERMINAL
from .environments import load_thread as power_thread
from .rows import load, store

__all__ = ["act_thread", "power_thread", "record_thread", "reset_thread", "show_thread"]


@inlined
def act_thread(e, s, ram, game, consoles, actions, rewards_out):
    """Emulate and draw one video frame of console `e` with an ale-py action id."""
    action = np.int64(actions[e])
    if action < 0 or action > 17:
        action = np.int64(console.NOOP)
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
        console.NOOP,
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
