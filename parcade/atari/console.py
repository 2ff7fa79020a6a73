"""The console and the arcade around it: frames, controls, power-on, reset and act.

`run_update` runs the 6507 until a frame ends or 25,000 instructions have executed; either counts as one
frame. Resets and actions follow ale-py 0.12.1, including the order of its random draws: 60 frames without
input, 4 with the RESET switch held, the game's mode selection, 4 more frames with RESET held, then the game's
starting actions. RIOT RAM survives a reset and every reset draws a new timer value, so episodes differ.
"""

import numpy as np

from . import bus, cartridge, mt19937, riot, rule_machine, rules
from .compiling.jit import CHIPS, CONSOLE, inlined, kernel, separate, stand_alone
from .joystick import (
    ACTION_BITS,
    ACTION_ID,
    DOWN,
    JOYSTICK,
    LEFT,
    NOOP,
    PADDLE_STEP,
    RIGHT,
    UPFIRE,
)
from .mos6507 import interpreter
from .state import (
    ACTION,
    ACTION_B,
    CHARGE_AT_ONCE,
    CHARGE_NEVER,
    CPU_JAMMED,
    CYCLES,
    DIFFICULTY,
    DPC_MARK_CYCLE,
    DUMP,
    DUMP_OFF_CYCLE,
    EPISODE_FRAME_NUMBER,
    FRAME_ENDED,
    FRAME_NUMBER,
    FRAME_START,
    FRAMES_ALLOWED,
    IN_CHARGE,
    IN_INPT4,
    IN_INPT5,
    IN_SWCHA,
    IN_SWCHB,
    LINE_LIMIT,
    MODE,
    PADDLE_A,
    PADDLE_B,
    PADDLE_MAX,
    PADDLE_MIN,
    PARTIAL,
    PRESSED_RESET,
    PRESSED_SELECT,
    REWARD,
    RIOT_READ_CYCLE,
    RIOT_SET_CYCLE,
    ROM_BOOT_DIFFICULTY,
    ROM_LEFT_PADDLES,
    ROM_MAX_LINES,
    ROM_PAL,
    ROM_RIGHT_PADDLES,
    ROM_SWAP_PADDLES,
    ROM_SWAP_PORTS,
    SCANLINES,
    STICKY_STREAM,
    STICKY_THRESHOLD,
    SYSTEM_STREAM,
    TERMINAL,
    VSYNC_FINISH,
)
from .tia import chip as tia

INSTRUCTION_LIMIT = 25000  # per call of `run_update`
SYSTEM_SEED = 4753849
DETECTION_FRAMES = 60
PAL_SCANLINES = 285  # a frame with more scanlines is a vote for PAL
# Limits that avoid a hang with a ROM that never shows the mode. Menus miss many keys if most actions repeat
# the previous one.
MOST_PRESSES = 1000  # of the switch SELECT
MOST_KEYS = 10_000

RESET_ACTION = 40


# --- frames -------------------------------------------------------------------------------------------------


@kernel
def _start_frame(s):
    """Restart the counts of cycles and clocks at 0; keep the phase within the scanline."""
    stand_alone()
    cycles = np.int64(s[CYCLES])
    phase = (3 * cycles - np.int64(s[FRAME_START])) % 228
    s[RIOT_SET_CYCLE] -= cycles
    s[RIOT_READ_CYCLE] -= cycles
    s[DUMP_OFF_CYCLE] -= cycles
    s[DPC_MARK_CYCLE] -= cycles
    s[VSYNC_FINISH] -= 3 * cycles
    s[CYCLES] = 0
    s[FRAME_START] = -phase
    s[LINE_LIMIT] = -phase + 228 * (np.int64(s[ROM_MAX_LINES]) + 1)
    tia.start_frame(s, cycles, np.int64(s[SCANLINES] & 1 if s[ROM_PAL] != 0 else 0))


@inlined
def begin_update(s):
    """Continue the frame that the last update left unfinished, or start a new one."""
    if s[PARTIAL] == 0:
        _start_frame(s)
    s[PARTIAL] = 1
    s[FRAME_ENDED] = 0


