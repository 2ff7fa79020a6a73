"""Thread bodies of environments on a GPU: one thread runs a console. `observations.py` has the others.

| body             | one per console | does                                                                  |
|------------------|-----------------|-----------------------------------------------------------------------|
| `load_thread`    | thread          | ale-py's loadROM: power on, seeds, first reset                        |
| `step_thread`    | thread          | emulates the frames of one step; records the spans of the last two    |
| `restart_thread` | thread          | starts a new episode as ale-py does, if the last one is over          |
| `choose_thread`  | thread          | chooses a cached start for the next episode, if the last one is over  |
| `recall_block`   | block           | copies the console and the observation of the chosen start            |
| `paint_block`    | warp            | paints the recorded spans into both frame buffers                     |

`engine_cpu.py` does the same on CPU cores with the same emulator functions. Only frames are stored
differently: the two frames that an observation pools stay in the console's two frame buffers instead of being
captured. One of them can be overwritten before it is observed, if `console.run_update` stops in the middle of
a frame; it is then copied to `kept`.

The result does not depend on the order of threads, and no thread writes what another thread uses. Functions
that take a group of arrays are inlined, because an argument of that size would be passed through memory.
"""

import numpy as np

from .. import console, engine_cpu, joystick, mt19937
from ..compiling.jit import inlined, kernel, stand_alone
from ..primitives.warp import WARP_LANES, block_sync
from ..settings import CLIP, EPISODIC_LIFE, FIRE, FRAME_LIMIT, FRAME_SKIP, LIFE_LOSS, NOOP_MAX
from ..state import (
    EPISODE_FRAME_NUMBER,
    FRAME_NUMBER,
    LINE_WORDS,
    LIVES,
    MEMORY_BYTES,
    NOOP_STREAM,
    OBSERVED,
    PARTIAL,
    PICTURE,
    ROM_HEIGHT,
    STICKY_STREAM,
    TERMINAL,
)
from ..tia import chip as tia
from ..tia import spans
from ..tia.spans import LOOK_WORDS
from .layout import BLACK, FRAMES, KEPT, LIFE_LOST, OTHER, REWARD, THIRD
from .rows import LASTING_WORDS, load, power_on, store

# --- one thread per console -------------------------------------------------------------------------------


@inlined
def _count(e, s, outcome):
    outcome.counters[e, 0] = s[LIVES]
    outcome.counters[e, 1] = s[FRAME_NUMBER]
    outcome.counters[e, 2] = s[EPISODE_FRAME_NUMBER]


@kernel
def _third_picture(s, screen, kept):
    """Show the second-to-last frame of a step; return where it is at the end of the step: OTHER or KEPT."""
    stand_alone()
    tia.serve(s, screen, tia.SHOW)
    if s[PARTIAL] == 0:
        return OTHER
    # The next update continues this frame and draws into the same frame buffer.
    place = spans.list_in(s, screen)
    if place != 0:
        spans.paint(screen, place)
    at = np.int64(s[PICTURE]) * len(kept)
    for word in range(len(kept)):
        kept[word] = screen[at + word]
    return KEPT


@kernel
def _play(s, ram, rom, screen, random, program, action, settings, frames_left, kept, counts_out):
    """Run `engine_cpu.play_step` without capturing frames; return whether the episode is over.

    `counts_out` is a row of `counts`.
    """
    stand_alone()
    lives = s[LIVES]
    reward = np.int64(0)
    frames = np.int64(0)
    life_lost = False
    over = False
    third = BLACK
    for left in range(np.int64(settings[FRAME_SKIP]), 0, -1):
        s[OBSERVED] = 1 if left <= 2 else 0
        reward += console.act(s, ram, rom, screen, random, program, action, joystick.NOOP)
        frames += 1
        life_lost = s[LIVES] < lives and s[LIVES] > 0
        over = s[TERMINAL] != 0 or frames >= frames_left or (settings[EPISODIC_LIFE] != 0 and life_lost)
        if over:
            break
        if left == 2:
            third = _third_picture(s, screen, kept)
    s[OBSERVED] = 0
    counts_out[REWARD] = reward
    counts_out[FRAMES] = frames
    counts_out[THIRD] = third
    counts_out[LIFE_LOST] = life_lost
    return over


