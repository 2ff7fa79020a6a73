"""Constant tables of the TIA, computed when the module is loaded.

`HMOVE_MOTION[cycle, nibble]` is the change of a position by an HMOVE at a CPU cycle of the scanline. Early in
the horizontal blank it is the full motion ``0, -1 .. -7, +8 .. +1``. Later strobes limit or invert the
motion.
"""

import numpy as np

REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint64)
DOUBLED = np.array([sum(3 << (2 * i) for i in range(8) if byte >> i & 1) for byte in range(256)], np.uint64)
QUADRUPLED = np.array(
    [sum(15 << (4 * i) for i in range(8) if byte >> i & 1) for byte in range(256)], np.uint64
)

# Copies by NUSIZ bits 0-2: bit k is set if there is a copy 16 * k pixels to the right.
COPIES = np.array([0b1, 0b11, 0b101, 0b111, 0b10001, 0b1, 0b10101, 0b1], np.int64)

SWEPT_TWICE = 76  # positions up to this one may also meet copies that extend beyond the right edge


def _strobe_relations() -> np.ndarray:
    """What a strobe of RESPx meets: -1 the delay before a copy, +1 a copy being displayed, 0 neither.

    By NUSIZ bits 0-2, whether the new position is at most `SWEPT_TWICE`, and new minus old position + 160.
    """
    table = np.zeros((8, 2, 320), np.int8)
    for mode, copies in enumerate(COPIES.tolist()):
        width = 16 if mode == 5 else 32 if mode == 7 else 8
        for turn in (0, 1):
            for difference in range(-160, 160):
                for k in range(5):
                    beyond = difference + 160 * turn - 16 * k
                    if copies >> k & 1 and 0 <= beyond < 4 + width:
                        table[mode, turn:, difference + 160] = -1 if beyond < 4 else 1
    return table


STROBE_RELATION = _strobe_relations()

# Mask of pixels 0 .. x-1 of a scanline, in three words.
PIXELS_BELOW = np.array(
    [[((1 << x) - 1) >> (64 * word) & (2**64 - 1) for word in range(3)] for x in range(161)], np.uint64
)

# Colour clocks from a write until it takes effect. -1 marks PF0-2, whose delay depends on the clock's phase.
WRITE_DELAY = np.zeros(64, np.int64)
WRITE_DELAY[[0x01, 0x0B, 0x0C, 0x1B, 0x1C]] = 1
WRITE_DELAY[[0x04, 0x05, 0x12, 0x13]] = 8
WRITE_DELAY[[0x0D, 0x0E, 0x0F]] = -1
PLAYFIELD_DELAY = np.array([4, 5, 2, 3], np.int64)


def _motion_table() -> np.ndarray:
    full = [-nibble if nibble < 8 else 16 - nibble for nibble in range(16)]
    floor = {
        4: -6, 5: -5, 6: -5, 7: -4, 8: -3, 9: -2, 10: -2, 11: -1, 12: 0, 13: 1, 14: 1, 15: 2, 16: 3, 17: 4,
        18: 4, 19: 5, 20: 6,
    }  # fmt: skip
    late = {
        55: 6, 56: 5, 57: 4, 58: 4, 59: 3, 60: 2, 61: 1, 62: 1, 63: 0, 64: -1, 65: -2, 66: -2, 67: -3, 68: -4,
        69: -5, 70: -5, 71: -6, 72: -7, 73: -8, 74: -8,
    }  # fmt: skip
    table = np.zeros((76, 16), np.int64)
    for cycle in range(76):
        for nibble, motion in enumerate(full):
            if cycle < 4 or cycle == 75:
                table[cycle, nibble] = motion
            elif cycle in floor:
                table[cycle, nibble] = max(motion, floor[cycle])
            elif cycle in late:
                table[cycle, nibble] = min(0, motion + late[cycle])
    return table


HMOVE_MOTION = _motion_table()
