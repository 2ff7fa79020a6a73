"""A round of `VectorConsoles`: a step or a reset of all consoles on the threads of a `ThreadPool`.

Consoles are independent and each thread has its own scratch memory, so the results do not depend on the
number of threads or on which thread plays which console.
"""

from typing import NamedTuple

import numpy as np

from .. import mt19937
from ..compiling.jit import ROWS, inlined, kernel, separate, stand_alone
from ..engine_cpu import RESIZE, STARTS, capture_changes, load_console, play_step, push, start_episode
from ..primitives.atomics import copy_to
from ..primitives.simd import EVERY_WORD
from ..settings import (
    CLIP,
    EPISODIC_LIFE,
    FIRE,
    FRAME_LIMIT,
    FRAME_SKIP,
    FRAME_SKIP_TO,
    LIFE_LOSS,
    MAX_POOL,
    NOOP_MAX,
)
from ..state import DIFFICULTY, EPISODE_FRAME_NUMBER, FRAME_NUMBER, LIVES, MODE, NOOP_STREAM, TERMINAL
from .thread_pool import (
    CONTROL,
    GATHER,
    LEAD,
    MESSAGE,
    NUM_PARTS,
    PLAY,
    PREPARE,
    SERVE,
    await_done,
    await_round,
    claim,
    close_round,
    enter_round,
    leave_round,
    open_round,
    post_done,
    set_part,
    wake,
)

# Commands of a round.
STEP = 0
RESET = 1
# Words of a round's message (`ThreadPool.run`).
COMMAND = MESSAGE
# Addresses of output arrays, or 0 to skip the copy: observations, uint8 [n, stack, bytes of a frame], and
# their newest frames, uint8 [n, bytes of a frame].
STACKS = MESSAGE + 1
FRAMES = MESSAGE + 2
# Address of the output for last observations of episodes that end, uint8 [n, stack, bytes of a frame].
FINAL = MESSAGE + 3
RESULTS = MESSAGE + 4  # addresses of output arrays with the fields of `Outcome`


class Outcome(NamedTuple):
    """Results of a round per console, [n]. Threads write them; `GATHER` copies them for the caller."""

    rewards: np.ndarray  # int32
    terminated: np.ndarray  # bool
    truncated: np.ndarray  # bool
    lives: np.ndarray  # int32
    frame_number: np.ndarray  # int32
    episode_frame_number: np.ndarray  # int32
    frames: np.ndarray  # int64, emulated by this step
    reset_frames: np.ndarray  # int64, emulated by a reset inside this step


OUTCOME_TYPES = Outcome(np.int32, np.bool_, np.bool_, np.int32, np.int32, np.int32, np.int64, np.int64)


class Played(NamedTuple):
    """The arrays used by a round. Each thread has its own scratch; all threads share the other arrays."""

    settings: np.ndarray  # int64, the words of `settings.py`
    order: np.ndarray  # int64 [n]: consoles, in the order of play within each thread's part
    rows: tuple  # state, memory, screen, random
    cartridge: tuple  # rom, program; state, memory, random of one console after power-on
    starts: tuple  # cached episode starts, `engine_cpu.STARTS`
    told: tuple  # [n]: actions int64, ale-py ids; playing bool; seeds int64; load bool: load the ROM first
    # captured uint64 [n, 3, height * 20], resize table, observations uint8 [n, stack, bytes of a frame]
    seen: tuple
    clocks: tuple  # [n]: frames of this episode int32; frame number int64 at the end of the last round
    scratch: tuple  # work float32 [3, columns], changed int32 [height]; see `preprocess.observe`
    outcome: tuple  # Outcome
    counts: np.ndarray  # int32 [n, 4], `counts_out` of `engine_cpu.play_step`


_FIELDS = Played(
    settings="int64[::1]",
    order="int64[::1]",
    rows=f"Tuple(({ROWS}))",
    cartridge="Tuple((uint8[::1], int32[::1], int32[:, ::1], uint8[:, ::1], uint32[:, :, ::1]))",
    starts=STARTS,
    told="Tuple((int64[::1], boolean[::1], int64[::1], boolean[::1]))",
    seen=f"Tuple((uint64[:, :, ::1], {RESIZE}, uint8[:, :, ::1]))",
    clocks="Tuple((int32[::1], int64[::1]))",
    scratch="Tuple((float32[:, ::1], int32[::1]))",
    outcome="Tuple((int32[::1], boolean[::1], boolean[::1], int32[::1], int32[::1], int32[::1], "
    "int64[::1], int64[::1]))",
    counts="int32[:, ::1]",
)
PLAYED = f"Tuple(({', '.join(_FIELDS)}))"


