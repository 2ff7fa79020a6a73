"""Translate the 6507 code of a ROM to LLVM assembly, one function per ROM.

`cpu6507.py` defines the instructions. This module translates the common ones with all constants filled in:
operands, branch targets, the device that an address selects. The translation keeps the 6507 registers in
local variables. Instructions run completely or not at all: if a check fails (an access with side effects, a
full log) or an instruction has no translation, the function returns before the instruction and `cpu6507.step`
runs it. The translation may therefore be incomplete, but it must not differ; tests compare it with the
interpreter.

The function ``i32 run(s, memory, rom, limit, status, group)`` returns n << 2 | status, where n is the number
of instructions done, at most `limit`. Status INTERPRET: the interpreter must run the next instruction. Status
LATCH: the next instruction reads a collision latch; the read is logged, the TIA must catch up, and a call
with this status continues. `group` is used only by the GPU code (`lanes.py`).

`rom_image.py` finds the code, `assembly.py` generates LLVM assembly, `accesses.py` generates memory accesses.
"""

import numpy as np

from .. import cartridge
from ..state import (
    CART_BANK,
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
    FRAME_START,
    LINE_LIMIT,
    LOG_BASE,
    LOG_CAPACITY,
    LOG_COUNT,
    LOG_SLOT,
    LOGS,
)
from . import decimal_mode
from .accesses import INDEX, INTERPRET, LATCH, READ_ENTRY, VSYNC, WSYNC
from .dpc_accesses import Music
from .idle_loops import IdleLoops
from .rom_image import Image, Instruction, find_code

REGISTERS = {
    "A": CPU_A, "X": CPU_X, "Y": CPU_Y, "SP": CPU_SP, "PC": CPU_PC, "NZ": CPU_NZ, "C": CPU_C, "V": CPU_V,
    "D": CPU_D, "CYCLES": CYCLES, "COUNT": LOG_COUNT,
}  # fmt: skip
BRANCH_TESTS = {  # register, mask, whether the branch is taken when the masked bits are zero
    "BNE": ("NZ", 0xFF, False), "BEQ": ("NZ", 0xFF, True),
    "BPL": ("NZ", 0x8080, True), "BMI": ("NZ", 0x8080, False),
    "BCC": ("C", 1, True), "BCS": ("C", 1, False), "BVC": ("V", 1, True), "BVS": ("V", 1, False),
}  # fmt: skip
TRANSFERS = {"TAX": ("A", "X"), "TAY": ("A", "Y"), "TXA": ("X", "A"), "TYA": ("Y", "A"), "TSX": ("SP", "X")}
STEPS = {"DEX": ("X", -1), "DEY": ("Y", -1), "INX": ("X", 1), "INY": ("Y", 1)}
FLAGS = {"CLC": ("C", 0), "SEC": ("C", 1), "CLD": ("D", 0), "SED": ("D", 1), "CLV": ("V", 0)}
LOADS = {"LDA": "A", "LDX": "X", "LDY": "Y"}
STORES = {"STA": "A", "STX": "X", "STY": "Y"}
COMPARES = {"CMP": "A", "CPX": "X", "CPY": "Y"}
LOGIC = {"AND": "and", "ORA": "or", "EOR": "xor"}
IRQ_VECTOR = 0xFFFE
READS = {*LOADS, *COMPARES, *LOGIC, "ADC", "SBC", "BIT", "NOP"}


