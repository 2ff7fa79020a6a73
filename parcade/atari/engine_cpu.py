"""Consoles on CPU cores: the setup of a ROM, and compiled functions on the rows of the state arrays.

`threads/rounds.py` distributes the rows over several threads.
"""

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import cartridge, console, games, joystick, mt19937, preprocess, rules
from .compiling.jit import ROWS, inlined, kernel, separate, stand_alone
from .compiling.prepare import prepare
from .primitives.simd import EVERY_WORD, differing_words
from .state import (
    CART_KIND,
    DIFFICULTY,
    EPISODE_FRAME_NUMBER,
    FRAME_NUMBER,
    LINE_WORDS,
    LIVES,
    LOGS,
    MODE,
    NOOP_STREAM,
    OBSERVED,
    PADDLE_MAX,
    PADDLE_MIN,
    PICTURE,
    RAM_BYTES,
    ROM_BOOT_DIFFICULTY,
    ROM_HEIGHT,
    ROM_HMOVE_BLANKS,
    ROM_LEFT_PADDLES,
    ROM_MAX_LINES,
    ROM_RIGHT_PADDLES,
    ROM_SWAP_PADDLES,
    ROM_SWAP_PORTS,
    ROM_YSTART,
    STICKY_STREAM,
    STICKY_THRESHOLD,
    TERMINAL,
    TIA,
    TIA_WORDS,
    allocate,
)
from .tia import chip as tia
from .translate import rom_code

# Type of the level tables, followed by `preprocess.Resize`.
RESIZE = (
    "Tuple((uint8[:, ::1], int32[::1], float32[:, ::1], int32[::1], int32[::1], float32[:, ::1], int32[::1]))"
)
# Types of captured frames, resize tables, scratch, changed lines and observations.
OBSERVING = f"uint64[:, :, ::1], {RESIZE}, float32[:, ::1], int32[::1], uint8[:, :, ::1]"
# Types of cached episode starts: state, memory, screen, captured frames and observations of K consoles.
STARTS = "Tuple((int32[:, ::1], uint8[:, ::1], uint64[:, ::1], uint64[:, :, ::1], uint8[:, :, ::1]))"

PADDLE_RANGE = (27450, 790196)


class Machine(NamedTuple):
    """A ROM ready to run: its constants, and the state of a console after power-on."""

    game: str | None
    row: dict  # the game's row of games.json, empty for an unknown ROM
    md5: str
    rom: np.ndarray  # uint8, `cartridge.expand_image`
    program: np.ndarray  # int32, `rules.compile_rules`
    powered: dict[str, np.ndarray]  # arrays of one console, `state.allocate`
    height: int
    pal: bool

    def checksum(self) -> np.ndarray:
        """Return the ROM's MD5 as saved states hold it, uint8 `[16]`."""
        return np.frombuffer(bytes.fromhex(self.md5), np.uint8).copy()

    def code_renewal(self) -> rom_code.CodeRenewal:
        """Return a renewal of the ROM's machine code, for the consoles that play it."""
        return rom_code.CodeRenewal(self.rom, int(self.powered["state"][0, CART_KIND]))


