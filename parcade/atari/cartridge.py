"""Cartridges: the mapping from addresses to bytes of the ROM image, and bank switching.

All kinds use one representation: an image of 4K banks and the offset `CART_BANK` of the mapped bank, so that
a plain read is ``image[CART_BANK + (address & 0xFFF)]``. E0 maps three 1K slices independently; it becomes
512 banks, one for each combination of slices.

| kind | size   | banks                                                                                 |
|------|--------|---------------------------------------------------------------------------------------|
| 2K   | 2048   | one, mirrored to 4K                                                                   |
| 4K   | 4096   | one                                                                                   |
| F8   | 8192   | two, $1FF8-9; starts with bank 1                                                      |
| F8SC | 8192   | F8 and 128 bytes of RAM: write $1000-7F, read $1080-FF                                |
| F6   | 16384  | four, $1FF6-9; starts with bank 0                                                     |
| F6SC | 16384  | F6 and the RAM of F8SC                                                                |
| E0   | 8192   | 1K slices: $1FE0-7 select $1000-, $1FE8-F $1400-, $1FF0-7 $1800-; $1C00- is slice 7   |
| FE   | 8192   | no hotspots: bit 13 of the CPU's address selects the half                             |
| DPC  | 10240+ | F8, 2K of graphics behind eight data fetchers at $1000-$107F, a random register       |

A read of a hotspot switches the bank first and returns a byte of the new bank. Writes switch like reads.
"""

import numpy as np

from .compiling.jit import kernel, stand_alone
from .mt19937 import draw
from .state import (
    CART_BANK,
    CART_KIND,
    CART_RAM,
    CYCLES,
    DPC_BOTTOM,
    DPC_COUNTER,
    DPC_FLAG,
    DPC_FRACTION,
    DPC_MARK_CYCLE,
    DPC_MUSIC,
    DPC_RANDOM,
    DPC_TOP,
)

RESERVED_BYTES = 16  # at the end of an expanded image: number of notes, address of the machine code

PLAIN, F8, F8SC, F6, F6SC, E0, FE, DPC = range(8)
KIND_OF_TYPE = {
    "2K": PLAIN,
    "4K": PLAIN,
    "F8": F8,
    "F8SC": F8SC,
    "F6": F6,
    "F6SC": F6SC,
    "E0": E0,
    "FE": FE,
    "DPC": DPC,
}

# By kind: range [start, end) of addresses whose reads have no side effect and come from the mapped bank.
PLAIN_START = np.array([0x1000, 0x1000, 0x1100, 0x1000, 0x1100, 0x1000, 0x1000, 0x1080], np.int64)
PLAIN_END = np.array([0x2000, 0x1FF8, 0x1FF8, 0x1FF6, 0x1FF6, 0x1FE0, 0x1000, 0x1FC0], np.int64)

MUSIC_CLOCK, CPU_CLOCK = 15750.0, 1193191.66666667  # Hz
AMPLITUDE = np.array([0, 4, 5, 9, 6, 10, 11, 15], np.int64)


def detect_type(image: bytes) -> str:
    """Guess the cartridge type of an unknown ROM from its size and a few characteristic instructions."""
    size = len(image)
    if size <= 2048:
        return "2K"
    if size <= 4096:
        return "2K" if image[:2048] == image[2048:4096] else "4K"
    if size <= 8192:
        if all(len(set(image[bank : bank + 256])) == 1 for bank in (0, 4096)):
            return "F8SC"
        slices = (
            [0x8D, 0xE0, 0x1F],
            [0x8D, 0xE0, 0x5F],
            [0x8D, 0xE9, 0xFF],
            [0xAD, 0xE9, 0xFF],
            [0xAD, 0xED, 0xFF],
            [0xAD, 0xF3, 0xBF],
        )
        if any(bytes(code) in image for code in slices):
            return "E0"
        if any(
            bytes(code) in image
            for code in (
                [0x20, 0x00, 0xD0, 0xC6, 0xC5],
                [0x20, 0xC3, 0xF8, 0xA5, 0x82],
                [0xD0, 0xFB, 0x20, 0x73, 0xFE],
            )
        ):
            return "FE"
        return "F8"
    if size < 16384:
        return "DPC"
    return "F6SC" if all(len(set(image[bank : bank + 256])) == 1 for bank in range(0, 16384, 4096)) else "F6"