@inlined
def _bytes(stack):
    return np.int64(stack.shape[0]) * np.int64(stack.shape[1])


@inlined
def _frames_of_step(settings, random):
    """Return the frames of a console's next step; draws from its `NOOP_STREAM` if they are random."""
    frames = np.int64(settings[FRAME_SKIP])
    choices = np.int64(settings[FRAME_SKIP_TO]) - frames + 1
    if choices > 1:
        frames += mt19937.draw(random[NOOP_STREAM]) % choices
    return frames


@kernel
def _step_console(e, control, played):
    """Play one step of console `e`, and reset it if the episode ends (SAME_STEP)."""
    stand_alone()
    settings, _, rows, cartridge, starts, told, seen, clocks, scratch, outcome, counts = played
    state, memory, screen, random = rows
    rom, program = cartridge[0], cartridge[1]
    captured, resize_table, observations = seen
    elapsed = clocks[0]
    work, changed = scratch
    rewards_out, terminated_out, truncated_out, _, _, _, _, reset_frames_out = outcome
    s, counts_out = state[e], counts[e]
    frame_limit = settings[FRAME_LIMIT]
    over = play_step(
        s, memory[e], screen[e], random[e], rom, program, told[0][e], _frames_of_step(settings, random[e]),
        frame_limit - elapsed[e], settings[EPISODIC_LIFE] != 0, captured[e], counts_out,
    )  # fmt: skip
    elapsed[e] += counts_out[1]
    if over:
        changed[:] = EVERY_WORD
    elif screen.shape[1] > 0:
        capture_changes(s, screen[e], captured[e], counts_out, changed)
    pictures = np.int64(counts_out[2] if settings[MAX_POOL] != 0 else 1)
    push(pictures, memory[e], captured[e], resize_table, work, changed, observations[e])
    reward = np.int64(counts_out[0])
    rewards_out[e] = min(max(reward, np.int64(-1)), np.int64(1)) if settings[CLIP] != 0 else reward
    loses = settings[LIFE_LOSS] != 0 or settings[EPISODIC_LIFE] != 0
    terminated = s[TERMINAL] != 0 or (loses and counts_out[3] != 0)
    terminated_out[e] = terminated
    truncated_out[e] = elapsed[e] >= frame_limit and not terminated
    if over:
        copy_to(control[FINAL] + e * _bytes(observations[e]), observations[e])
        start_episode(
            e, state, memory, screen, random, rom, program, settings[FIRE] != 0, settings[NOOP_MAX], starts,
            captured, resize_table, work, changed, observations, elapsed,
        )  # fmt: skip
        reset_frames_out[e] = s[EPISODE_FRAME_NUMBER]


@kernel
def _reset_console(e, played):
    """Start a new episode of console `e`; if `load[e]`, load the ROM with its seed first."""
    stand_alone()
    settings, _, rows, cartridge, starts, told, seen, clocks, scratch, _, _ = played
    state, memory, screen, random = rows
    rom, program, state_0, memory_0, random_0 = cartridge
    _, _, seeds, load = told
    captured, resize_table, observations = seen
    work, changed = scratch
    if load[e]:
        mt19937.seed(random[e, NOOP_STREAM], seeds[e])
        load_console(
            e, state, memory, screen, random, state_0, memory_0, random_0, rom, program, seeds[e],
            np.int64(state[e, MODE]), np.int64(state[e, DIFFICULTY]),
        )  # fmt: skip
    start_episode(
        e, state, memory, screen, random, rom, program, settings[FIRE] != 0, settings[NOOP_MAX], starts,
        captured, resize_table, work, changed, observations, clocks[0],
    )  # fmt: skip