def build_machine(
    game: str | Path, repeat_action_probability: float = 0.0, rules_instead: Mapping[str, Any] | None = None
) -> Machine:
    """Load a ROM by game name or path and power on a console.

    `rules_instead` replaces keys of the game's row of `games.json`. An unknown ROM image runs without rules,
    after a warning: rewards are 0 and episodes never end.
    Errors: ValueError for an unknown game or a file that is no ROM, FileNotFoundError if the ROM is missing.
    """
    if not 0.0 <= repeat_action_probability <= 1.0:
        raise ValueError(f"repeat_action_probability={repeat_action_probability}: expected 0 to 1")
    prepare()
    image = games.read_rom(game)
    name = games.game_of_image(image)
    row = {**(games.load_games()[name] if name else {}), **(rules_instead or {})}
    if name is None:
        warnings.warn(
            f"{games.find_rom(game).name} is not a known game: "
            "it runs without rules (reward 0, episodes never end)",
            stacklevel=3,
        )
    kind = cartridge.KIND_OF_TYPE[row.get("cartridge") or cartridge.detect_type(image)]
    rom = cartridge.expand_image(image, kind)
    arrays = allocate(1, 250)
    s = arrays["state"][0]
    s[CART_KIND] = kind
    s[ROM_YSTART] = row.get("ystart", 34)
    s[ROM_HEIGHT] = row.get("height", 210)
    s[ROM_MAX_LINES] = 290
    s[ROM_HMOVE_BLANKS] = row.get("hmove_blanks", True)
    s[ROM_LEFT_PADDLES] = "left" in row.get("paddles", ())
    s[ROM_RIGHT_PADDLES] = "right" in row.get("paddles", ())
    s[ROM_SWAP_PADDLES] = row.get("swap_paddles", False)
    s[ROM_SWAP_PORTS] = row.get("swap_ports", False)
    s[ROM_BOOT_DIFFICULTY] = row.get("boot_difficulty", 0)
    s[PADDLE_MIN] = PADDLE_RANGE[0]
    s[PADDLE_MAX] = row.get("paddle_max", PADDLE_RANGE[1])
    s[MODE] = row.get("default_mode", 0)
    # ale-py stores the probability as float32 and compares it with a double, 32 random bits / 2**32.
    threshold = int(np.ceil(float(np.float32(repeat_action_probability)) * 2**32))
    s[STICKY_THRESHOLD] = threshold & 0x7FFFFFFF
    s[STICKY_THRESHOLD + 1] = threshold >> 31
    pal = bool(console.power_on(s, arrays["memory"][0], rom, arrays["screen"][0], arrays["random"][0]))
    height = row.get("height", 250 if pal else 210)
    s[ROM_HEIGHT] = height
    arrays["screen"] = np.zeros((1, 2 * height * LINE_WORDS), np.uint64)
    tia.reset(s, arrays["screen"][0])
    s[TIA + TIA_WORDS : LOGS] = 0  # of frames before the height was known; none is pending
    program = rules.compile_rules(row)
    rom_code.attach(rom, arrays, program)
    return Machine(
        game=name,
        row=row,
        md5=hashlib.md5(image, usedforsecurity=False).hexdigest(),
        rom=rom,
        program=program,
        powered=arrays,
        height=height,
        pal=pal,
    )


@inlined
def _copy(source, target_out):
    for i in range(len(source)):
        target_out[i] = source[i]


@separate(
    f"void(int64, {ROWS}, int32[:, ::1], uint8[:, ::1], uint32[:, :, ::1], "
    "uint8[::1], int32[::1], int64, int64, int64)"
)
def load_console(
    e, state, memory, screen, random, state_0, memory_0, random_0, rom, program, seed, mode, difficulty
):
    """ale-py's loadROM on console `e`: power on (copy row 0 of the arrays `*_0`), seed, and reset."""
    stand_alone()
    for i in range(state.shape[1]):
        state[e, i] = state_0[0, i]
    for i in range(memory.shape[1]):
        memory[e, i] = memory_0[0, i]
    for i in range(625):
        random[e, 0, i] = random_0[0, 0, i]
    mt19937.seed(random[e, STICKY_STREAM], seed)
    state[e, MODE] = mode
    state[e, DIFFICULTY] = difficulty
    console.reset_game(state[e], memory[e], rom, screen[e], random[e], program)


@separate(f"void(int64, {ROWS}, uint8[::1], int32[::1])")
def reset_console(e, state, memory, screen, random, rom, program):
    """ale-py's reset_game on console `e`."""
    stand_alone()
    console.reset_game(state[e], memory[e], rom, screen[e], random[e], program)


@separate(f"boolean({ROWS}, uint8[::1], int32[::1], int64[:, ::1], int64[::1], int32[::1])")
def act_many(state, memory, screen, random, rom, program, actions, paddle, rewards_out):
    """Play one frame of every console with both players' ale-py action ids, int64 [n, 2].

    paddle: `joystick.paddle_bits` of player A, int64 [n].
    Returns whether the ids are valid. If one is not, no console plays.
    """
    stand_alone()
    # NumPy's min and max of two numbers take a tenth of the time of a frame.
    for e in range(len(actions)):
        for player in range(2):
            if not 0 <= actions[e, player] <= 17:
                return False
    for e in range(len(actions)):
        rewards_out[e] = console.act(
            state[e], memory[e], rom, screen[e], random[e], program, actions[e, 0] + paddle[e], actions[e, 1]
        )
    return True


