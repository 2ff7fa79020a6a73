"""The log of TIA accesses as machine code: every access writes an entry, which stays if it is news.

`tia/log.py` says what news is, and `is_news` there computes the same. There is no branch: on a GPU the lanes
of a warp would part at it, and a CPU could not predict it.
"""

from ..state import LOG_CAPACITY, WRITTEN
from ..tia.log import ALWAYS_NEWS, COMPARED, KNOWN, PENDING
from ..tia.writes import ENABL, GRP0, GRP1, HMBL, HMCLR, HMP0, NOTHING
from .dpc_accesses import DpcAccesses
from .rom_image import Instruction

# A register, and the one whose write makes its new value visible if it is delayed.
DELAYED_BY = {GRP0: GRP1, ENABL: GRP1, GRP1: GRP0}


class LogAccesses(DpcAccesses):
    """Generate entries of the log, and exits of the current instruction, `now`, to the interpreter."""

    def __init__(self) -> None:
        super().__init__()
        self.now: Instruction | None = None
        self.leaves = False  # the current instruction has an exit to the interpreter
        self.extra: int | str = 0  # its page-crossing cycle

    def leave_if(self, condition: str) -> None:
        """Exit to the interpreter before the current instruction if the condition holds."""
        on = self.fresh("c")
        self.leaves = True
        self.line(f"br i1 {condition}, label %x{self.now.name}, label %{on}, !prof !0")
        self.label(on)

    def leave(self) -> None:
        """Exit to the interpreter before the current instruction."""
        self.leaves = True
        self.line(f"br label %x{self.now.name}")

    def end_cycle(self) -> str:
        """Return the cycle that the instruction's accesses see, including the page-crossing cycle."""
        end = self.op("add", self.get("CYCLES"), self.now.opcode.cycles)
        return end if self.extra == 0 else self.op("add", end, self.extra)

    def log_read(self) -> None:
        """Log a read. Exit if the log is full or the frame too long, as every access does."""
        self._check_log()
        self._put_entry(NOTHING << 8, 0)

    def log_write(self, register: int, value: int | str) -> None:
        """Log a write to a known register."""
        self._check_log()
        self._put_entry(self.op("or", value, register << 8), self._news(register, value))

    def log_write_to_any(self, register: str, value: int | str) -> None:
        """Log a write to a register known only at run time. It is not HMCLR."""
        self._check_log()
        self._put_entry(self.op("or", self.op("shl", register, 8), value), self._news_of_any(register, value))

    def _check_log(self) -> None:
        late = self.test("sgt", self.end_cycle(), "%last_cycle")
        full = self.test("sge", self.get("COUNT"), LOG_CAPACITY)
        self.leave_if(self.value(f"or i1 {late}, {full}"))

    def _put_entry(self, entry: int | str, news: int | str) -> None:
        """Write an entry; unless `news` is 1, the next access overwrites it."""
        time = self.op("shl", self.op("sub", self.end_cycle(), "%base"), 14)
        count = self.get("COUNT")
        index = self.value(f"zext i32 {count} to i64")
        kind = self.pointers["s"]
        at = self.value(f"getelementptr i32, {kind} %log, i64 {index}")
        self.line(f"store i32 {self.op('or', time, entry)}, {kind} {at}")
        self.put("COUNT", self.op("add", count, news))
        self.put("OPEN", self.op("xor", news, 1))

    def _news(self, register: int, value: int | str) -> int | str:
        """Return 1 if a write is news, otherwise 0; remember its value."""
        if register == HMCLR:
            for motion in range(HMP0, HMBL + 1):
                self.put_word(WRITTEN + motion, 0)
        if not COMPARED >> register & 1:
            return ALWAYS_NEWS >> register & 1
        now, before = self.op("or", value, KNOWN), self.word(WRITTEN + register)
        self.put_word(WRITTEN + register, now)
        if register in DELAYED_BY:
            self._make_pending(DELAYED_BY[register], self._changes(before, now))
        return self.bit("ne", before, now)

    def _news_of_any(self, register: str, value: int | str) -> str:
        """Return the same for a register known only at run time."""
        at = self.op("add", register, WRITTEN)
        compared = self.test("ne", self._is_member(COMPARED, register), 0)
        before = self.word(at)
        now = self.value(f"select i1 {compared}, i32 {self.op('or', value, KNOWN)}, i32 {before}")
        self.put_word(at, now)
        changes = self._changes(before, now)
        for source, copying in DELAYED_BY.items():
            self._make_pending(copying, self.op("and", changes, self.bit("eq", register, source)))
        return self.op("or", self.bit("ne", before, now), self._is_member(ALWAYS_NEWS, register))

    def _changes(self, before: str, now: str) -> str:
        """Return 1 if two words of WRITTEN have different values."""
        return self.bit("ne", self.op("and", self.op("xor", before, now), ~PENDING), 0)

    def _make_pending(self, register: int, changes: str) -> None:
        """Make the next write to GRP0 or GRP1 news if `changes` is 1."""
        held = self.word(WRITTEN + register)
        self.put_word(WRITTEN + register, self.op("or", held, self.op("mul", changes, PENDING)))

    def _is_member(self, registers: int, register: str) -> str:
        """Return 1 if a set of registers, bit n for register n, has this one."""
        index = self.value(f"zext i32 {register} to i64")
        shifted = self.value(f"lshr i64 {registers}, {index}")
        return self.op("and", self.value(f"trunc i64 {shifted} to i32"), 1)
