"""A ROM's code as straight machine code: 6507 instructions translated to LLVM's language, one function for a ROM.

`cpu6507.py` says what an instruction does; here the common ones are written again with everything known beforehand filled
in: operands, targets, which device an address selects. The translation holds 6507 registers in local variables. It never
does half an instruction: where a check fails (an access with side effects, a log that is full, decimal mode) or an
instruction has no translation, the function returns with nothing of that instruction done and `cpu6507.step` does it.
So the translation may be incomplete but not different, and tests hold it against the interpreter.

The function: ``i32 run(s, memory, rom, limit)`` gives the number of instructions done, at most `limit`.

An instruction's name is ``bank >> 12 << 16 | pc``: code is translated for each bank and mirror it was met in.
"""

from typing import NamedTuple

import numpy as np

from . import cartridge
from .opcodes import LENGTH, OPCODES, Opcode
from .state import (
    CART_BANK,
    CART_RAM,
    CHARGE_AT_ONCE,
    CHARGE_NEVER,
    CPU_A,
    CPU_C,
    CPU_D,
    CPU_I,
    CPU_NZ,
    CPU_PC,
    CPU_SP,
    CPU_V,
    CPU_X,
    CPU_Y,
    CYCLES,
    DUMP,
    DUMP_OFF_CYCLE,
    FRAME_START,
    IN_CHARGE,
    IN_INPT4,
    IN_SWCHA,
    IN_SWCHB,
    LINE_LIMIT,
    LOG_BASE,
    LOG_CAPACITY,
    LOG_COUNT,
    LOG_SLOT,
    LOGS,
    RIOT_DDRA,
    RIOT_READ_FLAG,
    RIOT_SET_CYCLE,
    RIOT_SHIFT,
    RIOT_TIMER,
)

MAX_INSTRUCTIONS = 8000
WSYNC = 0x02
READ_ENTRY = 0x3F << 8  # the log's entry for a read

REGISTERS = {
    "A": CPU_A, "X": CPU_X, "Y": CPU_Y, "SP": CPU_SP, "PC": CPU_PC, "NZ": CPU_NZ, "C": CPU_C, "V": CPU_V, "D": CPU_D,
    "CYCLES": CYCLES, "COUNT": LOG_COUNT,
}  # fmt: skip
BRANCH_TESTS = {  # register, mask, whether the branch is taken when the masked bits are zero
    "BNE": ("NZ", 0xFF, False), "BEQ": ("NZ", 0xFF, True), "BPL": ("NZ", 0x8080, True), "BMI": ("NZ", 0x8080, False),
    "BCC": ("C", 1, True), "BCS": ("C", 1, False), "BVC": ("V", 1, True), "BVS": ("V", 1, False),
}  # fmt: skip
TRANSFERS = {"TAX": ("A", "X"), "TAY": ("A", "Y"), "TXA": ("X", "A"), "TYA": ("Y", "A"), "TSX": ("SP", "X")}
STEPS = {"DEX": ("X", -1), "DEY": ("Y", -1), "INX": ("X", 1), "INY": ("Y", 1)}
FLAGS = {"CLC": ("C", 0), "SEC": ("C", 1), "CLD": ("D", 0), "SED": ("D", 1), "CLV": ("V", 0)}
LOADS = {"LDA": "A", "LDX": "X", "LDY": "Y"}
STORES = {"STA": "A", "STX": "X", "STY": "Y"}
COMPARES = {"CMP": "A", "CPX": "X", "CPY": "Y"}
LOGIC = {"AND": "and", "ORA": "or", "EOR": "xor"}
READS = {*LOADS, *COMPARES, *LOGIC, "ADC", "SBC", "BIT", "NOP"}
INDEX = {"zpx": "X", "zpy": "Y", "absx": "X", "absy": "Y"}


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
        """Where a branch goes."""
        return (self.following + self.low - ((self.low & 0x80) << 1)) & 0xFFFF


