"""The flow between translated instructions: counting them, jumping, and returning to the caller."""

from ..state import (
    CART_BANK,
    CPU_A,
    CPU_C,
    CPU_D,
    CPU_NZ,
    CPU_PC,
    CPU_SP,
    CPU_V,
    CPU_X,
    CPU_Y,
    CYCLES,
    LOG_COUNT,
    LOG_OPEN,
)
from .accesses import INTERPRET
from .idle_loops import IdleLoops
from .rom_image import Image, Instruction

REGISTERS = {
    "A": CPU_A, "X": CPU_X, "Y": CPU_Y, "SP": CPU_SP, "PC": CPU_PC, "NZ": CPU_NZ, "C": CPU_C, "V": CPU_V,
    "D": CPU_D, "CYCLES": CYCLES, "COUNT": LOG_COUNT, "OPEN": LOG_OPEN,
}  # fmt: skip


class Flow(IdleLoops):
    """Generate the way from one instruction to the next, or out of the function.

    Attributes: ``entries``, names of instructions at which the function may begin.
    """

    def __init__(self, image: Image, code: dict[int, Instruction], entries: set[int]) -> None:
        super().__init__(image, code)
        self.entries = set(entries)

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
        """Add an instruction and its cycles, with the page-crossing cycle `extra`, to the counters."""
        total = self.op("add", self.get("CYCLES"), cycles)
        self.put("CYCLES", total if extra == 0 else self.op("add", total, extra))
        self.put("N", self.op("add", self.get("N"), 1))

    def finish(self, extra: int | str = 0) -> None:
        """Count the current instruction and continue with the next."""
        self.count_instruction(self.now.opcode.cycles, extra)
        self.go(self.now.following)

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
