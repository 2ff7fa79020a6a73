"""Accesses to the DPC, the chip of Pitfall II, as machine code: its graphics fetchers and its music.

`cartridge.py` describes the chip. An access to a known address selects its fetcher and function at
translation time.
"""

import numpy as np

from ..cartridge import AMPLITUDE, CPU_CLOCK, MUSIC_CLOCK
from ..state import (
    DPC_BOTTOM,
    DPC_COUNTER,
    DPC_FLAG,
    DPC_FRACTION,
    DPC_MARK_CYCLE,
    DPC_MUSIC,
    DPC_RANDOM,
    DPC_TOP,
)
from .assembly import Assembly

GRAPHICS = 8192  # offset of the graphics in the image, stored in reverse order
READS, WRITES = range(0x40), range(0x40, 0x80)
MUSIC_FETCHERS = 5  # index of the first music fetcher


class DpcAccesses(Assembly):
    """Generate reads and writes of the fetchers' registers, by offset in the cartridge."""

    def clock_random(self) -> None:
        """Advance the random number, as every access to the chip's registers and hotspots does."""
        value = self.word(DPC_RANDOM)
        bits = [self.op("lshr", value, shift) for shift in (7, 5, 4, 3)]
        feedback = bits[0]
        for bit in bits[1:]:
            feedback = self.op("xor", feedback, bit)
        feedback = self.op("and", self.op("xor", feedback, 1), 1)
        self.put_word(DPC_RANDOM, self.op("or", self.op("and", self.op("shl", value, 1), 0xFF), feedback))

    def fetch(self, offset: int, cycle: str) -> str | int:
        """Read a fetcher at a cycle, as `cartridge._read_fetcher` does."""
        index, function = offset & 7, offset >> 3
        self.clock_random()
        counter = self.word(DPC_COUNTER + index)
        low = self.op("and", counter, 0xFF)
        at_bottom = self.test("eq", low, self.word(DPC_BOTTOM + index))
        at_top = self.test("eq", low, self.word(DPC_TOP + index))
        flag = self.value(f"select i1 {at_bottom}, i32 0, i32 {self.word(DPC_FLAG + index)}")
        flag = self.value(f"select i1 {at_top}, i32 255, i32 {flag}")
        self.put_word(DPC_FLAG + index, flag)
        result: str | int = 0
        if function == 0 and index < 4:
            result = self.word(DPC_RANDOM)
        elif function == 0:
            result = self.value(f"call i32 @music({self.pointers['s']} %s, i32 {cycle})")
            counter = self.word(DPC_COUNTER + index)  # the music may have changed it
        elif function in (1, 2):
            result = self.byte("rom", self.op("sub", GRAPHICS + 2047, counter))
            result = self.op("and", result, flag) if function == 2 else result
        elif function == 7:
            result = flag
        following = self.op("and", self.op("sub", counter, 1), 0x7FF)
        if index >= MUSIC_FETCHERS:
            still = self.test("ne", self.word(DPC_MUSIC + index), 0)
            following = self.value(f"select i1 {still}, i32 {counter}, i32 {following}")
        self.put_word(DPC_COUNTER + index, following)
        return result

    def set_fetcher(self, offset: int, value: int | str) -> None:
        """Write a fetcher register, as `cartridge._write_fetcher` does."""
        index, function = offset & 7, offset >> 3 & 7
        self.clock_random()
        if function == 0:
            self.put_word(DPC_TOP + index, value)
            self.put_word(DPC_FLAG + index, 0)
        elif function == 1:
            self.put_word(DPC_BOTTOM + index, value)
        elif function == 2:
            if index >= MUSIC_FETCHERS:
                plays = self.test("ne", self.word(DPC_MUSIC + index), 0)
                value = self.value(f"select i1 {plays}, i32 {self.word(DPC_TOP + index)}, i32 {value}")
            high = self.op("and", self.word(DPC_COUNTER + index), 0x700)
            self.put_word(DPC_COUNTER + index, self.op("or", high, value))
        elif function == 3:
            low = self.op("and", self.word(DPC_COUNTER + index), 0xFF)
            self.put_word(
                DPC_COUNTER + index, self.op("or", self.op("shl", self.op("and", value, 7), 8), low)
            )
            if index >= MUSIC_FETCHERS:
                self.put_word(DPC_MUSIC + index, self.op("and", self.op("lshr", value, 4), 1))
        elif function == 6:
            self.put_word(DPC_RANDOM, 1)


