"""Skip idle loops: two instructions that count a register down or poll the timer.

Games wait for the end of blanking in a loop on the RIOT's timer, and for a position in the scanline in a loop
on X or Y. These loops make up to a third of all instructions. Their iterations differ only in the clock and
the register, so all but the last are counted instead of run. Nothing is skipped if an iteration could leave
machine code (the timer has expired, or the instruction limit is near).
"""

from ..state import RIOT_SET_CYCLE, RIOT_SHIFT, RIOT_TIMER
from .accesses import Accesses
from .rom_image import Image, Instruction

COUNTERS = {"DEX": "X", "DEY": "Y"}
POLLS = ("LDA", "LDX", "LDY")
INTIM, TIMINT, TIMER_LINES = 0x284, 0x285, 0x1285  # timer, its flag, and the address lines that select them
LARGEST_POSITIVE = 0x7F
INSTRUCTIONS = 2  # per iteration


class IdleLoops(Accesses):
    """Skip iterations before the first instruction of an idle loop."""

    def __init__(self, image: Image, code: dict[int, Instruction]) -> None:
        super().__init__(image)
        self.code = code

    def skip_rounds(self) -> None:
        """If the current and the next instruction form an idle loop, skip all iterations but the last."""
        now = self.now
        branch = self.code.get((now.name & ~0xFFFF) | now.following)
        if branch is None or branch.opcode.mnemonic not in ("BNE", "BPL") or branch.target != now.pc:
            return
        cycles = (
            now.opcode.cycles
            + branch.opcode.cycles
            + (1 if (branch.target ^ branch.following) & 0xFF00 == 0 else 2)
        )
        ends_at_zero = branch.opcode.mnemonic == "BNE"
        if now.opcode.mnemonic in COUNTERS:
            self._skip_count(COUNTERS[now.opcode.mnemonic], cycles, ends_at_zero)
        elif now.opcode.mode != "abs":
            return
        elif now.opcode.mnemonic in POLLS and now.address & TIMER_LINES == INTIM:
            self._skip_poll(cycles, ends_at_zero)
        elif now.opcode.mnemonic == "BIT" and now.address & TIMER_LINES == TIMINT and not ends_at_zero:
            self._skip_poll(cycles, ends_at_zero=False, any_value=True)

    def _skip_count(self, register: str, cycles: int, ends_at_zero: bool) -> None:
        """Skip to one iteration before a counting loop ends."""
        counter = self.get(register)
        if ends_at_zero:
            rounds = self.op("and", self.op("sub", counter, 1), 0xFF)
        else:
            positive = self.test("ule", counter, LARGEST_POSITIVE)
            rounds = self.value(f"select i1 {positive}, i32 {counter}, i32 0")
        rounds = self._pass(rounds, cycles)
        self.put(register, self.op("and", self.op("sub", counter, rounds), 0xFF))

    def _skip_poll(self, cycles: int, ends_at_zero: bool, any_value: bool = False) -> None:
        """Skip to the last read of the timer; `Accesses.timer` computes its value.

        `any_value`: the loop polls the timer's flag, so it waits whatever the value of the timer.
        """
        delta = self.op("sub", self.op("sub", self.end_cycle(), 1), self.word(RIOT_SET_CYCLE))
        timer, shift = self.word(RIOT_TIMER), self.word(RIOT_SHIFT)
        last = self.op("shl", self.op("sub", timer, 1) if ends_at_zero else timer, shift)
        left = self.op("sub", last, delta)
        rounds = self.op("sdiv", self.op("add", left, cycles - 1), cycles)
        waits = self.value(f"and i1 {self.test('sge', delta, 0)}, {self.test('sgt', left, 0)}")
        if not ends_at_zero and not any_value:  # above 127, BPL falls through
            shown = self.op("sub", self.op("sub", timer, self.op("lshr", delta, shift)), 1)
            waits = self.value(f"and i1 {waits}, {self.test('ule', shown, LARGEST_POSITIVE)}")
        self._pass(self.value(f"select i1 {waits}, i32 {rounds}, i32 0"), cycles)

    def _pass(self, rounds: str, cycles: int) -> str:
        """Count skipped iterations; return their number, 0 if the instruction limit is too near."""
        after = self.op("add", self.get("N"), self.op("mul", rounds, INSTRUCTIONS))
        rounds = self.value(f"select i1 {self.test('sle', after, '%most')}, i32 {rounds}, i32 0")
        self.put("N", self.op("add", self.get("N"), self.op("mul", rounds, INSTRUCTIONS)))
        self.put("CYCLES", self.op("add", self.get("CYCLES"), self.op("mul", rounds, cycles)))
        return rounds