@inlined
def end_update(s, screen):
    """Count the scanlines, and close the frame if it has ended."""
    s[SCANLINES] = (3 * np.int64(s[CYCLES]) - np.int64(s[FRAME_START])) // 228
    if s[FRAME_ENDED] != 0:
        s[PARTIAL] = 0
        tia.serve(s, screen, tia.END_FRAME)


@separate(f"void({CHIPS})")
def run_update(s, memory, rom, screen):
    """Run to the end of the frame, but at most 25,000 instructions."""
    stand_alone()
    begin_update(s)
    if s[CPU_JAMMED] == 0:
        interpreter.run(s, memory, rom, screen, INSTRUCTION_LIMIT)
    end_update(s, screen)


# --- controls -----------------------------------------------------------------------------------------------


@kernel
def _charge_cycles(resistance):
    """Return the cycles until a paddle's capacitor is charged."""
    stand_alone()
    return np.int64((1.6 * resistance * 0.01e-6) * 1.19e6)


@kernel
def _set_switches(s, difficulty):
    stand_alone()
    switches = 0x3F | (difficulty & 1) << 6 | (difficulty & 2) << 6
    if s[PRESSED_RESET] != 0:
        switches &= ~0x01
    if s[PRESSED_SELECT] != 0:
        switches &= ~0x02
    s[IN_SWCHB] = switches


@inlined
def _turn_paddle(s, paddle, keys, step):
    """Move the paddle in word `paddle` by `step` with the left and right keys; return its charge cycles."""
    resistance = np.int64(s[paddle])
    if keys & 8:
        resistance -= step
    if keys & 4:
        resistance += step
    resistance = min(max(resistance, np.int64(s[PADDLE_MIN])), np.int64(s[PADDLE_MAX]))
    s[paddle] = resistance
    return _charge_cycles(resistance)


@separate("void(int32[::1], int64, int64)")
def apply_controls(s, action, action_b):
    """Set the chips' inputs from the players' actions (`joystick.py`) and the console switches.

    Joysticks: player A has the left port (SWCHA bits 4-7, INPT4), player B the right port (SWCHA bits 0-3,
    INPT5). Paddles: both are in the left port, player A's with INPT0 and the button SWCHA bit 7, player B's
    with INPT1 and bit 6. `ROM_SWAP_PORTS` and `ROM_SWAP_PADDLES` exchange the players.
    """
    stand_alone()
    swap = s[ROM_SWAP_PADDLES] != 0 or s[ROM_SWAP_PORTS] != 0
    # Keys of the left joystick or paddle, and the right, and how far they turn a paddle.
    left, right = JOYSTICK[action & ACTION_ID], JOYSTICK[action_b & ACTION_ID]
    step_left, step_right = PADDLE_STEP - (action >> ACTION_BITS), PADDLE_STEP - (action_b >> ACTION_BITS)
    if swap:
        left, right = right, left
        step_left, step_right = step_right, step_left
    port_a = np.int64(0xFF)
    s[IN_INPT4] = 0x80
    s[IN_INPT5] = 0x80
    for i in range(4):
        s[IN_CHARGE + i] = CHARGE_NEVER
    if s[ROM_LEFT_PADDLES] != 0 or s[ROM_RIGHT_PADDLES] != 0:
        charge_left = _turn_paddle(s, PADDLE_B if swap else PADDLE_A, left, step_left)
        charge_right = _turn_paddle(s, PADDLE_A if swap else PADDLE_B, right, step_right)
        if s[ROM_LEFT_PADDLES] != 0:
            s[IN_CHARGE] = charge_left
            s[IN_CHARGE + 1] = charge_right
            if left & 16:
                port_a &= ~0x80
            if right & 16:
                port_a &= ~0x40
        if s[ROM_RIGHT_PADDLES] != 0:
            s[IN_CHARGE + 2] = CHARGE_AT_ONCE
            s[IN_CHARGE + 3] = CHARGE_AT_ONCE
    else:
        port_a &= ~((left & 15) << 4 | right & 15)
        if left & 16:
            s[IN_INPT4] = 0
        if right & 16:
            s[IN_INPT5] = 0
    s[IN_SWCHA] = port_a
    _set_switches(s, np.int64(s[DIFFICULTY]))


