"""Notes of the instructions that the interpreter runs, from which a ROM is translated.

An expanded ROM image (`cartridge.expand_image`) is followed by one note per byte: the flags SEEN and ENTERED,
and above them the highest three bits of PC, because code has a different name in each mirror. The interpreter
notes every instruction, so the notes also show the code that a translation lacks. After the notes follows the
number of instructions noted: what the lack costs.
"""

import numpy as np

from .. import cartridge
from ..compiling.jit import inlined, kernel, stand_alone
from ..mos6507.opcodes import MODE, MODES, OPERATION, OPERATIONS
from ..primitives.atomics import add_to_bytes
from ..primitives.warp import on_gpu
from ..state import CART_BANK, CART_KIND, CPU_PC, CPU_SP, CPU_X, CPU_Y

SEEN, ENTERED = 1, 2
MIRROR_SHIFT = 2  # of the highest three bits of PC in a note
PLA, PLP, RTS, RTI, BRK = (OPERATIONS.index(name) for name in ("PLA", "PLP", "RTS", "RTI", "BRK"))
ZPX, ZPY, ABSX, ABSY, INDX, INDY = (
    MODES.index(mode) for mode in ("zpx", "zpy", "absx", "absy", "indx", "indy")
)
JUMP_BY_POINTER = 0x6C
ROM_SELECTED = 0x1000  # the bit of an address that selects the cartridge


@inlined
def _offset(s, pc):
    """Return the offset in the ROM of the instruction at `pc`, or -1 if it is not in plain ROM."""
    kind = s[CART_KIND]
    last = (0x2000 if kind == cartridge.FE else cartridge.PLAIN_END[kind]) - 3
    if not cartridge.PLAIN_START[kind] <= pc & 0x1FFF <= last:
        return np.int64(-1)
    at = np.int64(s[CART_BANK]) + (pc & 0xFFF)
    return at + 4096 if kind == cartridge.FE and pc & 0x2000 == 0 else at


@inlined
def _will_leave(s, memory, rom, at):
    """Whether machine code will probably exit at this instruction, or cannot know its successor."""
    opcode = rom[at]
    operation = OPERATION[opcode]
    if operation == RTS or operation == RTI or operation == BRK or opcode == JUMP_BY_POINTER:
        return True
    if operation == PLA or operation == PLP:
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


@inlined
def take_note(s, memory, rom, unknown):
    """Note the next instruction; return 1, or 0 outside plain ROM, and whether its successor is unknown.

    `unknown`: the previous instruction did not tell that this one follows, so machine code must be able to
    begin here. On a GPU nothing is noted.
    """
    if on_gpu() or s[CPU_PC] & ROM_SELECTED == 0:
        return 0, True
    return _note(s, memory, rom, unknown)


@kernel
def _note(s, memory, rom, unknown):
    """See `take_note`, for an instruction of the cartridge."""
    stand_alone()
    pc = np.int64(s[CPU_PC])
    at = _offset(s, pc)
    if at < 0:
        return 0, True
    note = (pc >> 13) << MIRROR_SHIFT | SEEN
    here = (len(rom) - cartridge.RESERVED_BYTES >> 1) + at
    if np.int64(rom[here]) & ~ENTERED != note:
        rom[here] = note
    if unknown:
        rom[here] |= ENTERED
    return 1, _will_leave(s, memory, rom, at)


@inlined
def count_notes(rom, number):
    """Add to the number of instructions noted."""
    add_to_bytes(rom, len(rom) - cartridge.RESERVED_BYTES, number)


def notes_of(rom: np.ndarray) -> np.ndarray:
    """Return a view of an expanded image's notes, uint8 [bytes of the image]."""
    size = cartridge.image_size(rom)
    return rom[size : 2 * size]


def number_noted(rom: np.ndarray) -> np.ndarray:
    """Return a view of the number of instructions noted, int64 [1]."""
    at = len(rom) - cartridge.RESERVED_BYTES
    return rom[at : at + 8].view(np.int64)


def named(notes: np.ndarray, kind: int) -> tuple[list[int], set[int]]:
    """Return the names (`rom_image.py`) of the instructions seen, and of those entered."""
    seen, entered = [], set()
    for at in np.flatnonzero(notes):
        pc = int(notes[at]) >> MIRROR_SHIFT << 13 | 0x1000 | int(at) & 0xFFF
        name = (0 if kind == cartridge.FE else int(at) >> 12) << 16 | pc
        seen.append(name)
        if notes[at] & ENTERED:
            entered.add(name)
    return seen, entered
