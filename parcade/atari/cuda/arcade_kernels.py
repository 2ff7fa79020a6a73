"""What one GPU thread does for an `Arcade`, whose consoles keep both pictures.

| body            | one thread for    | does                                                              |
|-----------------|-------------------|-------------------------------------------------------------------|
| `power_thread`  | console           | ale-py's loadROM: state after power-on, seeds, a first reset        |
| `act_thread`    | console           | one raw video frame, drawn as it runs, since its log is not kept  |
| `reset_thread`  | console           | reset_game alone                                                  |
| `show_thread`   | word of a picture | copy the current picture                                          |
| `record_thread` | console           | keep RAM and counters of a frame, for comparisons                 |
"""

import numpy as np

from .. import console, mt19937
from ..jit import kernel, stand_alone
from ..state import FRAME_NUMBER, LIVES, NOOP_STREAM, OBSERVED, PICTURE, STICKY_STREAM, SYSTEM_STREAM, TERMINAL
from .rows import load, power_on, settle, store


@kernel
def power_thread(e, s, ram, rom, program, powered, powered_memory, powered_random, mask, seeds, registers, memory, screen, random):
    """loadROM on the consoles of `mask` [n]; `seeds` [n] int64; `powered*` are one console after power-on."""
    stand_alone()
    if mask[e] == 0:
        return
    power_on(e, s, ram, powered, powered_memory, registers)
    for i in range(625):
        random[e, SYSTEM_STREAM, i] = powered_random[i]
    mt19937.seed(random[e, STICKY_STREAM], seeds[e])
    mt19937.seed(random[e, NOOP_STREAM], seeds[e])
    console.reset_game(s, ram, rom, screen[e], random[e], program)
    settle(s, screen[e])
    store(e, s, ram, registers, memory)


@kernel
def act_thread(e, s, ram, rom, program, actions, registers, memory, screen, random, rewards_out):
    """One video frame of console `e` with an ale-py action id; the frame is drawn."""
    stand_alone()
    load(e, registers, memory, s, ram)
    s[OBSERVED] = 1
    rewards_out[e] = console.act(s, ram, rom, screen[e], random[e], program, np.int64(actions[e]))
    s[OBSERVED] = 0
    settle(s, screen[e])
    store(e, s, ram, registers, memory)


@kernel
def reset_thread(e, s, ram, rom, program, mask, registers, memory, screen, random):
    """reset_game on the consoles of `mask` [n]."""
    stand_alone()
    if mask[e] == 0:
        return
    load(e, registers, memory, s, ram)
    console.reset_game(s, ram, rom, screen[e], random[e], program)
    settle(s, screen[e])
    store(e, s, ram, registers, memory)


@kernel
def record_thread(e, frame, registers, memory, rewards, ram_out, counters_out):
    """RAM [K, n, 128] and counters [K, n, 4] of console `e` after frame `frame` of K: reward, lives, end, frame number."""
    stand_alone()
    for i in range(128):
        ram_out[frame, e, i] = memory[e, i]
    counters_out[frame, e, 0] = rewards[e]
    counters_out[frame, e, 1] = registers[LIVES, e]
    counters_out[frame, e, 2] = registers[TERMINAL, e] != 0
    counters_out[frame, e, 3] = registers[FRAME_NUMBER, e]


@kernel
def show_thread(i, registers, screen, pictures_out):
    """Word `i` of all current pictures, uint64 [n, height * 20]."""
    stand_alone()
    words = pictures_out.shape[1]
    e = i // words
    word = i - e * words
    pictures_out[e, word] = screen[e, np.int64(registers[PICTURE, e]) * words + word]