# --- power-on and system reset ------------------------------------------------------------------------------


@separate(f"void({CHIPS}, uint32[:, ::1])")
def system_reset(s, memory, rom, screen, random):
    """Reset every chip. RIOT RAM is kept, and a new timer value is drawn."""
    stand_alone()
    s[CYCLES] = 0
    s[FRAME_START] = 0
    s[VSYNC_FINISH] = bus.VSYNC_NEVER
    s[LINE_LIMIT] = 228 * (np.int64(s[ROM_MAX_LINES]) + 1)
    s[SCANLINES] = 0
    s[DUMP] = 0
    s[DUMP_OFF_CYCLE] = 0
    riot.reset(s, random[SYSTEM_STREAM])
    tia.reset(s, screen)
    cartridge.reset(s, memory, random[SYSTEM_STREAM])
    interpreter.reset(s, memory, rom, screen)


@separate(f"boolean({CHIPS}, uint32[:, ::1])")
def power_on(s, memory, rom, screen, random):
    """Power on: fill RAM, run 60 frames to detect PAL or NTSC, reset. Return whether the console is PAL."""
    stand_alone()
    mt19937.seed(random[SYSTEM_STREAM], SYSTEM_SEED)
    riot.fill_ram(memory, random[SYSTEM_STREAM])
    cartridge.power_on(s)
    riot.reset(s, random[SYSTEM_STREAM])
    system_reset(s, memory, rom, screen, random)
    s[PARTIAL] = 0
    s[IN_SWCHA] = 0xFF
    s[IN_INPT4] = 0x80
    s[IN_INPT5] = 0x80
    for i in range(4):
        paddles = s[ROM_LEFT_PADDLES] if i < 2 else s[ROM_RIGHT_PADDLES]
        s[IN_CHARGE + i] = CHARGE_AT_ONCE if paddles != 0 else CHARGE_NEVER
    _set_switches(s, np.int64(s[ROM_BOOT_DIFFICULTY]))
    votes = 0
    for frame in range(DETECTION_FRAMES):
        run_update(s, memory, rom, screen)
        if frame >= 30 and s[SCANLINES] > PAL_SCANLINES:
            votes += 1
    pal = votes >= 15
    s[ROM_PAL] = 1 if pal else 0
    s[ROM_MAX_LINES] = 342 if pal else 290
    system_reset(s, memory, rom, screen, random)
    return pal


# --- reset and act ------------------------------------------------------------------------------------------


@kernel
def _frame_with_rules(s, memory, rom, screen, program, action, action_b):
    stand_alone()
    apply_controls(s, action, action_b)
    run_update(s, memory, rom, screen)
    rule_machine.execute(s, memory, program, program[rules.AT_STEP])


@kernel
def repeats(s, stream):
    """Return whether a player's previous action replaces the new one; draws from the sticky `stream`."""
    stand_alone()
    threshold = np.int64(s[STICKY_THRESHOLD + 1]) << 31 | np.int64(s[STICKY_THRESHOLD])
    return mt19937.draw(stream) < threshold


@inlined
def _legal(program, action):
    """Return `action`, or NOOP if the game has no such action."""
    key = action & ACTION_ID
    illegal = key > 17 or (program[rules.FIRE_ILLEGAL] != 0 and JOYSTICK[key] & 16)
    return np.int64(NOOP) if illegal else action


@separate(f"int64({CHIPS}, int32[::1])")
def play_frame(s, memory, rom, screen, program):
    """Play one frame with the actions in `s[ACTION]` and `s[ACTION_B]`; return the reward."""
    stand_alone()
    action = _legal(program, np.int64(s[ACTION]))
    action_b = _legal(program, np.int64(s[ACTION_B]))
    _frame_with_rules(s, memory, rom, screen, program, action, action_b)
    s[FRAME_NUMBER] += 1
    s[EPISODE_FRAME_NUMBER] += 1
    return np.int64(s[REWARD])


