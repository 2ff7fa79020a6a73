"""Accesses to Pitfall II's chip, the DPC, as machine code: its fetchers of graphics, not its music.

`cartridge.py` says what the chip does; an access at a known address knows its fetcher and its function beforehand.
"""

from .assembly import Assembly
from .state import DPC_BOTTOM, DPC_COUNTER, DPC_FLAG, DPC_MUSIC, DPC_RANDOM, DPC_TOP

GRAPHICS = 8192  # where they begin in the image, last byte first
READS, WRITES = range(0x40), range(0x40, 0x80)
MUSIC_FETCHERS = 5  # from this one on


class DpcAccesses(Assembly):
    """Reads and writes of the fetchers' registers at an offset in the cartridge."""

    def can_fetch(self, offset: int) -> bool:
        """Whether a read has a translation: all but those of the music, which moves by the clock."""
        return offset in READS and not (offset >> 3 == 0 and offset & 7 >= 4)

    def clock_random(self) -> None:
        """What every access to the chip's registers and hotspots does besides."""
        value = self.word(DPC_RANDOM)
        bits = [self.op("lshr", value, shift) for shift in (7, 5, 4, 3)]
        feedback = bits[0]
        for bit in bits[1:]:
            feedback = self.op("xor", feedback, bit)
        feedback = self.op("and", self.op("xor", feedback, 1), 1)
        self.put_word(DPC_RANDOM, self.op("or", self.op("and", self.op("shl", value, 1), 0xFF), feedback))

    def fetch(self, offset: int) -> str | int:
        """The byte a read gives, as `cartridge._read_fetcher`."""
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
        if function == 0:
            result = self.word(DPC_RANDOM)
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
        """A write, as `cartridge._write_fetcher`."""
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
            self.put_word(DPC_COUNTER + index, self.op("or", self.op("shl", self.op("and", value, 7), 8), low))
            if index >= MUSIC_FETCHERS:
                self.put_word(DPC_MUSIC + index, self.op("and", self.op("lshr", value, 4), 1))
        elif function == 6:
            self.put_word(DPC_RANDOM, 1)
