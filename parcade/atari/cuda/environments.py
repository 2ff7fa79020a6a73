"""What one GPU thread does with a console of an environment: ordinary functions that the CPU compiles as well.

| body             | one thread for    | does                                                                                         |
|------------------|-------------------|----------------------------------------------------------------------------------------------|
| `step_thread`    | console of a wave | 6507, RIOT, TIA for a whole step; hands frames on to be drawn                                  |
| `load_thread`    | console           | ale-py's loadROM: state after power-on, new generators, a first reset                        |
| `restart_thread` | console of a wave | if its episode ended: reset_game, FIRE, no-ops, as `engine_cpu` does                           |
| `recall_thread`  | console           | if its episode ended: one of the cached starts instead                                       |

An environment's consoles keep no pictures. A step is played without pictures first, and the frames that are observed go to
`pictures.draw_thread` with their logs. That is all there is to it unless an older picture shows: below the last line of a frame
that was cut short, in a frame that outgrew its log, in the last observation of an episode that ends with the last frame of a step.
Then nothing is stored and the step is played again, `is_retry`, on pictures in a *slot*, which begin as the last two
frames left them (`history.py`). A console that is not whole afterwards keeps its slot; without one it goes on, and what it shows of
older pictures is black and counted as incomplete. Nothing but pictures depends on any of this.

Of ale-py's generators (624 words each) an environment keeps the seeds and how often it drew from them, [3, n]; a new episode makes
them again in scratch, `streams`. Only the stream of sticky actions is kept whole, ``sticky`` [n, 625], where actions are sticky. Where
they are not, its numbers decide nothing and are only counted, but for a game that waits so many frames in its menu.

Nothing here depends on the order of threads, and no thread writes what another one touches.
"""

import numpy as np

from .. import console, engine_cpu, mt19937, rules, tia
from ..jit import inlined, kernel, stand_alone
from ..state import (
    ACTION,
    EPISODE_FRAME_NUMBER,
    FRAME_NUMBER,
    IN_SWCHA,
    LIVES,
    LOG_SLOT,
    MEMORY_BYTES,
    NOOP_STREAM,
    OBSERVED,
    PICTURE,
    SLOT_DRAWN,
    STICKY_STREAM,
    STICKY_THRESHOLD,
    TERMINAL,
)
from . import history
from .pictures import (
    CLIP,
    COMPLETE_SLOT,
    EPISODIC_LIFE,
    FRAME_KIND,
    FRAME_LIMIT,
    FRAME_SKIP,
    LACKING_SLOT,
    LIFE_LOSS,
    MAX_POOL,
    NEW_SLOT,
    NO_FRAME,
    NOOP_MAX,
    USE_FIRE,
    is_logged,
    put_frame,
    words_in,
)
from .rows import LASTING_WORDS, load, power_on, settle, store

CONTROL_WORDS = 8  # from IN_SWCHA on
NOT_WHOLE, WHOLE, WHOLE_START = 0, 1, 2  # the last one: the picture before the first observation counts as black
MOST_FRAMES = 31  # of a step, because one word notes which of them repeat an action


@inlined
def _count(e, s, counters_out):
    counters_out[e, 0] = s[LIVES]
    counters_out[e, 1] = s[FRAME_NUMBER]
    counters_out[e, 2] = s[EPISODE_FRAME_NUMBER]


@inlined
def _forget_logs(s):
    """No log of an earlier frame is here: nothing can be drawn from one."""
    for slot in range(3):
        s[SLOT_DRAWN + slot] = tia.DRAWN


@kernel
def bring_pictures(s, ram, rom, screen, captured, controls, whole):
    """Play the last two frames again, on both pictures; `s` and `ram` are as `history.recall` left them.

    `controls` int32 [8] are those of the second frame, ``IN_*`` of today. Fills the first two of `captured` [3, height * 20].
    """
    stand_alone()
    _forget_logs(s)
    s[OBSERVED] = 1
    for frame in range(2):
        if frame == 1:
            for k in range(CONTROL_WORDS):
                s[IN_SWCHA + k] = controls[k]
        console.run_update(s, ram, rom, screen)
    s[OBSERVED] = 0
    words = captured.shape[1]
    last = np.int64(s[PICTURE]) * words
    before = words - last
    for i in range(words):
        captured[0, i] = screen[last + i]
        captured[1, i] = screen[before + i] if whole == WHOLE else np.uint64(0)


@kernel
def _forget_pictures(screen, captured):
    """Black, for a console that goes on without those it had."""
    stand_alone()
    for i in range(len(screen)):
        screen[i] = np.uint64(0)
    for i in range(captured.shape[1]):
        captured[0, i] = np.uint64(0)
        captured[1, i] = np.uint64(0)


