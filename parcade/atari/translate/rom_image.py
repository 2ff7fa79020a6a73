"""Decode the instructions of a ROM and find reachable code.

The name of an instruction is ``bank >> 12 << 16 | pc``, so code has a separate name in each bank and mirror.
"""

from typing import NamedTuple

import numpy as np

from .. import cartridge
from ..mos6507.opcodes import LENGTH, OPCODES, Opcode

MAX_INSTRUCTIONS = 8000


class Instruction(NamedTuple):
    """One instruction in the ROM."""

    name: int
    pc: int
    bank: int
    opcode: Opcode
    low: int
    high: int

    @property
    def address(self) -> int:
        """The operand as a 16-bit address."""
        return self.low | self.high << 8

    @property
    def following(self) -> int:
        """PC of the next instruction in memory."""
        return (self.pc + LENGTH[self.opcode.mode]) & 0xFFFF

    @property
    def target(self) -> int:
        """Target of a branch."""
        return (self.following + self.low - ((self.low & 0x80) << 1)) & 0xFFFF


class Image:
    """A ROM expanded by `cartridge.expand_image`, with the range that can be read without side effects.

    This range is called plain ROM.
    """

    def __init__(self, rom: np.ndarray, kind: int):
        self.rom = rom
        self.kind = kind
        self.start = int(cartridge.PLAIN_START[kind])
        self.end = 0x2000 if kind == cartridge.FE else int(cartridge.PLAIN_END[kind])

    def offset(self, address: int, bank: int, length: int = 1) -> int | None:
        """Return the ROM offset of `length` bytes at `address`; None if they are not all in plain ROM."""
        first = address & 0x1FFF
        if not self.start <= first <= first + length <= self.end:
            return None
        if self.kind == cartridge.FE:
            bank = 0 if address & 0x2000 else 4096
        return bank + (address & 0xFFF)

    def vector(self, address: int, bank: int) -> int:
        """Return the vector at `address`, in the last bytes of the ROM.

        These bytes need not be plain ROM, but reading them switches no bank.
        """
        at = (0 if self.kind == cartridge.FE else bank) + (address & 0xFFF)
        return int(self.rom[at]) | int(self.rom[at + 1]) << 8

    def switched(self, address: int, bank: int) -> int | None:
        """Return the bank mapped by an access to a known address; None if the access switches nothing."""
        offset = address & 0xFFF
        if not address & 0x1000:
            return None
        if self.kind in (cartridge.F8, cartridge.F8SC, cartridge.DPC) and 0xFF8 <= offset <= 0xFF9:
            return (offset - 0xFF8) << 12
        if self.kind in (cartridge.F6, cartridge.F6SC) and 0xFF6 <= offset <= 0xFF9:
            return (offset - 0xFF6) << 12
        if self.kind == cartridge.E0 and 0xFE0 <= offset <= 0xFF7:
            position = 12 + 3 * ((offset - 0xFE0) >> 3)
            return (bank & ~(7 << position)) | (offset & 7) << position
        return None

    def bank_after(self, instruction: Instruction) -> int:
        """Return the bank of the next instruction."""
        switched = None
        if instruction.opcode.mode == "abs" and instruction.opcode.kind in ("read", "write"):
            switched = self.switched(instruction.address, instruction.bank)
        return instruction.bank if switched is None else switched

    def instruction(self, name: int) -> Instruction | None:
        """Decode an instruction; None if its bytes are not all in plain ROM or if it halts the CPU."""
        pc, bank = name & 0xFFFF, name >> 16 << 12
        at = self.offset(pc, bank, 3)
        if at is None or int(self.rom[at]) not in OPCODES:
            return None
        opcode = OPCODES[int(self.rom[at])]
        return Instruction(name, pc, bank, opcode, int(self.rom[at + 1]), int(self.rom[at + 2]))


def find_code(image: Image, seen: list[int]) -> tuple[dict[int, Instruction], set[int]]:
    """Return the instructions reachable from the names in `seen`, and the names that are entry points.

    Entry points are the targets of RTS and of backward branches.
    """
    found: dict[int, Instruction] = {}
    entries: set[int] = set()
    todo = list(reversed(seen))
    while todo and len(found) < MAX_INSTRUCTIONS:
        name = todo.pop()
        if name in found:
            continue
        instruction = image.instruction(name)
        if instruction is None:
            continue
        found[name] = instruction
        here = name & ~0xFFFF
        mnemonic = instruction.opcode.mnemonic
        following = image.bank_after(instruction) >> 12 << 16 | instruction.following
        if mnemonic == "JSR":
            entries.add(following)
            todo += [following, here | instruction.address]
        elif mnemonic == "JMP":
            if instruction.opcode.mode == "abs":
                todo.append(here | instruction.address)
        elif instruction.opcode.kind == "branch":
            if instruction.target <= instruction.pc:
                entries.add(here | instruction.target)
            todo += [following, here | instruction.target]
        elif mnemonic not in ("RTS", "RTI", "BRK"):
            todo.append(following)
    return found, entries
