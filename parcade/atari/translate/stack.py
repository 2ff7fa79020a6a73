"""Jumps, subroutines, interrupts and the stack."""

from .. import cartridge
from ..state import CPU_I, LOG_CAPACITY
from .operations import Operations

IRQ_VECTOR = 0xFFFE


class Stack(Operations):
    """Generate the instructions that change the program counter or the stack, except branches.

    The `translate_...` methods translate the current instruction, `now`, or return False if they cannot.
    """

    def translate_jump(self) -> bool:
        """Translate JMP, to an address or through a pointer, or JSR."""
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

    def push(self, value: int | str) -> None:
        """Push a byte: PHA and PHP."""
        sp = self.get("SP")
        self.write_to(sp, value)
        self.put("SP", self.op("and", self.op("sub", sp, 1), 0xFF))

    def pull(self, mnemonic: str) -> None:
        """Translate PLA or PLP."""
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
        """Return the second of the two registers that PLA reads; exit if one may be a collision latch."""
        register = self.op("sub", self.op("and", sp, 0x8F), 8)
        self.leave_if(self.test("ugt", register, 6))
        # Exit unless the log has space for both reads.
        self.leave_if(self.test("sge", self.get("COUNT"), LOG_CAPACITY - 1))
        self.log_read()
        self.log_read()
        register = self.op("add", register, 1)
        driven = self.value(f"select i1 {self.test('ult', register, 6)}, i32 {self.input(register)}, i32 0")
        return self.op("or", driven, 0x68 & 0x3F)