@separate("void(int32[:, ::1], uint64[:, ::1], uint64[:, ::1])")
def show_many(state, screen, pictures_out):
    """Copy every console's current frame, uint64 [n, height * 20], after drawing it if necessary."""
    stand_alone()
    words = pictures_out.shape[1]
    for e in range(len(state)):
        tia.serve(state[e], screen[e], tia.SHOW)
        at = np.int64(state[e, PICTURE]) * words
        _copy(screen[e, at : at + words], pictures_out[e])


@kernel
def capture(s, screen, picture_out):
    tia.serve(s, screen, tia.SHOW)
    at = np.int64(s[PICTURE]) * len(picture_out)
    _copy(screen[at : at + len(picture_out)], picture_out)


@kernel
def capture_changes(s, screen, captured, counts_out, changed_out):
    """Capture the last two frames and mark what has changed since the previous observation.

    changed_out: int32 [lines], as in `preprocess.observe`.
    """
    tia.serve(s, screen, tia.SHOW)
    at = np.int64(s[PICTURE]) * captured.shape[1]
    two = counts_out[2] == 3
    for line in range(len(changed_out)):
        first = line * LINE_WORDS
        shown, last = screen[at + first : at + first + LINE_WORDS], captured[0, first:]
        mask = differing_words(shown, last)
        if mask:
            _copy(shown, last)
        if two:
            earlier, before = captured[2, first : first + LINE_WORDS], captured[1, first:]
            differing = differing_words(earlier, before)
            if differing:
                _copy(earlier, before)
            mask |= differing
        changed_out[line] = mask
    counts_out[2] = 2


@separate(f"void(int64, uint8[::1], uint64[:, ::1], {RESIZE}, float32[:, ::1], int32[::1], uint8[:, ::1])")
def push(num_pictures, memory, captured, resize_table, work, changed, stack):
    """Push a new observation on a console's stack [k, bytes]: its processed frames, or its RAM.

    `resize_table` without levels selects the RAM.
    `changed` [lines]: what differs from the previous observation, as in `preprocess.observe`.
    """
    levels, column_start, column_weight, row_start, row_count, row_weight, whole = resize_table
    for k in range(stack.shape[0] - 1):
        _copy(stack[k + 1], stack[k])
    newest = stack[stack.shape[0] - 1]  # still contains the previous observation
    channels = len(levels)
    if channels == 0:
        _copy(memory[:RAM_BYTES], newest)
    for c in range(channels):
        preprocess.observe(
            captured, num_pictures, levels[c],
            column_start, column_weight, row_start, row_count, row_weight, whole,
            work, changed, channels, newest[c:],
        )  # fmt: skip


@kernel
def begin_episode(s, memory, screen, random, rom, program, fire, noop_max):
    """Start an episode as AtariVectorEnv does: reset_game, FIRE and a random number of no-ops."""
    stand_alone()
    s[OBSERVED] = 0
    noops = np.int64(0)
    if noop_max > 0:
        # libstdc++'s uniform integer: multiply, and draw again below the bias limit.
        limit = ((1 << 32) - noop_max) % noop_max
        product = mt19937.draw(random[NOOP_STREAM]) * noop_max
        while product & 0xFFFFFFFF < limit:
            product = mt19937.draw(random[NOOP_STREAM]) * noop_max
        noops = product >> 32
    # FIRE replaces one no-op. reset_game and act have a single call site each, because they are large and the
    # compiler may copy them to every call site.
    frames = max(noops, np.int64(1)) if fire else noops
    starting = True
    frame = np.int64(0)
    while starting or frame < frames:
        if starting:
            console.reset_game(s, memory, rom, screen, random, program)
            starting = False
            continue
        firing = fire and frame == 0
        action = np.int64(joystick.FIRE if firing else joystick.NOOP)
        console.act(s, memory, rom, screen, random, program, action, joystick.NOOP)
        starting = s[TERMINAL] != 0 and not firing
        frame += 1