class Image:
    """A ROM in `cartridge.expand_image`'s form with the stretch of each bank that can be read without side effects."""

    def __init__(self, rom: np.ndarray, kind: int):
        self.rom = rom
        self.kind = kind
        self.start = int(cartridge.PLAIN_START[kind])
        self.end = 0x2000 if kind == cartridge.FE else int(cartridge.PLAIN_END[kind])

    def offset(self, address: int, bank: int, length: int = 1) -> int | None:
        """Where in the ROM `length` bytes from `address` on stand; None when they do not all come from plain ROM."""
        first = address & 0x1FFF
        if not self.start <= first <= first + length <= self.end:
            return None
        if self.kind == cartridge.FE:
            bank = 0 if address & 0x2000 else 4096
        return bank + (address & 0xFFF)

    def instruction(self, name: int) -> Instruction | None:
        """Decode; None where an instruction's bytes do not all come from plain ROM or the chip would halt."""
        pc, bank = name & 0xFFFF, name >> 16 << 12
        at = self.offset(pc, bank, 3)
        if at is None or int(self.rom[at]) not in OPCODES:
            return None
        opcode = OPCODES[int(self.rom[at])]
        return Instruction(name, pc, bank, opcode, int(self.rom[at + 1]), int(self.rom[at + 2]))


def find_code(image: Image, seen: list[int]) -> tuple[dict[int, Instruction], set[int]]:
    """Instructions reachable from the names in `seen`, and the names that are entered from outside or by RTS."""
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
        following = here | instruction.following
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


