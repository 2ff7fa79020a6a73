"""What one GPU thread does: the bodies of the kernels, ordinary functions that the CPU compiles as well.

| body               | one thread for        | does                                                                    |
|--------------------|-----------------------|-------------------------------------------------------------------------|
| `power_thread`     | console               | ale-py's loadROM: state after power-on, seeds, a first reset              |
| `step_thread`      | console               | 6507, RIOT, TIA for a whole step; pictures of the observed frames         |
| `restart_thread`   | console               | if its episode ended: reset_game, FIRE, no-ops, as `engine_cpu` does      |
| `recall_thread`    | console               | if its episode ended: one of the cached starts instead                  |
| `observe_thread`   | pixel of observations | grey, maximum, resize, frame stack; the last stack of an ended episode    |
| `begin_thread`     | pixel of observations | if the episode ended: an empty stack and its first picture                |
| `act_thread`       | console               | one raw video frame (`Arcade`)                                          |
| `reset_thread`     | console               | reset_game alone (`Arcade`)                                             |
| `show_thread`      | word of a picture     | copy the current picture                                                |
| `record_thread`    | console               | keep RAM and counters of a frame, for comparisons                       |

While a thread runs, its console is a row of `state.py` in scratch of its own (`s`, and `ram` beside it): on the GPU local memory,
which the hardware interleaves, so that lanes at the same word make one access. Between kernels only the words
below `LASTING_WORDS` are kept, word i of console e at ``registers[i, e]``. The logs are scratch: `settle` draws what would
still need them. Nothing here depends on the order of threads, and no thread writes what another one touches.
"""

import numpy as np

from . import console, engine_cpu, mt19937, tia
from .jit import inlined, kernel, product, stand_alone
from .preprocess import rounded
from .state import (
    DIFFICULTY,
    EPISODE_FRAME_NUMBER,
    FRAME_NUMBER,
    LINE_WORDS,
    LIVES,
    LOG_CAPACITY,
    LOG_SLOT,
    LOGS,
    MEMORY_BYTES,
    MODE,
    NOOP_STREAM,
    OBSERVED,
    PICTURE,
    SLOT_COUNT,
    SLOT_DRAWN,
    STICKY_STREAM,
    SYSTEM_STREAM,
    TERMINAL,
    TIA_SNAPSHOTS,
    TIA_WORDS,
)

LASTING_WORDS = LOGS  # of a row, kept between kernels

# Words of the settings array.
(FRAME_SKIP, FRAME_LIMIT, MAX_POOL, CLIP, LIFE_LOSS, EPISODIC_LIFE, USE_FIRE, NOOP_MAX, NUM_SETTINGS) = range(9)


# --- between lasting arrays and scratch ---------------------------------------------------------------------------------


@kernel
def settle(s, screen):
    """Put every frame on its picture whose log is about to be lost: the current one and the one before."""
    stand_alone()
    tia.serve(s, screen, tia.SHOW)
    slot = (np.int64(s[LOG_SLOT]) + 2) % 3
    if s[SLOT_DRAWN + slot] == tia.PENDING:
        t = TIA_SNAPSHOTS + slot * TIA_WORDS
        log = LOGS + slot * LOG_CAPACITY
        count = np.int64(s[SLOT_COUNT + slot])
        target = tia.last_access_target(s, t, log, count, np.int64(0))
        tia.run(s, screen, t, log, np.int64(0), count, np.int64(0), target, True)
        s[SLOT_DRAWN + slot] = tia.DRAWN


@kernel
def load(e, registers, memory, s, ram):
    """Console `e` into scratch."""
    stand_alone()
    for i in range(LASTING_WORDS):
        s[i] = registers[i, e]
    for i in range(MEMORY_BYTES):
        ram[i] = memory[e, i]


@kernel
def store(e, s, ram, registers_out, memory_out):
    """Scratch into console `e`."""
    stand_alone()
    for i in range(LASTING_WORDS):
        registers_out[i, e] = s[i]
    for i in range(MEMORY_BYTES):
        memory_out[e, i] = ram[i]


# --- one thread a console --------------------------------------------------------------------------------------------------


