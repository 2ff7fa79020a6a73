"""Find the code of a ROM that runs: play random actions on the interpreter, which notes every instruction.

The recompiler starts from these instructions. Much of a game's code is reached only through RTS and indirect
jumps, which cannot be followed without running the game.
"""

import numpy as np

from .. import console, joystick, rule_machine, rules
from ..compiling.jit import CONSOLE, kernel, separate, stand_alone
from ..mos6507 import interpreter
from ..state import CPU_JAMMED, FRAME_ENDED, TERMINAL
from .notes import notes_of, take_note

TRACED_FRAMES = 2400
HOLD_FRAMES = 4


@kernel
def trace_update(s, memory, rom, screen):
    """Run `console.run_update` on the interpreter alone, and note every instruction."""
    stand_alone()
    console.begin_update(s)
    unknown = True  # the next instruction cannot be predicted from the code
    for _ in range(console.INSTRUCTION_LIMIT):
        if s[CPU_JAMMED] != 0 or s[FRAME_ENDED] != 0:
            break
        _, unknown = take_note(s, memory, rom, unknown)
        interpreter.step(s, memory, rom, screen)
    console.end_update(s, screen)


@separate(f"void({CONSOLE}, int64[::1])")
def trace_frames(s, memory, rom, screen, random, program, actions):
    """Start an episode and play one frame for each of `actions`."""
    stand_alone()
    console.reset_game(s, memory, rom, screen, random, program)
    for action in actions:
        console.apply_controls(s, action, joystick.NOOP)
        trace_update(s, memory, rom, screen)
        rule_machine.execute(s, memory, program, program[rules.AT_STEP])
        if s[TERMINAL] != 0:
            console.reset_game(s, memory, rom, screen, random, program)


def trace(powered: dict[str, np.ndarray], rom: np.ndarray, program: np.ndarray) -> np.ndarray:
    """Play on a copy of the console in `powered`; return the notes, uint8 [bytes of the image]."""
    arrays = {name: array.copy() for name, array in powered.items()}
    rom = rom.copy()
    notes = notes_of(rom)
    notes[:] = 0
    s, memory, screen, random = (arrays[name][0] for name in ("state", "memory", "screen", "random"))
    actions = np.random.default_rng(0).integers(0, 18, TRACED_FRAMES // HOLD_FRAMES).repeat(HOLD_FRAMES)
    trace_frames(s, memory, rom, screen, random, program, actions)
    return notes.copy()