class Translator:
    """Writes the function for a ROM as LLVM assembly."""

    def __init__(self, image: Image, code: dict[int, Instruction], entries: set[int]):
        self.image = image
        self.code = code
        self.entries = set(entries)
        self.lines: list[str] = []
        self.count = 0
        self.now: Instruction | None = None
        self.leaves = False  # the current instruction has a way out
        self.extra: int | str = 0  # its cycle for leaving a page

    # --- writing ------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def label(self, name: str) -> None:
        self.lines.append(name + ":")

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def value(self, text: str) -> str:
        name = "%" + self.fresh()
        self.line(f"{name} = {text}")
        return name

    def op(self, operation: str, a: int | str, b: int | str) -> str:
        return self.value(f"{operation} i32 {a}, {b}")

    def test(self, condition: str, a: int | str, b: int | str) -> str:
        """A comparison, i1."""
        return self.value(f"icmp {condition} i32 {a}, {b}")

    def bit(self, condition: str, a: int | str, b: int | str) -> str:
        """A comparison as 0 or 1."""
        return self.value(f"zext i1 {self.test(condition, a, b)} to i32")

    def get(self, register: str) -> str:
        return self.value(f"load i32, ptr %{register}")

    def put(self, register: str, value: int | str) -> None:
        self.line(f"store i32 {value}, ptr %{register}")

    def word(self, index: int | str) -> str:
        """Load a word of the console's state."""
        index = self.value(f"zext i32 {index} to i64") if isinstance(index, str) else index
        return self.value(f"load i32, ptr {self.value(f'getelementptr i32, ptr %s, i64 {index}')}")

    def put_word(self, index: int, value: int | str) -> None:
        self.line(f"store i32 {value}, ptr {self.value(f'getelementptr i32, ptr %s, i64 {index}')}")

    def byte(self, array: str, index: int | str) -> str:
        return self.value(f"zext i8 {self.value(f'load i8, ptr {self.place(array, index)}')} to i32")

    def put_byte(self, array: str, index: int | str, value: int | str) -> None:
        self.line(f"store i8 {self.value(f'trunc i32 {value} to i8')}, ptr {self.place(array, index)}")

    def place(self, array: str, index: int | str) -> str:
        if not isinstance(index, int):
            index = self.value(f"zext i32 {index} to i64")
        return self.value(f"getelementptr i8, ptr %{array}, i64 {index}")

    def leave_if(self, condition: str) -> None:
        """Give the current instruction back, untouched, when the condition holds."""
        on = self.fresh("c")
        self.leaves = True
        self.line(f"br i1 {condition}, label %x{self.now.name}, label %{on}, !prof !0")
        self.label(on)

    def leave(self) -> None:
        """Give the current instruction back."""
        self.leaves = True
        self.line(f"br label %x{self.now.name}")

    def go(self, pc: int) -> None:
        """Go on at a known PC; after a step back only within the limit."""
        name = (self.now.name & ~0xFFFF) | pc
        if name not in self.code:
            self.stop(pc)
            return
        if pc <= self.now.pc:
            stop, back = self.fresh("s"), self.fresh("b")
            self.line(f"br i1 {self.test('sgt', self.get('N'), '%most')}, label %{stop}, label %{back}, !prof !0")
            self.label(stop)
            self.stop(pc)
            self.label(back)
            self.hide_counters()
            self.line(f"br label %i{name}")
        else:
            self.line(f"br label %i{name}")

    def hide_counters(self) -> None:
        """Keep LLVM's analysis of loops, which takes minutes here and gains nothing, from following the counters."""
        for register in ("CYCLES", "N", "COUNT", "X", "Y", "A", "SP", "NZ"):
            self.put(register, self.value(f'call i32 asm "", "=r,0"(i32 {self.get(register)})'))

    def count_instruction(self, cycles: int | str, extra: int | str = 0) -> None:
        total = self.op("add", self.get("CYCLES"), cycles)
        self.put("CYCLES", total if extra == 0 else self.op("add", total, extra))
        self.put("N", self.op("add", self.get("N"), 1))

    def finish(self, extra: int | str = 0) -> None:
        """The instruction is done; on to the next."""
        self.count_instruction(self.now.opcode.cycles, extra)
        self.go(self.now.following)

    # --- addresses ----------------------------------------------------------------------------------------------

    def end_cycle(self) -> str:
        """The cycle that the instruction's accesses see, the one for leaving a page included."""
        end = self.op("add", self.get("CYCLES"), self.now.opcode.cycles)
        return end if self.extra == 0 else self.op("add", end, self.extra)

    def log(self, entry: int | str) -> None:
        """Note a TIA access, `entry` being register << 8 | value; not when the log is full or the frame too long."""
        end = self.end_cycle()
        count = self.get("COUNT")
        late = self.test("sgt", end, "%last_cycle")
        full = self.test("sge", count, LOG_CAPACITY)
        self.leave_if(self.value(f"or i1 {late}, {full}"))
        time = self.op("shl", self.op("sub", end, "%base"), 14)
        index = self.value(f"zext i32 {count} to i64")
        at = self.value(f"getelementptr i32, ptr %log, i64 {index}")
        self.line(f"store i32 {self.op('or', time, entry)}, ptr {at}")
        self.put("COUNT", self.op("add", count, 1))

    def is_ram(self, address: str) -> str:
        return self.test("eq", self.op("and", address, 0x1280), 0x80)

    def plain_offset(self, address: str) -> tuple[str, str]:
        """Whether an address lies in plain ROM (i1), and its offset in the image."""
        image = self.image
        inside = self.op("sub", self.op("and", address, 0x1FFF), image.start)
        plain = self.value(f"icmp ult i32 {inside}, {image.end - image.start}")
        bank: int | str = self.now.bank
        if image.kind == cartridge.FE:
            upper = self.test("ne", self.op("and", address, 0x2000), 0)
            bank = self.value(f"select i1 {upper}, i32 0, i32 4096")
        return plain, self.op("add", self.op("and", address, 0xFFF), bank)

    def peek(self, address: str) -> str:
        """The byte at an address of ROM or RAM known only when it runs."""
        rom, other, join = self.fresh("r"), self.fresh("o"), self.fresh("j")
        plain, offset = self.plain_offset(address)
        self.line(f"br i1 {plain}, label %{rom}, label %{other}")
        self.label(rom)
        from_rom = self.byte("rom", offset)
        self.line(f"br label %{join}")
        self.label(other)
        from_ram, ram = self.peek_low(address)
        self.line(f"br label %{join}")
        self.label(join)
        return self.value(f"phi i32 [ {from_rom}, %{rom} ], [ {from_ram}, %{ram} ]")

    def peek_low(self, address: str) -> tuple[str, str]:
        """The byte at an address that is not in plain ROM but may be of RAM or an input, and the last label written."""
        ram, other, join = self.fresh("r"), self.fresh("o"), self.fresh("j")
        self.line(f"br i1 {self.is_ram(address)}, label %{ram}, label %{other}")
        self.label(ram)
        from_ram = self.byte("memory", self.op("and", address, 0x7F))
        self.line(f"br label %{join}")
        self.label(other)
        register = self.op("sub", self.op("and", address, 0x0F), 8)
        no_tia = self.test("ne", self.op("and", address, 0x1080), 0)
        self.leave_if(self.value(f"or i1 {no_tia}, {self.test('ugt', register, 5)}"))
        self.log(READ_ENTRY)
        # The last byte on the bus was the operand's; after a pointer in RAM, its second byte.
        noise: int | str = (self.now.low if LENGTH[self.now.opcode.mode] == 2 else self.now.high) & 0x3F
        if self.now.opcode.mode in ("indx", "indy"):
            noise = self.op("and", self.pointer_high, 0x3F)
        from_input = self.op("or", self.input(register), noise)
        last = self.fresh("q")
        self.line(f"br label %{last}")
        self.label(last)
        self.line(f"br label %{join}")
        self.label(join)
        return self.value(f"phi i32 [ {from_ram}, %{ram} ], [ {from_input}, %{last} ]"), join

    def indexed(self) -> tuple[str, int | str]:
        """Address of an absolute indexed operand and the cycle for leaving the page (0 or 1)."""
        index = self.get(INDEX[self.now.opcode.mode])
        address = self.op("and", self.op("add", index, self.now.address), 0xFFFF)
        extra: int | str = 0
        if self.now.opcode.page_cross_extra:
            extra = self.op("lshr", self.op("add", index, self.now.low), 8)
        self.extra = extra
        return address, extra

    def pointed(self) -> tuple[str, int | str]:
        """Address that a pointer in RAM gives, for both indirect modes, and the cycle for leaving the page."""
        at: int | str = self.now.low
        if self.now.opcode.mode == "indx":
            at = self.op("and", self.op("add", self.get("X"), at), 0xFF)
        # The second byte of a pointer at $FF would come from $0100, outside RAM.
        self.leave_if(self.value(f"icmp uge i32 {self.op('sub', at, 0x80)}, 127"))
        low = self.byte("memory", self.op("and", at, 0x7F))
        self.pointer_high = self.byte("memory", self.op("and", self.op("add", at, 1), 0x7F))
        high = self.op("shl", self.pointer_high, 8)
        if self.now.opcode.mode == "indx":
            return self.op("or", low, high), 0
        low = self.op("add", low, self.get("Y"))
        extra = self.op("lshr", low, 8) if self.now.opcode.page_cross_extra else 0
        self.extra = extra
        return self.op("and", self.op("add", low, high), 0xFFFF), extra

    # --- reads --------------------------------------------------------------------------------------------------

    def can_read(self, address: int) -> bool:
        """Whether a read of a known address has a translation."""
        if address & 0x1000:
            return self.image.offset(address, self.now.bank) is not None or self.is_cartridge_ram(address, 0x80)
        if address & 0x80 == 0:
            return address & 0x0F >= 8
        return address & 0x200 == 0 or address & 5 != 5

    def is_cartridge_ram(self, address: int, port: int) -> bool:
        kinds = (cartridge.F8SC, cartridge.F6SC)
        return self.image.kind in kinds and port <= address & 0xFFF < port + 0x80

    def read(self, address: int) -> int | str:
        """The byte at a known address."""
        if address & 0x1000:
            at = self.image.offset(address, self.now.bank)
            return int(self.image.rom[at]) if at is not None else self.byte("memory", CART_RAM + (address & 0x7F))
        if address & 0x80 == 0:
            self.log(READ_ENTRY)
            # Six bits are left over from the last byte on the bus, the operand's last one.
            noise = (self.now.low if LENGTH[self.now.opcode.mode] == 2 else self.now.high) & 0x3F
            register = address & 0x0F
            return self.op("or", self.input(register - 8), noise) if register < 14 else noise
        if address & 0x200 == 0:
            return self.byte("memory", address & 0x7F)
        register = address & 7
        if register in (4, 6):
            return self.timer()
        return 0 if register == 3 else self.word({0: IN_SWCHA, 1: RIOT_DDRA, 2: IN_SWCHB}[register])

    def input(self, register: int | str) -> str:
        """INPT0-INPT5 without the bits left over; see `bus._read_input`."""
        if isinstance(register, int):
            return self.word(IN_INPT4 + register - 4) if register >= 4 else self.paddle(register)
        button = self.word(self.op("add", self.op("and", register, 1), IN_INPT4))
        paddle = self.paddle(self.op("and", register, 3))
        return self.value(f"select i1 {self.test('uge', register, 4)}, i32 {button}, i32 {paddle}")

    def paddle(self, register: int | str) -> str:
        """INPT0-INPT3: bit 7 once the capacitor is charged."""
        charge = self.word(self.op("add", register, IN_CHARGE))
        full = self.op("add", self.word(DUMP_OFF_CYCLE), charge)
        charged = self.value(f"icmp ugt i32 {self.end_cycle()}, {full}")
        dumped = self.test("ne", self.word(DUMP), 0)
        never = self.value(f"or i1 {dumped}, {self.test('eq', charge, CHARGE_NEVER)}")
        byte = self.value(f"select i1 {charged}, i32 128, i32 0")
        byte = self.value(f"select i1 {never}, i32 0, i32 {byte}")
        return self.value(f"select i1 {self.test('eq', charge, CHARGE_AT_ONCE)}, i32 128, i32 {byte}")

    def timer(self) -> str:
        """INTIM while it has not expired; see `riot.read_timer`."""
        delta = self.op("sub", self.op("sub", self.end_cycle(), 1), self.word(RIOT_SET_CYCLE))
        self.leave_if(self.test("slt", delta, 0))
        value = self.op("sub", self.op("sub", self.word(RIOT_TIMER), self.op("lshr", delta, self.word(RIOT_SHIFT))), 1)
        self.leave_if(self.test("slt", value, 0))
        return self.op("and", value, 0xFF)

    def operand(self) -> tuple[int | str, int | str]:
        """The byte an instruction reads, and its extra cycle."""
        now = self.now
        mode = now.opcode.mode
        if mode == "imm":
            return now.low, 0
        if mode in ("zp", "abs"):
            return self.read(now.low if mode == "zp" else now.address), 0
        if mode in ("zpx", "zpy"):
            return self.peek_low(self.op("and", self.op("add", self.get(INDEX[mode]), now.low), 0xFF))[0], 0
        if mode in ("absx", "absy"):
            address, extra = self.indexed()
            first = self.image.offset(now.address, now.bank, 256)
            if first is not None:  # the whole reach of the index is plain ROM
                return self.byte("rom", self.op("add", self.get(INDEX[mode]), first)), extra
            return self.peek(address), extra
        address, extra = self.pointed()
        return self.peek(address), extra

    # --- writes -------------------------------------------------------------------------------------------------

    def can_write(self, address: int) -> bool:
        """Whether a write to a known address has a translation."""
        if address & 0x1000:
            kind = self.image.kind
            if kind in (cartridge.PLAIN, cartridge.FE):
                return True
            return address & 0xFFF < 0xFC0 and not (kind == cartridge.DPC and address & 0xFFF < 0x80)
        return address & 0x80 != 0 or address & 0x3F >= WSYNC

    def write(self, address: int, value: int | str) -> None:
        """Write to a known address; the last thing that may leave the instruction undone."""
        if address & 0x1000:
            if self.is_cartridge_ram(address, 0):
                self.put_byte("memory", CART_RAM + (address & 0x7F), value)
        elif address & 0x80 == 0:
            self.log(self.op("or", value, (address & 0x3F) << 8))
        elif address & 0x200 == 0:
            self.put_byte("memory", address & 0x7F, value)
        elif address & 0x14 == 0x14:
            interval = address & 3
            self.put_word(RIOT_TIMER, value)
            self.put_word(RIOT_SHIFT, 10 if interval == 3 else 3 * interval)
            self.put_word(RIOT_SET_CYCLE, self.end_cycle())
            self.put_word(RIOT_READ_FLAG, 0)
        elif address & 7 == 1:
            self.put_word(RIOT_DDRA, value)

    def wait_for_line(self) -> None:
        """WSYNC: after the instruction the 6507 waits for the end of the scanline."""
        cycles = self.get("CYCLES")
        in_line = self.op("urem", self.op("sub", cycles, "%line"), 76)
        missing = self.op("urem", self.op("sub", 76, in_line), 76)
        self.put("CYCLES", self.op("add", cycles, missing))

    def write_to(self, address: str, value: int | str) -> None:
        """Write to an address known only when it runs: RAM, or a TIA register that only pictures depend on."""
        ram, other, join = self.fresh("r"), self.fresh("o"), self.fresh("j")
        self.line(f"br i1 {self.is_ram(address)}, label %{ram}, label %{other}")
        self.label(ram)
        self.put_byte("memory", self.op("and", address, 0x7F), value)
        self.line(f"br label %{join}")
        self.label(other)
        register = self.op("and", address, 0x3F)
        no_tia = self.test("ne", self.op("and", address, 0x1080), 0)
        self.leave_if(self.value(f"or i1 {no_tia}, {self.test('ule', register, WSYNC)}"))
        self.log(self.op("or", self.op("shl", register, 8), value))
        self.line(f"br label %{join}")
        self.label(join)

    # --- instructions -------------------------------------------------------------------------------------------

    def set_nz(self, value: int | str) -> None:
        self.put("NZ", value)

    def translate_read(self) -> bool:
        now = self.now
        mnemonic, mode = now.opcode.mnemonic, now.opcode.mode
        known = {"zp": now.low, "abs": now.address}.get(mode)
        if mnemonic not in READS or (known is not None and not self.can_read(known)):
            return False
        if mnemonic in ("ADC", "SBC"):
            self.leave_if(self.test("ne", self.get("D"), 0))
        m, extra = self.operand()
        if mnemonic in LOADS:
            self.put(LOADS[mnemonic], m)
            self.set_nz(m)
        elif mnemonic in COMPARES:
            register = self.get(COMPARES[mnemonic])
            self.put("C", self.bit("uge", register, m))
            self.set_nz(self.op("and", self.op("sub", register, m), 0xFF))
        elif mnemonic in LOGIC:
            result = self.op(LOGIC[mnemonic], self.get("A"), m)
            self.put("A", result)
            self.set_nz(result)
        elif mnemonic in ("ADC", "SBC"):
            self.add(m, subtracting=mnemonic == "SBC")
        elif mnemonic == "BIT":
            negative = self.op("shl", self.op("and", m, 0x80), 8)
            self.set_nz(self.op("or", negative, self.bit("ne", self.op("and", self.get("A"), m), 0)))
            self.put("V", self.op("and", self.op("lshr", m, 6), 1))
        self.finish(extra)
        return True

    def add(self, m: int | str, subtracting: bool) -> None:
        """Binary ADC or SBC: subtracting is adding the complement."""
        a = self.get("A")
        m = self.op("xor", m, 0xFF) if subtracting else m
        total = self.op("add", self.op("add", a, m), self.get("C"))
        overflow = self.op("and", self.op("xor", a, total), self.op("xor", m, total))
        self.put("V", self.op("and", self.op("lshr", overflow, 7), 1))
        self.put("C", self.op("lshr", total, 8))
        result = self.op("and", total, 0xFF)
        self.put("A", result)
        self.set_nz(result)

    def modified(self, mnemonic: str, m: int | str) -> str | None:
        """The result of a read-modify-write operation, flags set."""
        carry = None
        if mnemonic in ("INC", "DEC"):
            result = self.op("and", self.op("add", m, 1 if mnemonic == "INC" else -1), 0xFF)
        elif mnemonic in ("ASL", "ROL"):
            carry = self.op("lshr", m, 7)
            result = self.op("and", self.op("shl", m, 1), 0xFF)
            result = self.op("or", result, self.get("C")) if mnemonic == "ROL" else result
        elif mnemonic in ("LSR", "ROR"):
            carry = self.op("and", m, 1)
            result = self.op("lshr", m, 1)
            result = self.op("or", result, self.op("shl", self.get("C"), 7)) if mnemonic == "ROR" else result
        else:
            return None
        if carry is not None:
            self.put("C", carry)
        self.set_nz(result)
        return result

    def translate_rmw(self) -> bool:
        now = self.now
        mnemonic, mode = now.opcode.mnemonic, now.opcode.mode
        if now.opcode.undocumented or mode not in ("zp", "zpx", "abs", "absx"):
            return False
        if mode in ("zp", "abs"):
            known = now.low if mode == "zp" else now.address
            if known & 0x1280 != 0x80:
                return False
            at: int | str = known & 0x7F
        else:
            address = self.indexed()[0] if mode == "absx" else self.op("and", self.op("add", self.get("X"), now.low), 0xFF)
            self.leave_if(self.value(f"xor i1 {self.is_ram(address)}, true"))
            at = self.op("and", address, 0x7F)
        self.put_byte("memory", at, self.modified(mnemonic, self.byte("memory", at)))
        self.finish()
        return True

    def translate_write(self) -> bool:
        now = self.now
        mnemonic, mode = now.opcode.mnemonic, now.opcode.mode
        if mnemonic not in STORES:
            return False
        value = self.get(STORES[mnemonic])
        if mode in ("zp", "abs"):
            known = now.low if mode == "zp" else now.address
            if not self.can_write(known):
                return False
            self.write(known, value)
            self.count_instruction(now.opcode.cycles)
            if known & 0x1080 == 0 and known & 0x3F == WSYNC:
                self.wait_for_line()
            self.go(now.following)
            return True
        if mode in ("zpx", "zpy"):
            address = self.op("and", self.op("add", self.get(INDEX[mode]), now.low), 0xFF)
        elif mode in ("absx", "absy"):
            address, _ = self.indexed()
        else:
            address, _ = self.pointed()
        self.write_to(address, value)
        self.finish()
        return True

    def translate_branch(self) -> bool:
        now = self.now
        if now.target & 0x1080 == 0:  # what is fetched from the TIA depends on the bus
            return False
        register, mask, when_zero = BRANCH_TESTS[now.opcode.mnemonic]
        taken = self.test("eq" if when_zero else "ne", self.op("and", self.get(register), mask), 0)
        yes, no = self.fresh("y"), self.fresh("n")
        self.line(f"br i1 {taken}, label %{yes}, label %{no}")
        self.label(yes)
        self.count_instruction(now.opcode.cycles + (1 if (now.target ^ now.following) & 0xFF00 == 0 else 2))
        self.go(now.target)
        self.label(no)
        self.count_instruction(now.opcode.cycles)
        self.go(now.following)
        return True

    def translate_jump(self) -> bool:
        now = self.now
        mnemonic = now.opcode.mnemonic
        sp = self.get("SP")
        if mnemonic == "JMP" and now.opcode.mode == "abs":
            if now.address & 0x1080 == 0:
                return False
            self.count_instruction(3)
            self.go(now.address)
        elif mnemonic == "JMP":
            pointer = (now.address, (now.address & 0xFF00) | (now.address + 1) & 0xFF)
            if any(at & 0x1280 != 0x80 and self.image.offset(at, now.bank) is None for at in pointer):
                return False
            low, high = (self.read(at) for at in pointer)
            target = self.op("or", low, self.op("shl", high, 8))
            self.leave_if(self.test("eq", self.op("and", target, 0x1080), 0))
            self.count_instruction(5)
            self.put("PC", target)
            self.line("br label %dispatch")
        elif mnemonic == "JSR":
            if now.address & 0x1080 == 0:
                return False
            self.leave_if(self.test("ult", sp, 0x82))
            pushed = (now.pc + 2) & 0xFFFF
            self.put_byte("memory", self.op("and", sp, 0x7F), pushed >> 8)
            self.put_byte("memory", self.op("and", self.op("sub", sp, 1), 0x7F), pushed & 0xFF)
            self.put("SP", self.op("sub", sp, 2))
            self.count_instruction(6)
            self.go(now.address)
        elif mnemonic == "RTS":
            self.leave_if(self.test("ugt", self.op("sub", sp, 0x80), 0x7D))
            low = self.byte("memory", self.op("and", self.op("add", sp, 1), 0x7F))
            high = self.byte("memory", self.op("and", self.op("add", sp, 2), 0x7F))
            target = self.op("or", low, self.op("shl", high, 8))
            # The byte before the target is read and dropped: it must have no side effect.
            self.leave_if(self.value(f"xor i1 {self.plain_offset(target)[0]}, true"))
            self.put("SP", self.op("add", sp, 2))
            self.put("PC", self.op("and", self.op("add", target, 1), 0xFFFF))
            self.count_instruction(6)
            self.line("br label %dispatch")
        else:
            return False
        return True

    def translate_none(self) -> bool:
        """Implied and accumulator operations."""
        now = self.now
        mnemonic = now.opcode.mnemonic
        if mnemonic in TRANSFERS:
            source, target = TRANSFERS[mnemonic]
            value = self.get(source)
            self.put(target, value)
            self.set_nz(value)
        elif mnemonic == "TXS":
            self.put("SP", self.get("X"))
        elif mnemonic in STEPS:
            register, step = STEPS[mnemonic]
            value = self.op("and", self.op("add", self.get(register), step), 0xFF)
            self.put(register, value)
            self.set_nz(value)
        elif mnemonic in FLAGS:
            self.put(*FLAGS[mnemonic])
        elif mnemonic in ("CLI", "SEI"):
            self.put_word(CPU_I, int(mnemonic == "SEI"))
        elif now.opcode.mode == "acc":
            result = self.modified(mnemonic, self.get("A"))
            if result is None:
                return False
            self.put("A", result)
        elif mnemonic in ("PHA", "PHP"):
            self.push(self.get("A") if mnemonic == "PHA" else self.status())
        elif mnemonic in ("PLA", "PLP"):
            self.pull(mnemonic)
        elif mnemonic != "NOP":
            return False
        self.finish()
        return True

    def push(self, value: int | str) -> None:
        sp = self.get("SP")
        self.write_to(sp, value)
        self.put("SP", self.op("and", self.op("sub", sp, 1), 0xFF))

    def pull(self, mnemonic: str) -> None:
        sp = self.get("SP")
        self.leave_if(self.test("ugt", self.op("sub", sp, 0x80), 0x7E))
        sp = self.op("add", sp, 1)
        self.put("SP", sp)
        value = self.byte("memory", self.op("and", sp, 0x7F))
        if mnemonic == "PLA":
            self.put("A", value)
            self.set_nz(value)
            return
        negative = self.op("shl", self.op("and", value, 0x80), 8)
        self.set_nz(self.op("or", negative, self.bit("eq", self.op("and", value, 2), 0)))
        for register, bit in (("V", 6), ("D", 3), ("C", 0)):
            self.put(register, self.op("and", self.op("lshr", value, bit), 1))
        self.put_word(CPU_I, self.op("and", self.op("lshr", value, 2), 1))

    def status(self) -> str:
        """The flags byte, as `cpu6507.status`."""
        nz = self.get("NZ")
        byte = self.op("or", self.get("C"), 0x30)
        for value, shift in ((self.get("V"), 6), (self.get("D"), 3), (self.word(CPU_I), 2)):
            byte = self.op("or", byte, self.op("shl", value, shift))
        byte = self.op("or", byte, self.op("shl", self.bit("ne", self.op("and", nz, 0x8080), 0), 7))
        return self.op("or", byte, self.op("shl", self.bit("eq", self.op("and", nz, 0xFF), 0), 1))

    def translate(self, instruction: Instruction) -> None:
        """Write one instruction and its way out."""
        self.now, self.leaves, self.extra = instruction, False, 0
        self.label(f"i{instruction.name}")
        by_kind = {
            "read": self.translate_read, "write": self.translate_write, "rmw": self.translate_rmw,
            "branch": self.translate_branch, "jump": self.translate_jump, "none": self.translate_none,
        }  # fmt: skip
        if not by_kind[instruction.opcode.kind]():
            self.leave()
            self.entries.add((instruction.name & ~0xFFFF) | instruction.following)
        if self.leaves:
            self.label(f"x{instruction.name}")
            self.stop(instruction.pc)

    def stop(self, pc: int | None = None) -> None:
        """Store the registers and return; `pc` where it is known."""
        for register, index in REGISTERS.items():
            self.put_word(index, pc if register == "PC" and pc is not None else self.get(register))
        self.line(f"ret i32 {self.get('N')}")

    def assembly(self) -> str:
        """The whole module."""
        for instruction in self.code.values():
            self.translate(instruction)
        body, self.lines = self.lines, []
        self.lines.append("define i32 @run(ptr noalias nocapture %s, ptr noalias nocapture %memory, ptr noalias nocapture readonly %rom, i32 %limit) nounwind {")
        self.label("entry")
        for register, index in REGISTERS.items():
            self.line(f"%{register} = alloca i32")
            self.put(register, self.word(index))
        self.line("%N = alloca i32")
        self.put("N", 0)
        # No path between two checks of the limit is longer than the whole code.
        self.line(f"%most = sub i32 %limit, {len(self.code) + 1}")
        slot = self.op("mul", self.word(LOG_SLOT), LOG_CAPACITY)
        first = self.value(f"sext i32 {self.op('add', slot, LOGS)} to i64")
        self.line(f"%log = getelementptr i32, ptr %s, i64 {first}")
        self.line(f"%base = add i32 {self.word(LOG_BASE)}, 0")
        self.line(f"%line = sdiv i32 {self.word(FRAME_START)}, 3")
        last = self.op("sub", self.word(LINE_LIMIT), 1)
        self.line(f"%last_cycle = sdiv i32 {last}, 3")
        self.line(f"%bank = shl i32 {self.op('lshr', self.word(CART_BANK), 12)}, 16")
        self.line("br label %dispatch")
        self.label("dispatch")
        known = self.fresh("k")
        self.line(f"br i1 {self.test('sgt', self.get('N'), '%most')}, label %exit, label %{known}, !prof !0")
        self.label(known)
        name = self.op("or", "%bank", self.get("PC"))
        targets = " ".join(f"i32 {entry}, label %i{entry}" for entry in sorted(self.entries & self.code.keys()))
        self.line(f"switch i32 {name}, label %exit [ {targets} ]")
        self.label("exit")
        self.stop()
        return "\n".join([*self.lines, *body, "}", '!0 = !{!"branch_weights", i32 1, i32 2000}', ""])


def translate(rom: np.ndarray, kind: int, seen: list[int], entries: set[int]) -> str:
    """LLVM assembly of the code reachable from the instructions in `seen`; `entries` are reached by RTS and the like."""
    image = Image(rom, kind)
    code, reached = find_code(image, seen)
    return Translator(image, code, reached | entries).assembly()