@kernel
def power_thread(e, s, ram, rom, program, powered, powered_memory, powered_random, mask, seeds, registers, memory, screen, random):
    """loadROM on the consoles of `mask` [n]; `seeds` [n] int64; `powered*` are rows of one console after power-on."""
    stand_alone()
    if mask[e] == 0:
        return
    for i in range(LASTING_WORDS):
        s[i] = powered[i]
    s[MODE] = registers[MODE, e]
    s[DIFFICULTY] = registers[DIFFICULTY, e]
    for i in range(MEMORY_BYTES):
        ram[i] = powered_memory[i]
    for i in range(625):
        random[e, SYSTEM_STREAM, i] = powered_random[i]
    mt19937.seed(random[e, STICKY_STREAM], seeds[e])
    mt19937.seed(random[e, NOOP_STREAM], seeds[e])
    console.reset_game(s, ram, rom, screen[e], random[e], program)
    settle(s, screen[e])
    store(e, s, ram, registers, memory)


@kernel
def step_thread(
    e, s, ram, rom, program, settings, action_set, actions, registers, memory, screen, random, captured, elapsed,
    counts_out, rewards_out, terminated_out, truncated_out, over_out, counters_out,
):  # fmt: skip
    """The frames of one step of console `e`.

    Shapes: actions [n] int64, places in action_set (a wrong one plays the nearest); captured [n, 3, height * 20] uint64; counts_out
    [n, 4] as `engine_cpu.play_step`'s; counters_out [n, 3]: lives, frame number, episode frame number.
    """
    stand_alone()
    load(e, registers, memory, s, ram)
    frame_limit = np.int64(settings[FRAME_LIMIT])
    place = min(max(np.int64(actions[e]), np.int64(0)), np.int64(len(action_set)) - 1)
    over = engine_cpu.play_step(
        s, ram, screen[e], random[e], rom, program, np.int64(action_set[place]), np.int64(settings[FRAME_SKIP]),
        frame_limit - elapsed[e], settings[EPISODIC_LIFE] != 0, captured[e], counts_out[e],
    )  # fmt: skip
    if not over:
        engine_cpu.capture_last(s, screen[e], captured[e], counts_out[e])
    elapsed[e] += counts_out[e, 1]
    reward = np.int64(counts_out[e, 0])
    rewards_out[e] = min(max(reward, np.int64(-1)), np.int64(1)) if settings[CLIP] != 0 else reward
    by_life = (settings[LIFE_LOSS] != 0 or settings[EPISODIC_LIFE] != 0) and counts_out[e, 3] != 0
    terminated = s[TERMINAL] != 0 or by_life
    terminated_out[e] = terminated
    truncated_out[e] = elapsed[e] >= frame_limit and not terminated
    over_out[e] = over
    settle(s, screen[e])
    store(e, s, ram, registers, memory)
    _count(e, s, counters_out)


@inlined
def _count(e, s, counters_out):
    counters_out[e, 0] = s[LIVES]
    counters_out[e, 1] = s[FRAME_NUMBER]
    counters_out[e, 2] = s[EPISODE_FRAME_NUMBER]


@kernel
def restart_thread(e, s, ram, rom, program, settings, over, registers, memory, screen, random, captured, elapsed, counters_out):
    """A new episode on console `e` if its last one is over."""
    stand_alone()
    if over[e] == 0:
        return
    load(e, registers, memory, s, ram)
    engine_cpu.begin_episode(s, ram, screen[e], random[e], rom, program, settings[USE_FIRE] != 0, np.int64(settings[NOOP_MAX]))
    settle(s, screen[e])
    store(e, s, ram, registers, memory)
    at = np.int64(s[PICTURE]) * captured.shape[2]
    for i in range(captured.shape[2]):
        captured[e, 0, i] = screen[e, at + i]
        captured[e, 1, i] = np.uint64(0)
    elapsed[e] = 0
    _count(e, s, counters_out)


@kernel
def recall_thread(e, starts, start_memory, start_screen, over, registers, memory, screen, random, captured, elapsed, counters_out):
    """One of the K cached starts on console `e` if its last episode is over; drawn from its stream of no-ops.

    Shapes: starts [LASTING_WORDS, K] int32, start_memory [K, 256], start_screen [K, 2 * height * 20].
    Frame numbers and the generators stay the console's own.
    """
    stand_alone()
    if over[e] == 0:
        return
    k = mt19937.draw(random[e, NOOP_STREAM]) % starts.shape[1]
    frame_number = registers[FRAME_NUMBER, e] + starts[EPISODE_FRAME_NUMBER, k]
    for i in range(LASTING_WORDS):
        registers[i, e] = starts[i, k]
    registers[FRAME_NUMBER, e] = frame_number
    for i in range(MEMORY_BYTES):
        memory[e, i] = start_memory[k, i]
    for i in range(screen.shape[1]):
        screen[e, i] = start_screen[k, i]
    at = np.int64(starts[PICTURE, k]) * captured.shape[2]
    for i in range(captured.shape[2]):
        captured[e, 0, i] = start_screen[k, at + i]
        captured[e, 1, i] = np.uint64(0)
    elapsed[e] = 0
    counters_out[e, 0] = starts[LIVES, k]
    counters_out[e, 1] = frame_number
    counters_out[e, 2] = starts[EPISODE_FRAME_NUMBER, k]


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