@kernel
def play_step(
    s, memory, screen, random, rom, program,
    action, frame_skip, frames_left, episodic_life, captured, counts_out,
):  # fmt: skip
    """Play the frames of one step, or fewer if the episode ends; return whether the episode is over.

    Captures the second-to-last frame. If the episode is not over, the caller must call `capture_changes`.
    captured: uint64 [3, height * 20]. counts_out: int32 [4], the reward, the frames played, the number of
    rows of `captured` in the observation, and whether a life was lost. With an empty `screen`, nothing is
    drawn or captured.
    """
    stand_alone()
    draws = len(screen) > 0
    lives = s[LIVES]
    reward = np.int64(0)
    frames = np.int64(0)
    life_lost = False
    over = False
    # Rows of `captured` to pool: ale-py's buffers 0 and 1, and a new buffer 1 after an early stop.
    pictures = 2
    for skip in range(frame_skip, 0, -1):
        s[OBSERVED] = 1 if draws and skip <= 2 else 0
        reward += console.act(s, memory, rom, screen, random, program, action, joystick.NOOP)
        frames += 1
        life_lost = s[LIVES] < lives and s[LIVES] > 0
        over = s[TERMINAL] != 0 or frames >= frames_left or (episodic_life and life_lost)
        if over:
            break
        if draws and skip == 2:
            # ale-py's buffer 0 still holds the maximum of the previous step's two frames: keep rows 0 and 1.
            capture(s, screen, captured[2])
            pictures = 3
    s[OBSERVED] = 0
    counts_out[0] = reward
    counts_out[1] = frames
    counts_out[2] = pictures
    counts_out[3] = life_lost
    return over


@kernel
def _recall_start(s, memory, screen, stream, starts, captured, observation):
    """Continue from a random one of `starts`; count its frames as if they had been played."""
    stand_alone()
    start_state, start_memory, start_screen, start_captured, start_observations = starts
    which = mt19937.draw(stream) % len(start_state)
    frame_number = s[FRAME_NUMBER]
    _copy(start_state[which], s)
    s[FRAME_NUMBER] = frame_number + s[EPISODE_FRAME_NUMBER]
    _copy(start_memory[which], memory)
    _copy(start_screen[which], screen)
    for k in range(captured.shape[0]):
        _copy(start_captured[which, k], captured[k])
    for k in range(observation.shape[0]):
        _copy(start_observations[which, k], observation[k])


@separate(f"void(int64, int32[:, ::1], uint8[:, ::1], uint64[:, ::1], {OBSERVING})")
def begin_stack(e, state, memory, screen, captured, resize_table, work, changed, observations):
    """Observe console `e` at the start of an episode: a stack that holds only its current frame."""
    stand_alone()
    for k in range(observations.shape[1]):
        for i in range(observations.shape[2]):
            observations[e, k, i] = np.uint8(0)
    if screen.shape[1] > 0:
        capture(state[e], screen[e], captured[e, 0])
        for i in range(captured.shape[2]):
            captured[e, 1, i] = np.uint64(0)
        changed[:] = EVERY_WORD
    push(1, memory[e], captured[e], resize_table, work, changed, observations[e])


@separate(f"void(int64, {ROWS}, uint8[::1], int32[::1], boolean, int64, {STARTS}, {OBSERVING}, int32[::1])")
def start_episode(
    e, state, memory, screen, random, rom, program, fire, noop_max, starts,
    captured, resize_table, work, changed, observations, elapsed,
):  # fmt: skip
    """Reset as AtariVectorEnv does, with an empty frame stack; or load one of `starts`, if there are any."""
    stand_alone()
    elapsed[e] = 0
    if len(starts[0]) > 0:
        _recall_start(
            state[e], memory[e], screen[e], random[e, NOOP_STREAM], starts, captured[e], observations[e]
        )
        return
    begin_episode(state[e], memory[e], screen[e], random[e], rom, program, fire, noop_max)
    begin_stack(e, state, memory, screen, captured, resize_table, work, changed, observations)
