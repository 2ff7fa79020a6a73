"""Decimal ADC and SBC as machine code: separate functions, since games rarely use them except for scores.

``i32 decimal_add(a, m, c)`` and ``i32 decimal_subtract(a, m, c)`` return result | carry << 8 | overflow << 9
of `alu.add` and `alu.subtract`.
"""

from .assembly import Assembly

ADD, SUBTRACT = "decimal_add", "decimal_subtract"


class Decimal(Assembly):
    """The body of one of the two functions."""

    def number(self, byte: str) -> str:
        """Return the decimal value of a byte; bytes that are not valid decimals also have a value."""
        return self.op("add", self.op("mul", self.op("lshr", byte, 4), 10), self.op("and", byte, 15))

    def overflow(self, result: str, other: str, subtracting: bool) -> str:
        """Return bit 7 of (a ^ result) & (result ^ m), or of (a ^ result) & (a ^ m) when subtracting."""
        signs = self.op(
            "and", self.op("xor", "%a", result), self.op("xor", other if not subtracting else "%a", "%m")
        )
        return self.op("and", self.op("lshr", signs, 7), 1)

    def assembly(self, subtracting: bool, convention: str) -> str:
        """Return the function as LLVM assembly with this calling convention."""
        if subtracting:
            total = self.op(
                "sub", self.op("sub", self.number("%a"), self.number("%m")), self.op("sub", 1, "%c")
            )
            carry = self.bit("sge", "%a", self.op("add", "%m", self.op("sub", 1, "%c")))
            total = self.op("add", total, 200)  # the total is at least -166, and hundreds are dropped
        else:
            total = self.op("add", self.op("add", self.number("%a"), self.number("%m")), "%c")
            carry = self.bit("ugt", total, 99)
            total = self.op("and", total, 0xFF)
        shown = self.op("urem", total, 100)
        result = self.op("or", self.op("shl", self.op("udiv", shown, 10), 4), self.op("urem", shown, 10))
        overflow = self.overflow(result, result, subtracting)
        both = self.op("or", result, self.op("or", self.op("shl", carry, 8), self.op("shl", overflow, 9)))
        name, body = SUBTRACT if subtracting else ADD, "\n".join(self.lines)
        return (
            f"define internal {convention}i32 @{name}(i32 %a, i32 %m, i32 %c) noinline nounwind "
            f"{{\n{body}\n  ret i32 {both}\n}}\n"
        )


def assembly(convention: str) -> str:
    """Return both functions as LLVM assembly."""
    return "".join(Decimal().assembly(subtracting, convention) for subtracting in (False, True))
