"""The RIOT (6532): 128 bytes of RAM, the interval timer and two input ports.

| address (A7 = 1, A9 = 1)  | read           | write                                |
|---------------------------|----------------|--------------------------------------|
| & 7 == 0  SWCHA  $280     | joysticks      | ignored                              |
| & 7 == 1  SWACNT $281     | DDRA           | DDRA                                 |
| & 7 == 2  SWCHB  $282     | switches       | ignored                              |
| & 7 == 3  SWBCNT $283     | 0              | ignored                              |
| & 5 == 4  INTIM  $284     | timer          | TIM1T..T1024T $294-$297: set timer   |
| & 5 == 5  TIMINT $285     | interrupt flag | (& 0x17 == 0x14..0x17)               |

After it expires, the timer decrements once per cycle until it is first read. From then on a different formula
applies, as in ale-py's core.
"""

import numpy as np

from .compiling.jit import kernel, stand_alone
from .mt19937 import draw
from .state import (
    CYCLES,
    IN_SWCHA,
    IN_SWCHB,
    RIOT_DDRA,
    RIOT_READ_CYCLE,
    RIOT_READ_FLAG,
    RIOT_SET_CYCLE,
    RIOT_SHIFT,
    RIOT_TIMER,
)


@kernel
def fill_ram(memory, stream):
    """Fill the RAM of a new console with random bytes. A reset keeps the RAM."""
    stand_alone()
    for i in range(128):
        memory[i] = np.uint8(draw(stream) & 0xFF)


@kernel
def reset(s, stream):
    """System reset: a random timer value of 25-99, counting in units of 64 cycles."""
    stand_alone()
    s[RIOT_TIMER] = 25 + draw(stream) % 75
    s[RIOT_SHIFT] = 6
    s[RIOT_SET_CYCLE] = 0
    s[RIOT_READ_CYCLE] = 0
    s[RIOT_READ_FLAG] = 0
    s[RIOT_DDRA] = 0


@kernel
def read_timer(s):
    """Read INTIM, with the side effect of the first read after the timer expires."""
    stand_alone()
    timer = np.int64(s[RIOT_TIMER])
    shift = np.int64(s[RIOT_SHIFT])
    cycles = np.int64(s[CYCLES])
    set_cycle = np.int64(s[RIOT_SET_CYCLE])
    delta = (cycles - 1 - set_cycle) & 0xFFFFFFFF
    value = timer - (delta >> shift) - 1
    if value >= 0:
        return value & 0xFF
    value = (timer << shift) - delta - 1
    if value <= -2 and s[RIOT_READ_FLAG] == 0:
        s[RIOT_READ_FLAG] = 1
        s[RIOT_READ_CYCLE] = cycles
    if s[RIOT_READ_FLAG] != 0:
        value = timer - (delta >> shift) - (np.int64(s[RIOT_READ_CYCLE]) - (set_cycle + (timer << shift)))
    return value & 0xFF


@kernel
def read(s, address):
    """Read a port or the timer."""
    stand_alone()
    register = np.int64(address) & 7
    if register == 4 or register == 6:
        return read_timer(s)
    if register == 0:
        return np.int64(s[IN_SWCHA])
    if register == 1:
        return np.int64(s[RIOT_DDRA])
    if register == 2:
        return np.int64(s[IN_SWCHB])
    if register == 3:
        return np.int64(0)
    delta = (np.int64(s[CYCLES]) - 1 - np.int64(s[RIOT_SET_CYCLE])) & 0xFFFFFFFF
    expired = np.int64(s[RIOT_TIMER]) - (delta >> np.int64(s[RIOT_SHIFT])) - 1 < 0
    return np.int64(0x80 if expired and s[RIOT_READ_FLAG] == 0 else 0)


@kernel
def write(s, address, value):
    """Write DDRA or set the timer."""
    stand_alone()
    if address & 7 == 1:
        s[RIOT_DDRA] = value
    elif address & 0x14 == 0x14:
        s[RIOT_TIMER] = value
        interval = address & 3
        s[RIOT_SHIFT] = 10 if interval == 3 else 3 * interval
        s[RIOT_SET_CYCLE] = s[CYCLES]
        s[RIOT_READ_FLAG] = 0