@kernel
def _hand_over(e, control, played):
    """Copy the counters and frames of console `e` to the output arrays. `reset_frames[e]` is set already."""
    s, stack, counted = played[2][0][e], played[6][2][e], played[7][1]
    _, _, _, lives, frame_number, episode_frame_number, frames, reset_frames = played[9]
    lives[e] = s[LIVES]
    frame_number[e] = s[FRAME_NUMBER]
    episode_frame_number[e] = s[EPISODE_FRAME_NUMBER]
    # The frame number is int32 and starts again below zero; the difference is that of the frames.
    frames[e] = np.int32(s[FRAME_NUMBER] - counted[e]) - reset_frames[e]
    counted[e] = s[FRAME_NUMBER]
    if control[STACKS] != 0:
        copy_to(control[STACKS] + e * _bytes(stack), stack)
    if control[FRAMES] != 0:
        copy_to(control[FRAMES] + e * np.int64(stack.shape[1]), stack[stack.shape[0] - 1])


@kernel
def _play(control, thread, played):
    """Do one thread's work in a round, console by console."""
    stand_alone()
    order, playing, outcome = played[1], played[5][1], played[9]
    place = claim(control, thread)
    while place >= 0:
        e = order[place]
        outcome[7][e] = 0  # reset_frames
        if control[COMMAND] == RESET:
            if playing[e]:
                _reset_console(e, played)
        elif playing[e]:
            _step_console(e, control, played)
        else:
            outcome[0][e] = 0
            outcome[1][e] = False
            outcome[2][e] = False
        _hand_over(e, control, played)
        place = claim(control, thread)


@kernel
def _rank(e, elapsed, lives, settings):
    """Return a rank that is lower the more likely the episode of console `e` ends in this step."""
    if elapsed[e] + settings[FRAME_SKIP_TO] >= settings[FRAME_LIMIT]:
        return np.int64(-1) << 40
    return (np.int64(lives[e]) << 32) - elapsed[e]


@kernel
def _prepare(control, played):
    """Divide the consoles among the threads; return how many workers to wake.

    A reset takes as long as a dozen steps, so each part starts with the consoles whose episodes are most
    likely to end: first those at the frame limit, then those with the fewest lives, then the longest
    episodes. The order does not affect the results.
    """
    stand_alone()
    settings, order, elapsed, lives = played[0], played[1], played[7][0], played[9][3]
    threads = control[NUM_PARTS]
    n = len(order)
    for thread in range(threads):
        first, last = n * thread // threads, n * (thread + 1) // threads
        set_part(control, thread, first, last)
        for place in range(first + 1, last):  # insertion sort: the order hardly changes between steps
            e = order[place]
            rank = _rank(e, elapsed, lives, settings)
            to = place
            while to > first and _rank(order[to - 1], elapsed, lives, settings) > rank:
                order[to] = order[to - 1]
                to -= 1
            order[to] = e
    return open_round(control, n)


@kernel
def _gather(control, played):
    """Copy the outcome of a round to the caller's arrays; return how many episodes ended."""
    stand_alone()
    (rewards, terminated, truncated, lives,
     frame_number, episode_frame_number, frames, reset_frames) = played[9]  # fmt: skip
    copy_to(control[RESULTS], rewards)
    copy_to(control[RESULTS + 1], terminated)
    copy_to(control[RESULTS + 2], truncated)
    copy_to(control[RESULTS + 3], lives)
    copy_to(control[RESULTS + 4], frame_number)
    copy_to(control[RESULTS + 5], episode_frame_number)
    copy_to(control[RESULTS + 6], frames)
    copy_to(control[RESULTS + 7], reset_frames)
    ended = np.int64(0)
    for e in range(len(rewards)):
        ended += terminated[e] or truncated[e]
    return ended


@separate(f"int64(int64, {CONTROL}, int64, {PLAYED})")
def work(what, control, thread, played):
    """Do what a `ThreadPool` asks for, see `thread_pool.Work`."""
    if what == PLAY:
        _play(control, thread, played)
    elif what == SERVE:
        while await_round(control, thread):
            if enter_round(control):
                _play(control, thread, played)
                if leave_round(control):
                    post_done(control)
    elif what == PREPARE:
        return _prepare(control, played)
    elif what == GATHER:
        return _gather(control, played)
    elif what == LEAD:
        wake(control, _prepare(control, played))
        _play(control, thread, played)
        if close_round(control):
            await_done(control)
        return _gather(control, played)
    return np.int64(0)