def expand_image(image: bytes, kind: int) -> np.ndarray:
    """Return the image in the common representation, uint8.

    Short images are padded with zeros. As many bytes follow for `translate/notes.py`, then `RESERVED_BYTES`.
    """
    size = {PLAIN: 4096, F8: 8192, F8SC: 8192, F6: 16384, F6SC: 16384, E0: 8192, FE: 8192, DPC: 10240}[kind]
    if kind == PLAIN and len(image) <= 2048:
        image = image.ljust(2048, b"\0") * 2
    data = np.frombuffer(image.ljust(size, b"\0")[:size], np.uint8)
    if kind != E0:
        return np.concatenate([data, np.zeros(len(data) + RESERVED_BYTES, np.uint8)])
    slices = data.reshape(8, 1024)
    combination = np.arange(512)
    banks = np.empty((512, 4, 1024), np.uint8)
    for segment in range(3):
        banks[:, segment] = slices[(combination >> (3 * segment)) & 7]
    banks[:, 3] = slices[7]
    return np.concatenate([banks.reshape(-1), np.zeros(banks.size + RESERVED_BYTES, np.uint8)])


def image_size(rom: np.ndarray) -> int:
    """Return the number of bytes of an expanded image without what follows it."""
    return (len(rom) - RESERVED_BYTES) >> 1


@kernel
def power_on(s):
    """Set the state that is initialised when the console is built, but not at reset."""
    stand_alone()
    for word in range(DPC_TOP, DPC_RANDOM):  # of the fetchers
        s[word] = 0
    s[DPC_RANDOM] = 1
    s[DPC_FRACTION] = 0
    s[DPC_FRACTION + 1] = 0


@kernel
def reset(s, memory, stream):
    """System reset. Cartridge RAM is filled from the system's random stream."""
    stand_alone()
    kind = s[CART_KIND]
    if kind == F8 or kind == F8SC or kind == DPC:
        s[CART_BANK] = 4096
    elif kind == E0:
        s[CART_BANK] = (4 | 5 << 3 | 6 << 6) << 12
    else:
        s[CART_BANK] = 0
    if kind == F8SC or kind == F6SC:
        for i in range(128):
            memory[CART_RAM + i] = np.uint8(draw(stream) & 0xFF)
    s[DPC_MARK_CYCLE] = s[CYCLES]


@kernel
def switch(s, offset):
    """Switch the bank if `offset` (0xFC0-0xFFF) is a hotspot of a banked cartridge."""
    stand_alone()
    kind = s[CART_KIND]
    if kind == F8 or kind == F8SC or kind == DPC:
        if offset == 0xFF8 or offset == 0xFF9:
            s[CART_BANK] = (offset - 0xFF8) << 12
    elif kind == F6 or kind == F6SC:
        if 0xFF6 <= offset <= 0xFF9:
            s[CART_BANK] = (offset - 0xFF6) << 12
    elif kind == E0:
        if 0xFE0 <= offset <= 0xFF7:
            position = 12 + 3 * ((offset - 0xFE0) >> 3)
            s[CART_BANK] = (np.int64(s[CART_BANK]) & ~(7 << position)) | ((offset & 7) << position)


@kernel
def read(s, memory, rom, address):
    """Read `address` (16 bits, bit 12 set), with side effects; return the byte."""
    stand_alone()
    kind = s[CART_KIND]
    offset = np.int64(address) & 0xFFF
    if kind == PLAIN:
        return np.int64(rom[offset])
    if kind == FE:
        return np.int64(rom[offset + (0 if address & 0x2000 else 4096)])
    if (kind == F8SC or kind == F6SC) and 0x80 <= offset < 0x100:
        return np.int64(memory[CART_RAM + (offset & 0x7F)])
    if kind == DPC and (offset < 0x80 or offset >= 0xFC0):
        _clock_random(s)
        if offset < 0x40:
            return _read_fetcher(s, rom, offset)
    if offset >= 0xFC0:
        switch(s, offset)
    return np.int64(rom[np.int64(s[CART_BANK]) + offset])


@kernel
def write(s, memory, address, value):
    """Write to `address` (bit 12 set)."""
    stand_alone()
    kind = s[CART_KIND]
    offset = np.int64(address) & 0xFFF
    if kind == PLAIN or kind == FE:
        return
    if (kind == F8SC or kind == F6SC) and offset < 0x80:
        memory[CART_RAM + offset] = np.uint8(value)
    if kind == DPC and (offset < 0x80 or offset >= 0xFC0):
        _clock_random(s)
        if 0x40 <= offset < 0x80:
            _write_fetcher(s, offset, value)
    if offset >= 0xFC0:
        switch(s, offset)