@inlined
def step_thread(e, s, ram, game, how, consoles, seen, outcome):
    """Emulate the frames of one step of console `e`. An action out of range is clamped."""
    load(e, s, ram, consoles)
    settings, counts = how.settings, outcome.counts[e]
    frame_limit = np.int64(settings[FRAME_LIMIT])
    place = min(max(np.int64(outcome.actions[e]), np.int64(0)), np.int64(len(how.action_set)) - 1)
    over = _play(
        s, ram, game.rom, consoles.screens[e], consoles.random[e], game.program,
        np.int64(how.action_set[place]), settings, frame_limit - outcome.elapsed[e], seen.kept[e], counts,
    )  # fmt: skip
    if not over and counts[THIRD] != BLACK:
        seen.second[e] = counts[THIRD]
    outcome.elapsed[e] += counts[FRAMES]
    reward = np.int64(counts[REWARD])
    outcome.rewards[e] = min(max(reward, np.int64(-1)), np.int64(1)) if settings[CLIP] != 0 else reward
    by_life = (settings[LIFE_LOSS] != 0 or settings[EPISODIC_LIFE] != 0) and counts[LIFE_LOST] != 0
    terminated = s[TERMINAL] != 0 or by_life
    outcome.terminated[e] = terminated
    outcome.truncated[e] = outcome.elapsed[e] >= frame_limit and not terminated
    outcome.over[e] = over
    _count(e, s, outcome)
    store(e, s, ram, consoles)


@inlined
def load_thread(e, s, ram, game, consoles, loading, seeds):
    """Run loadROM on console `e` if `loading` [n] bool selects it, with `seeds` [n] int64."""
    if not loading[e]:
        return
    power_on(e, s, ram, game, consoles)
    mt19937.seed(consoles.random[e, STICKY_STREAM], seeds[e])
    mt19937.seed(consoles.random[e, NOOP_STREAM], seeds[e])
    console.reset_game(s, ram, game.rom, consoles.screens[e], consoles.random[e], game.program)
    store(e, s, ram, consoles)


@inlined
def restart_thread(e, s, ram, game, how, consoles, seen, outcome):
    """Start a new episode on console `e` if its last one is over."""
    if not outcome.over[e]:
        return
    load(e, s, ram, consoles)
    engine_cpu.begin_episode(
        s, ram, consoles.screens[e], consoles.random[e], game.rom, game.program, how.settings[FIRE] != 0,
        np.int64(how.settings[NOOP_MAX]),
    )  # fmt: skip
    seen.second[e] = BLACK
    outcome.elapsed[e] = 0
    _count(e, s, outcome)
    store(e, s, ram, consoles)


@inlined
def choose_thread(e, consoles, starts, outcome):
    """Choose one of the cached `starts` at random for console `e` if its episode is over."""
    if not outcome.over[e]:
        return
    k = mt19937.draw(consoles.random[e, NOOP_STREAM]) % starts.registers.shape[1]
    outcome.chosen[e] = k
    outcome.elapsed[e] = 0
    outcome.counters[e, 0] = starts.registers[LIVES, k]
    outcome.counters[e, 1] = consoles.registers[FRAME_NUMBER, e] + starts.registers[EPISODE_FRAME_NUMBER, k]
    outcome.counters[e, 2] = starts.registers[EPISODE_FRAME_NUMBER, k]


# --- one block per console --------------------------------------------------------------------------------


@inlined
def _copy(t, threads, source, target):
    for i in range(t, len(source), threads):
        target[i] = source[i]


@inlined
def paint_block(e, lane, lanes, looks, consoles):
    """Paint the spans that console `e` has recorded, in their order, and empty its list.

    Every lane prepares a span, then all paint these spans one after the other, each lane always the same
    pixels of a line. So no two lanes write to the same word.
    """
    screen = consoles.screens[e]
    place = 2 * LINE_WORDS * np.int64(consoles.registers[ROM_HEIGHT, e])
    count = np.int64(screen[np.uint64(place)])
    for first in range(0, count, WARP_LANES):
        here = min(count - first, np.int64(WARP_LANES))
        for k in range(lane, here, lanes):
            spans.look_of(screen, place, first + k, looks, LOOK_WORDS * k)
        block_sync()
        for k in range(here):
            for group in range(lane, LINE_WORDS, lanes):
                spans.paint_look(screen, place, looks, LOOK_WORDS * k, group)
        block_sync()
    if lane == 0 and count != 0:
        screen[np.uint64(place)] = np.uint64(0)


@inlined
def recall_block(e, t, threads, consoles, seen, starts, starts_seen, outcome):
    """Copy the chosen start to console `e` if its episode is over.

    Frame numbers advance as if the start had been played on this console.
    """
    if not outcome.over[e]:
        return
    k = np.int64(outcome.chosen[e])
    for i in range(t, LASTING_WORDS, threads):
        consoles.registers[i, e] = outcome.counters[e, 1] if i == FRAME_NUMBER else starts.registers[i, k]
    for i in range(t, MEMORY_BYTES, threads):
        consoles.memory[e, i] = starts.memory[k, i]
    for i in range(t, 2 * seen.kept.shape[1], threads):
        consoles.screens[e, i] = starts.screens[k, i]
    for c in range(seen.levels.shape[1]):
        _copy(t, threads, starts_seen.levels[k, c], seen.levels[e, c])
    for i in range(seen.observations.shape[1]):
        _copy(t, threads, starts_seen.observations[k, i], seen.observations[e, i])
    if t == 0:
        seen.second[e] = BLACK