@kernel
def _play(s, ram, screen, stream, rom, program, action, settings, frames_left, captured, decisions, counts_out):
    """`engine_cpu.play_step`, with pictures only where there is a `screen`, and sticky actions only where there is a `stream`.

    `decisions` [2] int32 remembers which frames repeated an action: how many were played, and a bit for each. Frames that are played a
    second time do as they did.
    """
    stand_alone()
    lives = s[LIVES]
    reward = np.int64(0)
    frames = np.int64(0)
    life_lost = False
    over = False
    pictures = 2
    for left in range(np.int64(settings[FRAME_SKIP]), 0, -1):
        s[OBSERVED] = 1 if left <= 2 and len(screen) > 0 else 0
        if frames >= decisions[0]:
            if len(stream) > 0 and console.repeats(s, stream):
                decisions[1] |= 1 << frames
            else:
                decisions[1] &= ~(1 << frames)
            decisions[0] += 1
        if decisions[1] >> frames & 1 == 0:
            s[ACTION] = action
        if s[TERMINAL] == 0:
            reward += console.play_frame(s, ram, rom, screen, program)
        frames += 1
        life_lost = s[LIVES] < lives and s[LIVES] > 0
        over = s[TERMINAL] != 0 or frames >= frames_left or (settings[EPISODIC_LIFE] != 0 and life_lost)
        if over:
            break
        if left == 2:
            if len(screen) > 0:
                engine_cpu.capture(s, screen, captured[2])
            pictures = 3
    s[OBSERVED] = 0
    counts_out[0] = reward
    counts_out[1] = frames
    counts_out[2] = pictures
    counts_out[3] = life_lost
    return over


@inlined
def _is_complete(s, slot, ago):
    """Whether the log of the frame in `slot`, `ago` frames ago, gives all of its picture."""
    return is_logged(s, slot) and history.is_whole_frame(s, np.int64(ago))


@inlined
def _draw_nothing(frames):
    for which in range(2):
        frames[which, FRAME_KIND] = NO_FRAME


@kernel
def _hand_on(s, frames):
    """The last frame and the one before to `draw_thread`; returns whether they show nothing older."""
    stand_alone()
    last = np.int64(s[LOG_SLOT])
    before = (last + 2) % 3
    complete, complete_before = _is_complete(s, last, 0), _is_complete(s, before, 1)
    put_frame(s, last, complete, frames[0])
    put_frame(s, before, complete_before, frames[1])
    return complete and complete_before


