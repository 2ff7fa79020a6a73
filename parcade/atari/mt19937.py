"""The Mersenne Twister mt19937 (Matsumoto and Nishimura 1998), as ale-py draws from it.

A stream is a uint32 array of 625: 624 words of state and the index of the next word. `seed` is the
standard initialisation by a single 32-bit integer, equal to numpy's legacy `MT19937` seeding.

A stream can be kept as its seed and how many numbers were drawn: `restore` makes it again, `origin` finds both in a stream by
turning it back. A *counted* stream, 626 words long, counts in the last one how often its state was renewed, so that
`position` knows how many numbers were drawn without turning back.
"""

import numpy as np

from .jit import kernel, separate, stand_alone

RENEWALS = 625  # word of a counted stream
COUNTED_WORDS = 626
MOST_RENEWALS = 100_000  # that `origin` turns back: 62 million numbers


@separate("void(uint32[::1], int64)")
def seed(stream, value):
    """Start the stream anew from a 32-bit `value`."""
    stand_alone()
    word = np.uint64(value)
    stream[0] = np.uint32(word)
    for i in range(1, 624):
        word = (word ^ (word >> np.uint64(30))) * np.uint64(1812433253) + np.uint64(i)
        word &= np.uint64(0xFFFFFFFF)
        stream[i] = np.uint32(word)
    stream[624] = np.uint32(624)
    if len(stream) > RENEWALS:
        stream[RENEWALS] = np.uint32(0)


@kernel
def _twist(stream):
    stand_alone()
    if len(stream) > RENEWALS:
        stream[RENEWALS] += np.uint32(1)
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
    """The next 32-bit output, as int64."""
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


@kernel
def skip(stream, count):
    """Pass over `count` outputs."""
    stand_alone()
    index = np.int64(stream[624])
    left = np.int64(count)
    while left > 0:
        if index >= 624:
            _twist(stream)
            index = np.int64(0)
        passed = min(left, 624 - index)
        index += passed
        left -= passed
    stream[624] = np.uint32(index)


@kernel
def position(stream):
    """Numbers drawn from a counted stream since it was seeded."""
    stand_alone()
    return 624 * (np.int64(stream[RENEWALS]) - 1) + np.int64(stream[624])


@kernel
def restore(stream, value, drawn):
    """The stream of a seed after so many draws."""
    stand_alone()
    seed(stream, value)
    skip(stream, drawn)


@kernel
def _seed_of(stream):
    """The seed of a state as `seed` leaves it, -1 for any other state."""
    stand_alone()
    # Times the inverse of the factor modulo 2**32. The state's first word is not to be trusted: 31 of its bits play no part in what follows.
    mixed = ((np.int64(stream[1]) - 1) * np.int64(2520285293)) & np.int64(0xFFFFFFFF)
    value = mixed ^ (mixed >> 30)
    word = value
    for i in range(1, 624):
        word = ((word ^ (word >> 30)) * np.int64(1812433253) + i) & np.int64(0xFFFFFFFF)
        if word != np.int64(stream[i]):
            return np.int64(-1)
    return value


@kernel
def _turn_back(stream):
    """Undo `_twist`, but for the index."""
    stand_alone()
    for i in range(623, -1, -1):
        word = np.int64(stream[i]) ^ np.int64(stream[i + 397 if i < 227 else i - 227])
        if word & 0x80000000:
            word ^= 0x9908B0DF
        top = (word << 1) & 0x80000000
        before = (i + 623) % 624
        word = np.int64(stream[before]) ^ np.int64(stream[before + 397 if before < 227 else before - 227])
        low = 0
        if word & 0x80000000:
            word ^= 0x9908B0DF
            low = 1
        stream[i] = np.uint32(top | ((word << 1) & 0x7FFFFFFF) | low)


@kernel
def origin(stream, found_out):
    """Seed and number of draws of a stream into `found_out` int64 [2]; the seed is -1 if none leads here. The stream is spoilt."""
    stand_alone()
    for renewals in range(MOST_RENEWALS):
        value = _seed_of(stream)
        if value >= 0:
            found_out[0] = value
            found_out[1] = 624 * (renewals - 1) + np.int64(stream[624])
            return
        _turn_back(stream)
    found_out[0] = -1
