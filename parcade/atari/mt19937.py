"""The Mersenne Twister mt19937 (Matsumoto and Nishimura 1998), identical to ale-py's.

A stream is a uint32 array of 625: 624 words of state and the index of the next word. `seed` is the
standard initialisation by a single 32-bit integer, equal to numpy's legacy `MT19937` seeding.
"""

import numpy as np

from .compiling.jit import kernel, separate, stand_alone


@separate("void(uint32[::1], int64)")
def seed(stream, value):
    """Seed the stream with a 32-bit `value`."""
    stand_alone()
    word = np.uint64(value)
    stream[0] = np.uint32(word)
    for i in range(1, 624):
        word = (word ^ (word >> np.uint64(30))) * np.uint64(1812433253) + np.uint64(i)
        word &= np.uint64(0xFFFFFFFF)
        stream[i] = np.uint32(word)
    stream[624] = np.uint32(624)


@kernel
def _twist(stream):
    stand_alone()
    for i in range(624):
        following = stream[0] if i == 623 else stream[i + 1]
        joined = (stream[i] & np.uint32(0x80000000)) | (following & np.uint32(0x7FFFFFFF))
        word = stream[i + 397 if i < 227 else i - 227] ^ (joined >> np.uint32(1))
        if joined & np.uint32(1):
            word ^= np.uint32(0x9908B0DF)
        stream[i] = np.uint32(word)
    stream[624] = np.uint32(0)


@kernel
def draw(stream):
    """Return the next 32-bit output as int64."""
    stand_alone()
    if stream[624] >= 624:
        _twist(stream)
    index = np.int64(stream[624])
    word = np.uint32(stream[index])
    stream[624] = np.uint32(index + 1)
    word ^= word >> np.uint32(11)
    word ^= (word << np.uint32(7)) & np.uint32(0x9D2C5680)
    word ^= (word << np.uint32(15)) & np.uint32(0xEFC60000)
    word ^= word >> np.uint32(18)
    return np.int64(word & np.uint32(0xFFFFFFFF))
