"""Disassemble a ROM: code as instructions of `mos6507/opcodes.py`, everything else as bytes.

Code is everything reachable from the reset vector of any bank through branches, jumps and subroutine calls.
Code that is reached only through a pointer is not found and is listed as bytes.
"""

from collections.abc import Iterator

from .. import cartridge, games
from ..mos6507.opcodes import LENGTH
from ..tia import writes as tia_writes
from .rom_image import Image, Instruction, find_code

BYTES_A_LINE = 8
RIOT_NAMES = {
    0x280: "SWCHA", 0x281: "SWACNT", 0x282: "SWCHB", 0x283: "SWBCNT", 0x284: "INTIM", 0x285: "TIMINT",
    0x294: "TIM1T", 0x295: "TIM8T", 0x296: "TIM64T", 0x297: "T1024T",
}  # fmt: skip
READ_NAMES = (
    "CXM0P", "CXM1P", "CXP0FB", "CXP1FB", "CXM0FB", "CXM1FB", "CXBLPF", "CXPPMM",
    "INPT0", "INPT1", "INPT2", "INPT3", "INPT4", "INPT5",
)  # fmt: skip
WRITE_NAMES = {
    value: name for name, value in vars(tia_writes).items()
    if name.isupper() and isinstance(value, int)
    and name[:2] in ("VS", "VB", "WS", "RS", "NU", "CO", "CT", "RE", "PF", "GR", "EN", "HM", "VD", "CX")
    and "_" not in name
}  # fmt: skip
FORMATS = {
    "imp": "", "acc": "A", "imm": "#{}", "zp": "{}", "zpx": "{},X", "zpy": "{},Y",
    "abs": "{}", "absx": "{},X", "absy": "{},Y", "ind": "({})", "indx": "({},X)", "indy": "({}),Y",
    "rel": "{}",
}  # fmt: skip


def listing(image: bytes) -> Iterator[str]:
    """Yield the lines of a ROM's listing: bank, address, bytes, instruction."""
    name = games.game_of_image(image)
    row = games.load_games()[name] if name else {}
    type_name = row.get("cartridge") or cartridge.detect_type(image)
    kind = cartridge.KIND_OF_TYPE[type_name]
    yield f"; {name or 'unknown ROM'}, {len(image)} bytes, cartridge {type_name}"
    if kind == cartridge.E0:
        # Slices are mapped independently; at power-on, slices 4, 5, 6 and 7 are mapped.
        rom, kind = (
            cartridge.expand_image(image[4096:8192].ljust(4096, b"\0"), cartridge.PLAIN),
            cartridge.PLAIN,
        )
        yield "; slices 4 to 7, which are mapped at the start"
    else:
        rom = cartridge.expand_image(image, kind)
    whole = Image(rom, kind)
    size = {
        cartridge.F8: 2,
        cartridge.F8SC: 2,
        cartridge.F6: 4,
        cartridge.F6SC: 4,
        cartridge.FE: 2,
        cartridge.DPC: 2,
    }.get(kind, 1)
    for bank in range(size):
        yield from _bank(whole, bank)


def _bank(image: Image, bank: int) -> Iterator[str]:
    at = bank << 12
    vector = int(image.rom[at + 0xFFC]) | int(image.rom[at + 0xFFD]) << 8
    if image.kind == cartridge.FE:  # bit 13 of the address picks the half
        origin, name = (0xF000, 0xD000)[bank], 0
        code, _ = find_code(image, [vector])
        here = [one for one in code.values() if one.pc & 0x2000 == origin & 0x2000]
    else:
        origin, name = vector & 0xE000 | 0x1000, bank << 16
        code, _ = find_code(image, [name | vector])
        here = list(code.values())
    found = {instruction.pc & 0xFFF: instruction for instruction in here}
    yield ""
    yield f"; bank {bank}, starts at ${vector:04X}"
    offset, data = 0, []
    while offset < 0x1000:
        instruction = found.get(offset)
        if instruction is None:
            data.append(int(image.rom[at + offset]))
            offset += 1
        if data and (instruction is not None or len(data) == BYTES_A_LINE or offset == 0x1000):
            start = offset - len(data)
            yield f"{origin | start:04X}  {'':10}.byte {', '.join(f'${byte:02X}' for byte in data)}"
            data = []
        if instruction is not None:
            length = LENGTH[instruction.opcode.mode]
            raw = " ".join(f"{int(image.rom[at + offset + k]):02X}" for k in range(length))
            yield f"{origin | offset:04X}  {raw:10}{text(instruction)}"
            offset += length


def text(instruction: Instruction) -> str:
    """Return an instruction in assembly language, with chip registers by name."""
    mode = instruction.opcode.mode
    if mode == "rel":
        operand = f"${instruction.target:04X}"
    elif mode == "imm":
        operand = f"${instruction.low:02X}"
    elif LENGTH[mode] == 2:
        operand = _place(instruction, instruction.low, 2)
    else:
        operand = _place(instruction, instruction.address, 4)
    mark = " ; undocumented" if instruction.opcode.undocumented else ""
    return f"{instruction.opcode.mnemonic} {FORMATS[mode].format(operand)}".rstrip() + mark


def _place(instruction: Instruction, address: int, digits: int) -> str:
    kind = instruction.opcode.kind
    if address < 0x40 and kind == "write" and address in WRITE_NAMES:
        return WRITE_NAMES[address]
    if kind == "read" and (address < len(READ_NAMES) or 0x30 <= address < 0x30 + len(READ_NAMES)):
        return READ_NAMES[address & 0x0F]
    return RIOT_NAMES.get(address, f"${address:0{digits}X}")
