"""Find the code of a ROM that runs: play random actions on the interpreter and record every instruction.

The recompiler starts from these instructions. Much of a game's code is reached only through RTS and indirect
jumps, which cannot be followed without running the game.
"""

import numpy as np

from .. import cartridge, console, cpu6507, rules
from ..jit import CONSOLE, inlined, kernel, separate, stand_alone
from ..opcodes import MODE, MODES, OPERATION
from ..state import (
    CART_BANK,
    CART_KIND,
    CPU_JAMMED,
    CPU_PC,
    CPU_SP,
    CPU_X,
    CPU_Y,
    FRAME_ENDED,
    TERMINAL,
)

TRACED_FRAMES = 2400
HOLD_FRAMES = 4
ZPX, ZPY, ABSX, ABSY, INDX, INDY = (
    MODES.index(mode) for mode in ("zpx", "zpy", "absx", "absy", "indx", "indy")
)
SEEN, ENTERED = 1, 2  # low bits of a note; PC is in the bits above


@inlined
def _will_leave(s, memory, rom, at):
    """Whether machine code will probably exit at this instruction, or cannot know its successor."""
    opcode = rom[at]
    operation = OPERATION[opcode]
    if operation in (cpu6507.RTS, cpu6507.RTI, cpu6507.BRK) or opcode == 0x6C:
        return True
    if operation == cpu6507.PLA or operation == cpu6507.PLP:
        return s[CPU_SP] < 0x80 or s[CPU_SP] == 0xFF
    mode = MODE[opcode]
    address = np.int64(0x1000)
    if mode == ZPX or mode == ZPY:
        address = (np.int64(rom[at + 1]) + np.int64(s[CPU_X] if mode == ZPX else s[CPU_Y])) & 0xFF
    elif mode == ABSX or mode == ABSY:
        address = (np.int64(rom[at + 1]) | np.int64(rom[at + 2]) << 8) + np.int64(
            s[CPU_X] if mode == ABSX else s[CPU_Y]
        )
    elif mode == INDX:
        pointer = np.int64(rom[at + 1]) + np.int64(s[CPU_X])
        address = np.int64(memory[pointer & 0x7F]) | np.int64(memory[(pointer + 1) & 0x7F]) << 8
    elif mode == INDY:
        low = np.int64(memory[rom[at + 1] & 0x7F]) + np.int64(s[CPU_Y])
        address = low + (np.int64(memory[(rom[at + 1] + 1) & 0x7F]) << 8)
    return address & 0x1280 != 0x80 and (address & 0x1000 == 0 or address & 0xFFF >= 0xFC0)


@kernel
def trace_update(s, memory, rom, screen, notes_out):
    """Run `console.run_update` and record instructions in `notes_out` int32 [bytes of the ROM].

    A note is PC * 4 + SEEN, plus ENTERED for an entry point.
    """
    stand_alone()
    console.begin_update(s)
    kind = s[CART_KIND]
    first_plain = cartridge.PLAIN_START[kind]
    last_plain = (0x2000 if kind == cartridge.FE else cartridge.PLAIN_END[kind]) - 3
    unknown = True  # the next instruction cannot be predicted from the code
    for _ in range(console.INSTRUCTION_LIMIT):
        if s[CPU_JAMMED] != 0 or s[FRAME_ENDED] != 0:
            break
        pc = np.int64(s[CPU_PC])
        at = np.int64(s[CART_BANK]) + (pc & 0xFFF)
        if kind == cartridge.FE and pc & 0x2000 == 0:
            at += 4096
        inside = first_plain <= pc & 0x1FFF <= last_plain
        if inside:
            note = pc << 2 | SEEN
            if notes_out[at] & ~ENTERED != note:
                notes_out[at] = note
            if unknown:
                notes_out[at] |= ENTERED
        unknown = not inside or _will_leave(s, memory, rom, at)
        cpu6507.step(s, memory, rom, screen)
    console.end_update(s, screen)


@separate(f"void({CONSOLE}, int64[::1], int32[::1])")
def trace_frames(s, memory, rom, screen, random, program, actions, notes_out):
    """Start an episode and play one frame for each of `actions`."""
    stand_alone()
    console.reset_game(s, memory, rom, screen, random, program)
    for action in actions:
        console.apply_controls(s, action, console.NOOP)
        trace_update(s, memory, rom, screen, notes_out)
        rules.execute(s, memory, program, program[rules.AT_STEP])
        if s[TERMINAL] != 0:
            console.reset_game(s, memory, rom, screen, random, program)


def trace(powered: dict[str, np.ndarray], rom: np.ndarray, program: np.ndarray) -> tuple[list[int], set[int]]:
    """Play on a copy of the console in `powered`; return the names of the instructions seen and entered.

    `rom_image.py` defines names.
    """
    arrays = {name: array.copy() for name, array in powered.items()}
    s, memory, screen, random = (arrays[name][0] for name in ("state", "memory", "screen", "random"))
    notes = np.zeros(len(rom), np.int32)
    actions = np.random.default_rng(0).integers(0, 18, TRACED_FRAMES // HOLD_FRAMES).repeat(HOLD_FRAMES)
    trace_frames(s, memory, rom, screen, random, program, actions, notes)
    seen, entered = [], set()
    for at in np.flatnonzero(notes):
        pc = int(notes[at]) >> 2
        bank = 0 if s[CART_KIND] == cartridge.FE else int(at) >> 12
        seen.append(bank << 16 | pc)
        if notes[at] & ENTERED:
            entered.add(bank << 16 | pc)
    return seen, entered