class Translator(IdleLoops):
    """Generate the function of a ROM as LLVM assembly."""

    small_calls = "preserve_mostcc "  # calling convention of rarely used functions

    def __init__(self, image: Image, code: dict[int, Instruction], entries: set[int]):
        super().__init__(image, code)
        self.entries = set(entries)
        self.latch_reads: set[int] = set()  # names of instructions that may resume after a LATCH return

    def go(self, pc: int, *, line_begins: bool = False) -> None:
        """Continue at a known PC; check the instruction limit before a jump backwards.

        `line_begins`: the instruction is known to be the first of a scanline.
        """
        name = self.image.bank_after(self.now) >> 12 << 16 | pc
        if name not in self.code:
            self.stop(pc)
            return
        goes_back = pc <= self.now.pc or self.image.bank_after(self.now) != self.now.bank
        if goes_back:
            stop, back = self.fresh("s"), self.fresh("b")
            self.line(
                f"br i1 {self.test('sgt', self.get('N'), '%most')}, label %{stop}, label %{back}, !prof !0"
            )
            self.label(stop)
            self.stop(pc)
            self.label(back)
            self.hide_counters()
        self.jump(name, meets=goes_back or line_begins)

    def jump(self, name: int, *, meets: bool) -> None:
        """Jump to an instruction. `meets` (used only by lanes): it starts a loop iteration or a scanline."""
        self.line(f"br label %i{name}")

    def hide_counters(self) -> None:
        """Hide the counters from LLVM's loop analysis, which would take minutes and gain nothing."""
        for register in ("CYCLES", "N", "COUNT", "X", "Y", "A", "SP", "NZ"):
            self.put(register, self.value(f'call i32 asm "", "=r,0"(i32 {self.get(register)})'))

    def count_instruction(self, cycles: int | str, extra: int | str = 0) -> None:
        total = self.op("add", self.get("CYCLES"), cycles)
        self.put("CYCLES", total if extra == 0 else self.op("add", total, extra))
        self.put("N", self.op("add", self.get("N"), 1))

    def finish(self, extra: int | str = 0) -> None:
        """Count the current instruction and continue with the next."""
        self.count_instruction(self.now.opcode.cycles, extra)
        self.go(self.now.following)

    def set_nz(self, value: int | str) -> None:
        self.put("NZ", value)

    def translate_read(self) -> bool:
        now = self.now
        known = {"zp": now.low, "abs": now.address}.get(now.opcode.mode)
        if now.opcode.mnemonic not in READS or (known is not None and not self.can_read(known)):
            return False
        if known is not None and self.reads_latch(known):
            self.ask_for_latch()
            self.resume()
            return True
        following = self.image.bank_after(now) >> 12 << 16 | now.following
        # The trace found that machine code must be re-entered after this instruction.
        self.may_read_latch = now.opcode.mode in ("zpx", "zpy", "indx", "indy") and following in self.entries
        m, extra = self.operand()
        self.operate(m)
        self.finish(extra)
        if self.may_read_latch:
            self.resume()
        return True

    def resume(self) -> None:
        """Re-enter the current instruction after `ask_for_latch`; only the TIA has advanced since."""
        self.latch_reads.add(self.now.name)
        self.label(f"r{self.now.name}")
        self.extra = 0
        address, extra = self.operand_address()
        self.operate(self.latch(address))
        self.finish(extra)

    def operate(self, m: int | str) -> None:
        """Apply the current instruction to the byte that it has read."""
        mnemonic = self.now.opcode.mnemonic
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

    def add(self, m: int | str, subtracting: bool) -> None:
        """Translate ADC or SBC; decimal mode is rare and calls a function."""
        decimal, join = self.fresh("d"), self.fresh("j")
        binary = self.fresh("b")
        self.line(f"br i1 {self.test('ne', self.get('D'), 0)}, label %{decimal}, label %{binary}, !prof !0")
        self.label(decimal)
        name = decimal_mode.SUBTRACT if subtracting else decimal_mode.ADD
        both = self.value(
            f"call {self.small_calls}i32 @{name}(i32 {self.get('A')}, i32 {m}, i32 {self.get('C')})"
        )
        self.put("V", self.op("lshr", both, 9))
        self.put("C", self.op("and", self.op("lshr", both, 8), 1))
        self.put("A", self.op("and", both, 0xFF))
        self.line(f"br label %{join}")
        self.label(binary)
        self.add_binary(m, subtracting)
        self.line(f"br label %{join}")
        self.label(join)
        self.set_nz(self.get("A"))

    def add_binary(self, m: int | str, subtracting: bool) -> None:
        """Translate binary ADC or SBC; subtraction adds the complement."""
        a = self.get("A")
        m = self.op("xor", m, 0xFF) if subtracting else m
        total = self.op("add", self.op("add", a, m), self.get("C"))
        overflow = self.op("and", self.op("xor", a, total), self.op("xor", m, total))
        self.put("V", self.op("and", self.op("lshr", overflow, 7), 1))
        self.put("C", self.op("lshr", total, 8))
        self.put("A", self.op("and", total, 0xFF))

    def modified(self, mnemonic: str, m: int | str) -> str | None:
        """Set the flags and return the result of a read-modify-write operation; None if not translated."""
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
            if known & 0x1000 or self.reads_latch(known):
                return False
            if known & 0x80 == 0:
                # Exit unless the log has space for both accesses.
                self.leave_if(self.test("sge", self.get("COUNT"), LOG_CAPACITY - 1))
            self.write(known, self.modified(mnemonic, self.read(known)))
            self.finish()
            return True
        address = (
            self.indexed()[0]
            if mode == "absx"
            else self.op("and", self.op("add", self.get("X"), now.low), 0xFF)
        )
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
            if known & 0x1080 == 0 and known & 0x3F == VSYNC:
                # After a write that ends a frame, the next frame starts here.
                self.entries.add(self.image.bank_after(now) >> 12 << 16 | now.following)
            self.count_instruction(now.opcode.cycles)
            waits = known & 0x1080 == 0 and known & 0x3F == WSYNC
            if waits:
                self.wait_for_line()
            self.go(now.following, line_begins=waits)
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
        if now.target & 0x1080 == 0:  # code fetched from the TIA depends on the bus
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
        else:
            return False
        return True

    def translate_break(self) -> bool:
        """Translate BRK."""
        if self.image.kind == cartridge.DPC:  # reading the vector would have side effects
            return False
        vector = self.image.vector(IRQ_VECTOR, self.now.bank)
        if vector & 0x1080 == 0:
            return False
        sp = self.get("SP")
        self.leave_if(self.test("ult", sp, 0x82))
        pushed = (self.now.pc + 2) & 0xFFFF
        for below, value in enumerate((pushed >> 8, pushed & 0xFF, self.status())):
            self.put_byte("memory", self.op("and", self.op("sub", sp, below), 0x7F), value)
        self.put("SP", self.op("sub", sp, 3))
        self.put_word(CPU_I, 1)
        self.count_instruction(self.now.opcode.cycles)
        self.go(vector)
        return True

    def translate_return_from_interrupt(self) -> bool:
        """Translate RTI."""
        sp = self.get("SP")
        self.leave_if(self.test("ugt", self.op("sub", sp, 0x80), 0x7C))
        flags, low, high = (
            self.byte("memory", self.op("and", self.op("add", sp, k), 0x7F)) for k in (1, 2, 3)
        )
        target = self.op("or", low, self.op("shl", high, 8))
        self.leave_if(self.test("eq", self.op("and", target, 0x1080), 0))
        self.put("SP", self.op("add", sp, 3))
        self.set_status(flags)
        self.put("PC", target)
        self.count_instruction(self.now.opcode.cycles)
        self.line("br label %dispatch")
        return True

    def translate_return(self) -> bool:
        """Translate RTS."""
        sp = self.get("SP")
        self.leave_if(self.test("ugt", self.op("sub", sp, 0x80), 0x7D))
        low = self.byte("memory", self.op("and", self.op("add", sp, 1), 0x7F))
        high = self.byte("memory", self.op("and", self.op("add", sp, 2), 0x7F))
        target = self.op("or", low, self.op("shl", high, 8))
        # The 6507 reads and discards the byte before the target, so that read must have no side effect.
        self.leave_if(self.value(f"xor i1 {self.plain_offset(target)[0]}, true"))
        self.put("SP", self.op("add", sp, 2))
        self.put("PC", self.op("and", self.op("add", target, 1), 0xFFFF))
        self.count_instruction(6)
        self.line("br label %dispatch")
        return True

    def translate_none(self) -> bool:
        """Translate implied and accumulator operations."""
        now = self.now
        mnemonic = now.opcode.mnemonic
        leaving = {
            "RTS": self.translate_return,
            "RTI": self.translate_return_from_interrupt,
            "BRK": self.translate_break,
        }
        if mnemonic in leaving:
            return leaving[mnemonic]()
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
        above = self.op("add", sp, 1)
        if mnemonic == "PLA":
            value = self.pulled(sp, above)
            self.put("SP", above)
            self.put("A", value)
            self.set_nz(value)
            return
        self.leave_if(self.test("ugt", self.op("sub", sp, 0x80), 0x7E))
        self.put("SP", above)
        self.set_status(self.byte("memory", self.op("and", above, 0x7F)))

    def set_status(self, value: str) -> None:
        """Set the flags from a byte, as `cpu6507._set_status` does."""
        negative = self.op("shl", self.op("and", value, 0x80), 8)
        self.set_nz(self.op("or", negative, self.bit("eq", self.op("and", value, 2), 0)))
        for register, bit in (("V", 6), ("D", 3), ("C", 0)):
            self.put(register, self.op("and", self.op("lshr", value, bit), 1))
        self.put_word(CPU_I, self.op("and", self.op("lshr", value, 2), 1))

    def pulled(self, sp: str, above: str) -> str:
        """Return the byte that PLA pulls, from RAM or from the TIA.

        Some games temporarily point the stack at the TIA's missile and ball registers. There PLA reads two
        registers from INPT0 on and discards the first. The low six bits come from its opcode, which is still
        on the bus.
        """
        in_ram = self.test("ule", self.op("sub", sp, 0x80), 0x7E)
        return self.either(
            in_ram, lambda: self.byte("memory", self.op("and", above, 0x7F)), lambda: self.pulled_from_tia(sp)
        )

    def pulled_from_tia(self, sp: str) -> str:
        """Return the second of the two registers that PLA reads; exit if one is not an input."""
        register = self.op("sub", self.op("and", sp, 0x8F), 8)
        self.leave_if(self.test("ugt", register, 6))
        # Exit unless the log has space for both reads.
        self.leave_if(self.test("sge", self.get("COUNT"), LOG_CAPACITY - 1))
        self.log(READ_ENTRY)
        self.log(READ_ENTRY)
        register = self.op("add", register, 1)
        driven = self.value(f"select i1 {self.test('ult', register, 6)}, i32 {self.input(register)}, i32 0")
        return self.op("or", driven, 0x68 & 0x3F)

    def status(self) -> str:
        """Return the flags byte, as `cpu6507.status` does."""
        nz = self.get("NZ")
        byte = self.op("or", self.get("C"), 0x30)
        for value, shift in ((self.get("V"), 6), (self.get("D"), 3), (self.word(CPU_I), 2)):
            byte = self.op("or", byte, self.op("shl", value, shift))
        byte = self.op("or", byte, self.op("shl", self.bit("ne", self.op("and", nz, 0x8080), 0), 7))
        return self.op("or", byte, self.op("shl", self.bit("eq", self.op("and", nz, 0xFF), 0), 1))

    def translate(self, instruction: Instruction) -> None:
        """Translate one instruction and its exit."""
        self.now, self.leaves, self.extra = instruction, False, 0
        self.label(f"i{instruction.name}")
        self.skip_rounds()
        by_kind = {
            "read": self.translate_read, "write": self.translate_write, "rmw": self.translate_rmw,
            "branch": self.translate_branch, "jump": self.translate_jump, "none": self.translate_none,
        }  # fmt: skip
        if not by_kind[instruction.opcode.kind]():
            self.leave()
            self.entries.add(self.image.bank_after(instruction) >> 12 << 16 | instruction.following)
        if self.leaves:
            self.label(f"x{instruction.name}")
            self.stop(instruction.pc)

    def stop(self, pc: int | None = None, status: int = INTERPRET) -> None:
        """Return to the caller with a status; set PC to `pc` if given."""
        if pc is not None:
            self.put("PC", pc)
        self.give_back(status)

    def give_back(self, status: int | str) -> None:
        """Store the registers and return n << 2 | status."""
        for register, index in REGISTERS.items():
            self.put_word(index, self.get(register))
        self.line(f"ret i32 {self.op('or', self.op('shl', self.get('N'), 2), status)}")

    def place_name(self) -> str:
        """Return the name of the instruction at PC."""
        return self.op("or", self.op("shl", self.op("lshr", self.word(CART_BANK), 12), 16), self.get("PC"))

    def jump_to(self, name: str, prefix: str, places: set[int]) -> None:
        """Jump to the instruction with this name, or to the exit if it is not in `places`."""
        targets = " ".join(f"i32 {place}, label %{prefix}{place}" for place in sorted(places))
        self.line(f"switch i32 {name}, label %exit [ {targets} ]")

    def assembly(self) -> str:
        """Return the complete module as LLVM assembly."""
        for instruction in self.code.values():
            self.translate(instruction)
        body, self.lines = self.lines, []
        self.head()
        self.load_console()
        self.choose_way()
        functions = [decimal_mode.assembly(self.small_calls)]
        functions += [Music(self.pointers).assembly()] if self.image.kind == cartridge.DPC else []
        return "".join(functions) + "\n".join(
            [*self.lines, *body, "}", '!0 = !{!"branch_weights", i32 1, i32 2000}', ""]
        )

    def head(self) -> None:
        """Write the function head."""
        arguments = (
            "ptr noalias nocapture %s, ptr noalias nocapture %memory, ptr noalias nocapture readonly %rom"
        )
        self.lines.append(f"define i32 @run({arguments}, i32 %limit, i32 %status, i32 %group) nounwind {{")
        self.label("entry")

    def load_console(self) -> None:
        """Load the local variables, and the values that are constant during a call."""
        for register, index in REGISTERS.items():
            self.line(f"%{register} = alloca i32")
            self.put(register, self.word(index))
        self.line("%N = alloca i32")
        self.put("N", 0)
        # No path between two checks of the limit is longer than the complete code.
        self.line(f"%most = sub i32 %limit, {len(self.code) + 1}")
        slot = self.op("mul", self.word(LOG_SLOT), LOG_CAPACITY)
        first = self.value(f"sext i32 {self.op('add', slot, LOGS)} to i64")
        self.line(f"%log = getelementptr i32, {self.pointers['s']} %s, i64 {first}")
        self.line(f"%base = add i32 {self.word(LOG_BASE)}, 0")
        self.line(f"%line = sdiv i32 {self.word(FRAME_START)}, 3")
        last = self.op("sub", self.word(LINE_LIMIT), 1)
        self.line(f"%last_cycle = sdiv i32 {last}, 3")

    def choose_way(self) -> None:
        """Write the dispatch from the entry block to an instruction or to the exit."""
        self.line(f"br i1 {self.test('eq', '%status', LATCH)}, label %resume, label %dispatch, !prof !0")
        self.label("resume")
        self.jump_to(self.place_name(), "r", self.latch_reads)
        self.label("dispatch")
        known = self.fresh("k")
        self.line(f"br i1 {self.test('sgt', self.get('N'), '%most')}, label %exit, label %{known}, !prof !0")
        self.label(known)
        self.jump_to(self.place_name(), "i", self.entries & self.code.keys())
        self.label("exit")
        self.stop()


def translate(rom: np.ndarray, kind: int, seen: list[int], entries: set[int]) -> str:
    """Return LLVM assembly of the code reachable from the instructions in `seen`.

    `entries` are instructions reached by RTS, jumps by pointer and returns from the interpreter.
    """
    image = Image(rom, kind)
    code, reached = find_code(image, seen)
    return Translator(image, code, reached | entries).assembly()
