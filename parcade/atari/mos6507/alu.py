"""The 6507's flags and its adder, binary and decimal."""

import numpy as np

from ..compiling.jit import inlined

# Decimal mode: the value of every byte, valid BCD or not, and the BCD byte of each number 0-99.
DECIMAL_VALUE = np.array([10 * (byte >> 4) + (byte & 15) for byte in range(256)], np.int64)
DECIMAL_BYTE = np.array([16 * (number // 10) + number % 10 for number in range(100)], np.int64)


@inlined
def nz_of_flags(negative, zero):
    """Return the CPU_NZ value that encodes the given flags; every combination has one."""
    return (0x8000 if negative else 0) | (0 if zero else 1)


@inlined
def status(nz, c, v, d, i):
    """Return the flags byte as the 6507 pushes it: N V 1 B D I Z C."""
    byte = 0x30 | c | v << 6 | d << 3 | i << 2
    if nz & 0x8080:
        byte |= 0x80
    if nz & 0xFF == 0:
        byte |= 0x02
    return byte


@inlined
def add(a, m, c, d):
    """ADC: return (sum, carry, overflow). N and Z follow from the sum."""
    if d == 0:
        total = a + m + c
        return total & 0xFF, total >> 8, ((a ^ total) & (m ^ total)) >> 7 & 1
    total = DECIMAL_VALUE[a] + DECIMAL_VALUE[m] + c
    result = DECIMAL_BYTE[(total & 0xFF) % 100]
    return result, np.int64(1 if total > 99 else 0), ((a ^ result) & (result ^ m)) >> 7 & 1


@inlined
def subtract(a, m, c, d):
    """SBC: return (difference, carry, overflow)."""
    if d == 0:
        total = a - m - 1 + c
        return total & 0xFF, np.int64(1 if total >= 0 else 0), ((a ^ m) & (a ^ total)) >> 7 & 1
    total = DECIMAL_VALUE[a] - DECIMAL_VALUE[m] - 1 + c
    if total < 0:
        total += 100
    result = DECIMAL_BYTE[total % 100]
    return result, np.int64(1 if a >= m + 1 - c else 0), ((a ^ result) & (a ^ m)) >> 7 & 1