# --- one thread a pixel or a word -------------------------------------------------------------------------------------------


@inlined
def _pooled(pictures, num_pictures, line, x, grey):
    """Grey level of a source pixel, the maximum over pictures."""
    word = line * LINE_WORDS + (x >> 3)
    shift = np.uint64((x & 7) << 3)
    level = grey[np.uint32((pictures[0, word] >> shift) & np.uint64(255))]
    for p in range(1, num_pictures):
        level = max(level, grey[np.uint32((pictures[p, word] >> shift) & np.uint64(255))])
    return np.float32(level)


@kernel
def observed_pixel(pictures, num_pictures, row, x, grey, column_start, column_weight, row_start, row_count, row_weight, whole):
    """One pixel of `preprocess.observe`, by the same sums in the same order."""
    stand_alone()
    if whole[0] > 0:
        lines, columns = np.int64(whole[0]), np.int64(whole[1])
        total = np.float32(0)
        for k in range(lines):
            for j in range(columns):
                total += _pooled(pictures, num_pictures, row * lines + k, x * columns + j, grey)
        if lines == 2 and columns == 2:
            return np.uint8((np.int64(total) + 2) >> 2)
        return np.uint8(rounded(product(total, np.float32(1.0) / np.float32(lines * columns))))
    start = np.int64(column_start[x])
    first_line = np.int64(row_start[row])
    total = np.float32(0)
    for k in range(np.int64(row_count[row])):
        line_sum = product(_pooled(pictures, num_pictures, first_line + k, start, grey), column_weight[0, x])
        for tap in range(1, column_weight.shape[0]):
            weight = column_weight[tap, x]
            if start + tap < 8 * LINE_WORDS:
                line_sum += product(_pooled(pictures, num_pictures, first_line + k, start + tap, grey), weight)
        weighted = product(line_sum, row_weight[row, k])
        total = weighted if k == 0 else total + weighted
    return np.uint8(min(max(rounded(total), np.float32(0)), np.float32(255)))


@kernel
def observe_thread(
    i, settings, counts, over, captured, grey, column_start, column_weight, row_start, row_count, row_weight, whole,
    observations, final_out,
):  # fmt: skip
    """Pixel `i` of all observations: push the new frame on the stack [n, k, height * width]."""
    stand_alone()
    pixels = observations.shape[2]
    e = i // pixels
    pixel = i - e * pixels
    width = len(column_start)
    row = pixel // width
    num_pictures = np.int64(counts[e, 2]) if settings[MAX_POOL] != 0 else np.int64(1)
    level = observed_pixel(
        captured[e], num_pictures, row, pixel - row * width, grey, column_start, column_weight, row_start, row_count, row_weight, whole
    )
    newest = observations.shape[1] - 1
    for k in range(newest):
        observations[e, k, pixel] = observations[e, k + 1, pixel]
    observations[e, newest, pixel] = level
    if over[e] != 0:
        for k in range(newest + 1):
            final_out[e, k, pixel] = observations[e, k, pixel]


@kernel
def begin_thread(
    i, over, captured, grey, column_start, column_weight, row_start, row_count, row_weight, whole, observations
):  # fmt: skip
    """Pixel `i` of all observations: the first stack of the episodes that have just begun."""
    stand_alone()
    pixels = observations.shape[2]
    e = i // pixels
    if over[e] == 0:
        return
    pixel = i - e * pixels
    width = len(column_start)
    row = pixel // width
    newest = observations.shape[1] - 1
    for k in range(newest):
        observations[e, k, pixel] = np.uint8(0)
    observations[e, newest, pixel] = observed_pixel(
        captured[e], np.int64(1), row, pixel - row * width, grey, column_start, column_weight, row_start, row_count, row_weight, whole
    )


@kernel
def show_thread(i, registers, screen, pictures_out):
    """Word `i` of all current pictures, uint64 [n, height * 20]."""
    stand_alone()
    words = pictures_out.shape[1]
    e = i // words
    word = i - e * words
    pictures_out[e, word] = screen[e, np.int64(registers[PICTURE, e]) * words + word]


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