@inlined
def _is_over(s):
    """Return whether the episode has ended, or has reached its limit of frames."""
    return s[TERMINAL] != 0 or 0 < s[FRAMES_ALLOWED] <= s[EPISODE_FRAME_NUMBER]


@separate(f"int64({CONSOLE}, int64, int64)")
def act(s, memory, rom, screen, random, program, action, action_b):
    """Play one frame with two players' actions, each possibly replaced by the player's previous one.

    Returns the reward, which is player A's. Every call draws two numbers from the sticky stream, one for each
    player: also when no action repeats, and after the episode has ended, when no frame runs. Neither does one
    at the limit of frames, also if that comes during a reset, which selects some games' modes by actions.
    """
    stand_alone()
    if not repeats(s, random[STICKY_STREAM]):
        s[ACTION] = action
    if not repeats(s, random[STICKY_STREAM]):
        s[ACTION_B] = action_b
    if _is_over(s):
        return np.int64(0)
    return play_frame(s, memory, rom, screen, program)


@kernel
def _soft_reset(s, memory, rom, screen, program):
    """Hold the RESET switch for 4 frames."""
    stand_alone()
    s[PRESSED_RESET] = 1
    for _ in range(4):
        _frame_with_rules(s, memory, rom, screen, program, NOOP, NOOP)
    s[PRESSED_RESET] = 0
    s[ACTION] = NOOP
    s[ACTION_B] = NOOP


@kernel
def _press_select(s, memory, rom, screen, program, frames):
    """Hold SELECT for `frames` frames without applying the game rules, then play one frame without input."""
    stand_alone()
    s[PRESSED_SELECT] = 1
    for _ in range(frames):
        apply_controls(s, NOOP, NOOP)
        run_update(s, memory, rom, screen)
    s[PRESSED_SELECT] = 0
    _frame_with_rules(s, memory, rom, screen, program, NOOP, NOOP)
    s[FRAME_NUMBER] += 1
    s[EPISODE_FRAME_NUMBER] += 1


@kernel
def _mode_reached(s, memory, program):
    stand_alone()
    return rule_machine.execute(s, memory, program, program[rules.AT_UNTIL]) != 0


@kernel
def _select_mode(s, memory, rom, screen, random, program):
    """Press SELECT until the game shows the requested mode, by the procedure in the game's row."""
    stand_alone()
    procedure = program[rules.MODE_PROCEDURE]
    if procedure == rules.DOUBLE_DUNK_MODE:
        _select_double_dunk(s, memory, rom, screen, random, program)
        return
    if procedure == rules.VIDEO_CUBE_MODE:
        _select_video_cube(s, memory, rom, screen, random, program)
        return
    if procedure == rules.BERZERK_MODE:
        for _ in range(20):
            act(s, memory, rom, screen, random, program, NOOP, NOOP)
    if program[rules.SOFT_RESET_FIRST] != 0:
        _soft_reset(s, memory, rom, screen, program)
    if program[rules.SELECT_FIRST] != 0:
        _press_select(s, memory, rom, screen, program, np.int64(program[rules.SELECT_FIRST]))
    for _ in range(MOST_PRESSES):
        if _mode_reached(s, memory, program):
            break
        if procedure == rules.ADVENTURE_MODE:
            frames = 2 + (mt19937.draw(random[STICKY_STREAM]) & 0xFF)
            _press_select(s, memory, rom, screen, program, frames)
            act(s, memory, rom, screen, random, program, NOOP, NOOP)
        else:
            _press_select(s, memory, rom, screen, program, np.int64(program[rules.SELECT_FRAMES]))
    rule_machine.execute(s, memory, program, program[rules.AT_AFTER_MODE])
    _soft_reset(s, memory, rom, screen, program)


