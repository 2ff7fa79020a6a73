"""What instructions do with registers and flags, as `mos6507/operations.py` does it for the interpreter."""

from ..state import CPU_I
from . import decimal_mode
from .flow import Flow

LOADS = {"LDA": "A", "LDX": "X", "LDY": "Y"}
COMPARES = {"CMP": "A", "CPX": "X", "CPY": "Y"}
LOGIC = {"AND": "and", "ORA": "or", "EOR": "xor"}


class Operations(Flow):
    """Generate arithmetic, logic and flags."""

    small_calls = "preserve_mostcc "  # calling convention of rarely used functions

    def set_nz(self, value: int | str) -> None:
        """Set N and Z from a byte, or from a CPU_NZ value (`alu.nz_of_flags`)."""
        self.put("NZ", value)

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

    def set_status(self, value: str) -> None:
        """Set the flags from a byte, as `interpreter._set_status` does."""
        negative = self.op("shl", self.op("and", value, 0x80), 8)
        self.set_nz(self.op("or", negative, self.bit("eq", self.op("and", value, 2), 0)))
        for register, bit in (("V", 6), ("D", 3), ("C", 0)):
            self.put(register, self.op("and", self.op("lshr", value, bit), 1))
        self.put_word(CPU_I, self.op("and", self.op("lshr", value, 2), 1))

    def status(self) -> str:
        """Return the flags byte, as `alu.status` does."""
        nz = self.get("NZ")
        byte = self.op("or", self.get("C"), 0x30)
        for value, shift in ((self.get("V"), 6), (self.get("D"), 3), (self.word(CPU_I), 2)):
            byte = self.op("or", byte, self.op("shl", value, shift))
        byte = self.op("or", byte, self.op("shl", self.bit("ne", self.op("and", nz, 0x8080), 0), 7))
        return self.op("or", byte, self.op("shl", self.bit("eq", self.op("and", nz, 0xFF), 0), 1))