@kernel
def _clock_random(s):
    stand_alone()
    value = np.int64(s[DPC_RANDOM])
    feedback = 1 ^ ((value >> 7) ^ (value >> 5) ^ (value >> 4) ^ (value >> 3)) & 1
    s[DPC_RANDOM] = (value << 1 & 0xFF) | (feedback & 1)


@kernel
def _read_fetcher(s, rom, offset):
    stand_alone()
    index = offset & 7
    function = (offset >> 3) & 7
    counter = np.int64(s[DPC_COUNTER + index])
    if counter & 0xFF == s[DPC_TOP + index]:
        s[DPC_FLAG + index] = 0xFF
    elif counter & 0xFF == s[DPC_BOTTOM + index]:
        s[DPC_FLAG + index] = 0
    result = np.int64(0)
    if function == 0:
        if index < 4:
            result = np.int64(s[DPC_RANDOM])
        else:
            result = _music_amplitude(s)
    elif function == 1:
        result = np.int64(rom[8192 + 2047 - counter])
    elif function == 2:
        result = np.int64(rom[8192 + 2047 - counter]) & np.int64(s[DPC_FLAG + index])
    elif function == 7:
        result = np.int64(s[DPC_FLAG + index])
    if index < 5 or s[DPC_MUSIC + index] == 0:
        # Reload the counter: the music read above may have changed it.
        s[DPC_COUNTER + index] = (np.int64(s[DPC_COUNTER + index]) - 1) & 0x7FF
    return result


@kernel
def _write_fetcher(s, offset, value):
    stand_alone()
    index = offset & 7
    function = (offset >> 3) & 7
    counter = np.int64(s[DPC_COUNTER + index])
    if function == 0:
        s[DPC_TOP + index] = value
        s[DPC_FLAG + index] = 0
    elif function == 1:
        s[DPC_BOTTOM + index] = value
    elif function == 2:
        if index >= 5 and s[DPC_MUSIC + index] != 0:
            s[DPC_COUNTER + index] = (counter & 0x700) | np.int64(s[DPC_TOP + index])
        else:
            s[DPC_COUNTER + index] = (counter & 0x700) | value
    elif function == 3:
        s[DPC_COUNTER + index] = ((value & 7) << 8) | (counter & 0xFF)
        if index >= 5:
            s[DPC_MUSIC + index] = (value >> 4) & 1
    elif function == 6:
        s[DPC_RANDOM] = 1


@kernel
def _music_amplitude(s):
    """Advance the music fetchers by the time since the last music read; return the amplitude, 0-15."""
    stand_alone()
    low_word = np.int64(s[DPC_FRACTION]) & 0xFFFFFFFF
    fraction = np.int64(np.int64(s[DPC_FRACTION + 1]) << 32 | low_word).view(np.float64)
    cycles = np.int64(s[CYCLES]) - np.int64(s[DPC_MARK_CYCLE])
    s[DPC_MARK_CYCLE] = s[CYCLES]
    clocks = MUSIC_CLOCK * cycles / CPU_CLOCK + fraction
    whole = np.int64(clocks)
    bits = np.float64(clocks - whole).view(np.int64)
    s[DPC_FRACTION + 1] = np.int32(bits >> 32)
    low_word = bits & 0xFFFFFFFF
    s[DPC_FRACTION] = np.int32(low_word - 0x100000000 if low_word >= 0x80000000 else low_word)
    amplitude = 0
    for voice in range(3):
        index = 5 + voice
        if s[DPC_MUSIC + index] != 0:
            if whole > 0:
                top = np.int64(s[DPC_TOP + index])
                low = np.int64(s[DPC_COUNTER + index]) & 0xFF
                if top != 0:
                    low -= whole % (top + 1)
                    if low < 0:
                        low += top + 1
                else:
                    low = np.int64(0)
                if low <= s[DPC_BOTTOM + index]:
                    s[DPC_FLAG + index] = 0
                elif low <= top:
                    s[DPC_FLAG + index] = 0xFF
                s[DPC_COUNTER + index] = (np.int64(s[DPC_COUNTER + index]) & 0x700) | low
            if s[DPC_FLAG + index] != 0:
                amplitude |= 1 << voice
    return AMPLITUDE[amplitude]