def exact(number: float) -> str:
    """Return a double in LLVM's hexadecimal notation, which does not round."""
    return f"0x{np.float64(number).view(np.uint64):016X}"


class Music(Assembly):
    """Generate the function ``i32 music(s, now)``: `cartridge._music_amplitude` at cycle `now`."""

    def __init__(self, pointers: dict[str, str]) -> None:
        super().__init__()
        self.pointers = pointers

    def assembly(self) -> str:
        """Return the function as LLVM assembly."""
        clocks = self.clocks_since_last_read()
        whole_long = self.value(f"fptosi double {clocks} to i64")
        rest = self.value(f"fsub double {clocks}, {self.value(f'sitofp i64 {whole_long} to double')}")
        self.line(
            f"store i64 {self.value(f'bitcast double {rest} to i64')}, "
            f"{self.pointers['s']} {self.fraction()}, align 4"
        )
        moved = self.value(f"icmp sgt i64 {whole_long}, 0")
        whole = self.value(f"trunc i64 {whole_long} to i32")
        shift: int | str = 0
        for voice in range(3):
            bit = self.move_voice(MUSIC_FETCHERS + voice, whole, moved)
            shift = self.op("add", shift, self.op("shl", bit, voice + 2))
        nibbles = sum(int(level) << 4 * k for k, level in enumerate(AMPLITUDE))
        amplitude = self.op("and", self.op("lshr", nibbles, shift), 15)
        body = "\n".join(self.lines)
        return (
            f"define internal i32 @music({self.pointers['s']} nocapture %s, i32 %now) noinline nounwind "
            f"{{\n{body}\n  ret i32 {amplitude}\n}}\n"
        )

    def fraction(self) -> str:
        """Return the address of the remaining fraction of a clock, a double in two words."""
        return self.value(f"getelementptr i32, {self.pointers['s']} %s, i64 {DPC_FRACTION}")

    def clocks_since_last_read(self) -> str:
        """Return the music clocks since the last read, including its remaining fraction; mark this read."""
        cycles = self.op("sub", "%now", self.word(DPC_MARK_CYCLE))
        self.put_word(DPC_MARK_CYCLE, "%now")
        loaded = self.value(f"load i64, {self.pointers['s']} {self.fraction()}, align 4")
        before = self.value(f"bitcast i64 {loaded} to double")
        clocks = self.value(
            f"fmul double {self.value(f'sitofp i32 {cycles} to double')}, {exact(MUSIC_CLOCK)}"
        )
        clocks = self.value(f"fdiv double {clocks}, {exact(CPU_CLOCK)}")
        return self.value(f"fadd double {clocks}, {before}")

    def move_voice(self, index: int, whole: str, moved: str) -> str:
        """Advance a music fetcher by `whole` clocks; return 1 if its voice is on, else 0."""
        top, counter, flag = (
            self.word(DPC_TOP + index),
            self.word(DPC_COUNTER + index),
            self.word(DPC_FLAG + index),
        )
        plays = self.test("ne", self.word(DPC_MUSIC + index), 0)
        moves = self.value(f"and i1 {plays}, {moved}")
        round_length = self.op("add", top, 1)
        low = self.op("sub", self.op("and", counter, 0xFF), self.op("urem", whole, round_length))
        wrapped = self.op("add", low, round_length)
        low = self.value(f"select i1 {self.test('slt', low, 0)}, i32 {wrapped}, i32 {low}")
        low = self.value(f"select i1 {self.test('eq', top, 0)}, i32 0, i32 {low}")
        new_flag = self.value(f"select i1 {self.test('sle', low, top)}, i32 255, i32 {flag}")
        new_flag = self.value(
            f"select i1 {self.test('sle', low, self.word(DPC_BOTTOM + index))}, i32 0, i32 {new_flag}"
        )
        new_counter = self.op("or", self.op("and", counter, 0x700), low)
        flag = self.value(f"select i1 {moves}, i32 {new_flag}, i32 {flag}")
        self.put_word(DPC_FLAG + index, flag)
        self.put_word(DPC_COUNTER + index, self.value(f"select i1 {moves}, i32 {new_counter}, i32 {counter}"))
        heard = self.value(f"and i1 {plays}, {self.test('ne', flag, 0)}")
        return self.value(f"zext i1 {heard} to i32")