@kernel
def _cursor_down(s, memory, rom, screen, random, program):
    """Press DOWN in Double Dunk's menu until the cursor byte $B0 changes."""
    stand_alone()
    before = memory[0x30]
    for _ in range(MOST_KEYS):
        act(s, memory, rom, screen, random, program, DOWN, NOOP)
        act(s, memory, rom, screen, random, program, NOOP, NOOP)
        if memory[0x30] != before:
            break


@kernel
def _set_option(s, memory, rom, screen, random, program, bit, wanted):
    """Press RIGHT or LEFT in Double Dunk's menu until the option with this bit of $80 is `wanted`, 0 or 1."""
    stand_alone()
    for _ in range(MOST_KEYS):
        if (1 if memory[0x00] & bit else 0) == wanted:
            break
        act(s, memory, rom, screen, random, program, RIGHT if wanted else LEFT, NOOP)
        act(s, memory, rom, screen, random, program, NOOP, NOOP)


@kernel
def _select_double_dunk(s, memory, rom, screen, random, program):
    """Select Double Dunk's mode: four bits set one menu option each, and bit 4 selects two players."""
    stand_alone()
    _press_select(s, memory, rom, screen, program, np.int64(1))
    if s[MODE] & 16:
        _set_option(s, memory, rom, screen, random, program, np.int64(0x40), 1)
    _cursor_down(s, memory, rom, screen, random, program)
    _cursor_down(s, memory, rom, screen, random, program)
    for option in range(4):
        if option > 0:
            _cursor_down(s, memory, rom, screen, random, program)
        bit = np.int64(0x08 if option == 0 else 0x10 if option == 1 else 0x04 if option == 2 else 0x20)
        _set_option(s, memory, rom, screen, random, program, bit, s[MODE] >> option & 1)
    _soft_reset(s, memory, rom, screen, program)
    act(s, memory, rom, screen, random, program, UPFIRE, NOOP)
    act(s, memory, rom, screen, random, program, NOOP, NOOP)


@kernel
def _select_video_cube(s, memory, rom, screen, random, program):
    """Select Video Cube's mode, which is 100 * cube + variant."""
    stand_alone()
    variant = s[MODE] % 100
    shown = 0 if variant == 0 else 2 if variant == 1 else 8
    for _ in range(MOST_PRESSES):
        if memory[0x7B] & 0x1F == shown:
            break
        _press_select(s, memory, rom, screen, program, np.int64(2))
    _soft_reset(s, memory, rom, screen, program)
    if s[MODE] >= 100:
        cube = s[MODE] // 100
        for _ in range(MOST_KEYS):
            if 10 * np.int64(memory[0x1F] >> 4) + np.int64(memory[0x1F] & 15) == cube:
                break
            act(s, memory, rom, screen, random, program, RIGHT, NOOP)


@separate(f"void({CONSOLE})")
def reset_game(s, memory, rom, screen, random, program):
    """Start a new episode exactly as ale-py's reset_game does."""
    stand_alone()
    s[EPISODE_FRAME_NUMBER] = 0
    s[PRESSED_SELECT] = 0
    s[PRESSED_RESET] = 0
    s[PADDLE_A] = (np.int64(s[PADDLE_MIN]) + np.int64(s[PADDLE_MAX])) // 2
    s[PADDLE_B] = s[PADDLE_A]
    system_reset(s, memory, rom, screen, random)
    for _ in range(60):
        _frame_with_rules(s, memory, rom, screen, program, NOOP, NOOP)
    _soft_reset(s, memory, rom, screen, program)
    rule_machine.execute(s, memory, program, program[rules.AT_RESET])
    if program[rules.MODE_PROCEDURE] != rules.NO_MODES:
        _select_mode(s, memory, rom, screen, random, program)
    _soft_reset(s, memory, rom, screen, program)
    for i in range(program[rules.NUM_STARTS]):
        action = np.int64(program[program[rules.START_AT] + i])
        s[PRESSED_RESET] = 1 if action == RESET_ACTION else 0
        if action == RESET_ACTION:
            action = np.int64(NOOP)
        _frame_with_rules(s, memory, rom, screen, program, action, NOOP)
        s[PRESSED_RESET] = 0