@kernel
def step_thread(
    i, s, ram, first, is_retry, rom, program, settings, action_set, actions, registers, memory, past, whole, seeds, draws, sticky,
    wanted, shown, in_slot, slot_of, slot_kind, screens, captured, decisions, frames, elapsed,
    counts_out, rewards_out, terminated_out, truncated_out, over_out, counters_out, incomplete,
):  # fmt: skip
    """The frames of one step of console e = `first` + i, without pictures, or once more for those that `wanted` a slot.

    Shapes: actions [n] int64, places in action_set (a wrong one plays the nearest); past [PAST_WORDS, n]; whole [n] uint8; seeds, draws
    [3, n]; sticky [n, 625] uint32, or one row that is not used; wanted, in_slot [n] bool; shown [n] uint8, pictures to be seen; slot_of [n]
    int32; slot_kind [slots] uint8; screens [slots, 2 * height * 20], captured [slots, 3, height * 20] uint64; decisions [wave, 2]; frames
    [wave, 2, FRAME_WORDS]; counts_out [n, 4] as `engine_cpu.play_step`'s; counters_out [n, 3]: lives, frame number, episode frame number;
    incomplete [n] int32, observations that lack lines.
    """
    stand_alone()
    e = first + i
    slot = np.int64(-1)
    if is_retry == 0:
        _draw_nothing(frames[i])
        decisions[i, 0] = 0
        in_slot[e] = False
        wanted[e] = whole[e] == NOT_WHOLE and slot_of[e] >= 0
        if wanted[e]:
            return
    else:
        if not wanted[e]:
            return
        slot = np.int64(slot_of[e])
        _draw_nothing(frames[i])
    screen = screens[max(slot, np.int64(0))][: words_in(screens, slot)]
    own = captured[max(slot, np.int64(0))]
    load(e, registers, memory, s, ram)
    _forget_logs(s)
    lacks = False
    if slot >= 0:
        if whole[e] != NOT_WHOLE:
            history.recall(e, s, ram, past)
            bring_pictures(s, ram, rom, screen, own, registers[IN_SWCHA : IN_SWCHA + CONTROL_WORDS, e], np.int64(whole[e]))
            slot_kind[slot] = COMPLETE_SLOT
        elif slot_kind[slot] == NEW_SLOT:
            _forget_pictures(screen, own)
            slot_kind[slot] = LACKING_SLOT
        lacks = slot_kind[slot] == LACKING_SLOT

    history.clear(s)
    frame_limit = np.int64(settings[FRAME_LIMIT])
    place = min(max(np.int64(actions[e]), np.int64(0)), np.int64(len(action_set)) - 1)
    counts = counts_out[e]
    is_kept = _is_sticky(s)
    stream = sticky[e if is_kept else np.int64(0)][: len(sticky[0]) if is_kept else np.int64(0)]
    frames_before = np.int64(decisions[i, 0])
    over = _play(
        s, ram, screen, stream, rom, program, np.int64(action_set[place]), settings, frame_limit - elapsed[e], own, decisions[i], counts
    )
    draws[STICKY_STREAM, e] += console.DRAWS_A_FRAME * (decisions[i, 0] - frames_before)
    if slot < 0:
        if over:  # the newest observation is seen again, with the third picture in it if there is one
            complete = counts[2] == 2 or settings[MAX_POOL] == 0
        else:
            complete = _hand_on(s, frames[i])
        if not complete and is_retry == 0:
            wanted[e] = True
            return
        incomplete[e] += 0 if complete else 1
        counts[2] = 0 if over else 2
    else:
        in_slot[e] = True
        if not over:
            engine_cpu.capture_last(s, screen, own, counts)
        if lacks and (over or not history.is_whole(s)):
            incomplete[e] += 1
    shown[e] = min(counts[2], np.int32(1)) if settings[MAX_POOL] == 0 else counts[2]

    elapsed[e] += counts[1]
    reward = np.int64(counts[0])
    rewards_out[e] = min(max(reward, np.int64(-1)), np.int64(1)) if settings[CLIP] != 0 else reward
    by_life = (settings[LIFE_LOSS] != 0 or settings[EPISODIC_LIFE] != 0) and counts[3] != 0
    terminated = s[TERMINAL] != 0 or by_life
    terminated_out[e] = terminated
    truncated_out[e] = elapsed[e] >= frame_limit and not terminated
    over_out[e] = over
    _put_away(e, s, ram, screen, registers, memory, past, whole, WHOLE)
    _count(e, s, counters_out)


@kernel
def _put_away(e, s, ram, screen, registers, memory, past, whole, kind):
    """Store a console, and the beginning of its last two frames if that is all there is to know of its pictures."""
    stand_alone()
    whole[e] = NOT_WHOLE
    if history.is_whole(s):
        whole[e] = kind
        history.keep(e, s, past)
    settle(s, screen)
    store(e, s, ram, registers, memory)


@inlined
def _is_sticky(s):
    return s[STICKY_THRESHOLD] != 0 or s[STICKY_THRESHOLD + 1] != 0


