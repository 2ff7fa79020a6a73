"""Translate the 6507 code of a ROM to LLVM assembly, one function per ROM.

`interpreter.py` and `operations.py` in `mos6507/` define the instructions. This module translates the common
ones with all constants filled in: operands, branch targets, the device that an address selects. The
translation keeps the 6507 registers in local variables. Instructions run completely or not at all: if a check
fails (an access with side effects, a full log) or an instruction has no translation, the function returns
before the instruction and `interpreter.step` runs it. The translation may therefore be incomplete, but it
must not differ; tests compare it with the interpreter.
"""

import numpy as np

from .. import cartridge
from ..state import CPU_I, FRAME_START, LINE_LIMIT, LOG_BASE, LOG_CAPACITY, LOG_SLOT, LOGS
from . import decimal_mode
from .accesses import INDEX, LATCH, VSYNC, WSYNC
from .dpc_accesses import Music
from .flow import REGISTERS
from .operations import COMPARES, LOADS, LOGIC
from .rom_image import Image, Instruction, find_code
from .stack import Stack

BRANCH_TESTS = {  # register, mask, whether the branch is taken when the masked bits are zero
    "BNE": ("NZ", 0xFF, False), "BEQ": ("NZ", 0xFF, True),
    "BPL": ("NZ", 0x8080, True), "BMI": ("NZ", 0x8080, False),
    "BCC": ("C", 1, True), "BCS": ("C", 1, False), "BVC": ("V", 1, True), "BVS": ("V", 1, False),
}  # fmt: skip
TRANSFERS = {"TAX": ("A", "X"), "TAY": ("A", "Y"), "TXA": ("X", "A"), "TYA": ("Y", "A"), "TSX": ("SP", "X")}
STEPS = {"DEX": ("X", -1), "DEY": ("Y", -1), "INX": ("X", 1), "INY": ("Y", 1)}
FLAGS = {"CLC": ("C", 0), "SEC": ("C", 1), "CLD": ("D", 0), "SED": ("D", 1), "CLV": ("V", 0)}
STORES = {"STA": "A", "STX": "X", "STY": "Y"}
READS = {*LOADS, *COMPARES, *LOGIC, "ADC", "SBC", "BIT", "NOP"}


class Translator(Stack):
    """Generate the function of a ROM as LLVM assembly."""

    def __init__(self, image: Image, code: dict[int, Instruction], entries: set[int]) -> None:
        super().__init__(image, code, entries)
        self.latch_reads: set[int] = set()  # names of instructions that may resume after a LATCH return

    def translate_read(self) -> bool:
        """Translate an instruction that reads an operand from memory, or an immediate one."""
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

    def translate_rmw(self) -> bool:
        """Translate an instruction that reads, modifies and writes a byte of memory."""
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
        """Translate a store."""
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
        """Translate a conditional branch."""
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