@kernel
def _make_streams(e, program, seeds, draws, sticky, is_kept, streams):
    """A console's three generators into `streams` uint32 [3, 626], counted."""
    stand_alone()
    for k in range(3):
        drawn = np.int64(draws[k, e])
        if k != STICKY_STREAM or (program[rules.MODE_PROCEDURE] == rules.ADVENTURE_MODE and not is_kept):
            mt19937.restore(streams[k], np.int64(seeds[k, e]), drawn)
            continue
        # Kept whole; or its numbers decide nothing, and zeros are as good as any.
        for i in range(624):
            streams[k, i] = sticky[e, i] if is_kept else np.uint32(0)
        streams[k, 624] = sticky[e, 624] if is_kept else np.uint32(drawn % 624)
        streams[k, mt19937.RENEWALS] = np.uint32(drawn // 624 + 1)


@kernel
def _keep_streams(e, streams, draws, sticky, is_kept):
    """What `_make_streams` made, after numbers were drawn."""
    stand_alone()
    for k in range(3):
        if k != STICKY_STREAM or not is_kept:
            draws[k, e] = mt19937.position(streams[k])
    if is_kept:
        for i in range(625):
            sticky[e, i] = streams[STICKY_STREAM, i]


@kernel
def load_thread(
    e, s, ram, streams, rom, program, powered, powered_memory, loading, registers, memory, past, whole, seeds, draws, sticky, screens
):  # fmt: skip
    """loadROM on the consoles of `loading` [n] bool, whose seeds and draws are new; `powered*` are one console after power-on.

    An episode is to begin next: what pictures there are is not kept.
    """
    stand_alone()
    if loading[e] == 0:
        return
    power_on(e, s, ram, powered, powered_memory, registers)
    for k in range(3):
        mt19937.restore(streams[k], np.int64(seeds[k, e]), np.int64(draws[k, e]))
    screen = screens[0][: np.int64(0)]
    console.reset_game(s, ram, rom, screen, streams, program)
    _keep_streams(e, streams, draws, sticky, _is_sticky(s))
    history.clear(s)
    _put_away(e, s, ram, screen, registers, memory, past, whole, WHOLE)


@kernel
def restart_thread(
    i, s, ram, streams, first, rom, program, settings, over, registers, memory, past, whole, seeds, draws, sticky,
    shown, in_slot, slot_of, slot_kind, screens, captured, frames, elapsed, counters_out, incomplete,
):  # fmt: skip
    """A new episode on console `first` + i if its last one is over."""
    stand_alone()
    e = first + i
    _draw_nothing(frames[i])
    shown[e] = 0 if over[e] == 0 else 1
    if over[e] == 0:
        return
    slot = np.int64(slot_of[e])
    in_slot[e] = slot >= 0
    screen = screens[max(slot, np.int64(0))][: words_in(screens, slot)]
    load(e, registers, memory, s, ram)
    is_kept = _is_sticky(s)
    _make_streams(e, program, seeds, draws, sticky, is_kept, streams)
    history.clear(s)
    engine_cpu.begin_episode(s, ram, screen, streams, rom, program, settings[USE_FIRE] != 0, np.int64(settings[NOOP_MAX]))
    _keep_streams(e, streams, draws, sticky, is_kept)
    if slot >= 0:
        slot_kind[slot] = COMPLETE_SLOT
        engine_cpu.capture(s, screen, captured[slot, 0])
        for word in range(captured.shape[2]):
            captured[slot, 1, word] = np.uint64(0)
    else:
        last = np.int64(s[LOG_SLOT])
        complete = _is_complete(s, last, 0)
        put_frame(s, last, complete, frames[i, 0])
        incomplete[e] += 0 if complete else 1
    _put_away(e, s, ram, screen, registers, memory, past, whole, WHOLE_START)
    elapsed[e] = 0
    _count(e, s, counters_out)


@kernel
def recall_thread(
    e, streams, starts, start_memory, start_past, start_whole, start_screens, over, registers, memory, past, whole,
    seeds, draws, slot_of, slot_kind, screens, captured, chosen, elapsed, counters_out,
):  # fmt: skip
    """One of the K cached starts on console `e` if its last episode is over; drawn from its stream of no-ops.

    Shapes: starts [LASTING_WORDS, K] int32, start_memory [K, 256], start_past [PAST_WORDS, K], start_whole [K], start_screens [K or more,
    2 * height * 20], chosen [n] int32. Frame numbers and the generators stay the console's own.
    """
    stand_alone()
    if over[e] == 0:
        return
    mt19937.restore(streams[NOOP_STREAM], np.int64(seeds[NOOP_STREAM, e]), np.int64(draws[NOOP_STREAM, e]))
    k = mt19937.draw(streams[NOOP_STREAM]) % starts.shape[1]
    draws[NOOP_STREAM, e] += 1
    frame_number = registers[FRAME_NUMBER, e] + starts[EPISODE_FRAME_NUMBER, k]
    for i in range(LASTING_WORDS):
        registers[i, e] = starts[i, k]
    registers[FRAME_NUMBER, e] = frame_number
    for i in range(MEMORY_BYTES):
        memory[e, i] = start_memory[k, i]
    for i in range(past.shape[0]):
        past[i, e] = start_past[i, k]
    whole[e] = start_whole[k]
    slot = np.int64(slot_of[e])
    if slot >= 0 and whole[e] == NOT_WHOLE:
        at = np.int64(starts[PICTURE, k]) * captured.shape[2]
        for i in range(screens.shape[1]):
            screens[slot, i] = start_screens[k, i]
        for i in range(captured.shape[2]):
            captured[slot, 0, i] = start_screens[k, at + i]
            captured[slot, 1, i] = np.uint64(0)
        slot_kind[slot] = COMPLETE_SLOT
    chosen[e] = k
    elapsed[e] = 0
    counters_out[e, 0] = starts[LIVES, k]
    counters_out[e, 1] = frame_number
    counters_out[e, 2] = starts[EPISODE_FRAME_NUMBER, k]


