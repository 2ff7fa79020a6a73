"""The 6507's bus: 13 address lines and the four devices on them.

| condition on the address         | device                                               |
|----------------------------------|------------------------------------------------------|
| bit 12 = 1                       | cartridge                                            |
| bit 12 = 0, bit 7 = 0            | TIA: reads use address & 0x0F, writes address & 0x3F |
| bit 12 = 0, bit 7 = 1, bit 9 = 0 | RIOT RAM, address & 0x7F                             |
| bit 12 = 0, bit 7 = 1, bit 9 = 1 | RIOT ports and timer                                 |

The TIA drives only some bits of a read; the other bits keep their value from the last byte on the bus.
TIA accesses are logged for `tia/replay.py`. This module acts only on effects that the 6507 can observe
immediately: WSYNC, VSYNC and the length of a frame, the paddle capacitors, and reads of collision latches.
"""

import numpy as np

from . import cartridge, riot
from .compiling.jit import CHIPS, inlined, separate, stand_alone
from .primitives.warp import on_gpu
from .state import (
    BUS,
    CHARGE_AT_ONCE,
    CHARGE_NEVER,
    CYCLES,
    DUMP,
    DUMP_OFF_CYCLE,
    FRAME_ENDED,
    FRAME_START,
    IN_CHARGE,
    IN_INPT4,
    LINE_LIMIT,
    LOG_BASE,
    LOG_CAPACITY,
    LOG_COUNT,
    LOG_OPEN,
    LOG_SLOT,
    LOGS,
    T_COLLISIONS,
    TIA,
    VSYNC_FINISH,
)
from .tia import chip as tia
from .tia import log as tia_log
from .tia import writes as tia_writes

READING = -1
NOTHING = tia_writes.NOTHING
VSYNC_NEVER = 0x7FFFFFFF
RAM_LINES, RAM_SELECTED = 0x1280, 0x80  # the address lines that select the RAM, and their values
LOG_SPAN_CYCLES = 1 << 17  # an entry is cycles << 14 | register << 8 | value and stays positive


@inlined
def _log(s, screen, register, value):
    """Log a TIA access at the current cycle. One that changes nothing leaves its place to the next."""
    count = np.int64(s[LOG_COUNT])
    cycle = np.int64(s[CYCLES]) - np.int64(s[LOG_BASE])
    if count >= LOG_CAPACITY or cycle >= LOG_SPAN_CYCLES:
        tia.serve(s, screen, tia.SETTLE)
        s[LOG_BASE] = s[CYCLES]
        count = np.int64(0)
        cycle = np.int64(0)
    s[LOGS + np.int64(s[LOG_SLOT]) * LOG_CAPACITY + count] = cycle << 14 | register << 8 | value
    news = tia_log.is_news(s, register, value)
    s[LOG_COUNT] = count + news
    s[LOG_OPEN] = 1 - news


@inlined
def _read_input(s, register):
    """Return bit 7 of INPT0-INPT5 ($38-$3D), given as `register` 0-5."""
    if register >= 4:
        return np.int64(s[IN_INPT4 + register - 4])
    charge = np.int64(s[IN_CHARGE + register])
    if charge == CHARGE_AT_ONCE:
        return np.int64(0x80)
    if charge == CHARGE_NEVER or s[DUMP] != 0:
        return np.int64(0)
    # Unsigned 32-bit arithmetic: a time before the frame start counts as far in the future.
    full = (np.int64(s[DUMP_OFF_CYCLE]) + charge) & 0xFFFFFFFF
    return np.int64(0x80 if np.int64(s[CYCLES]) > full else 0)


@inlined
def _read_tia(s, screen, address):
    """Read a TIA register; bits that the TIA does not drive come from `s[BUS]`."""
    register = np.int64(address) & 0x0F
    noise = np.int64(s[BUS]) & 0x3F
    if register < 8:
        tia.serve(s, screen, tia.CATCH_UP)
        pair = np.int64(s[TIA + T_COLLISIONS]) >> (2 * register)
        if register == 6:
            return (pair & 1) << 7 | noise
        if register == 7:
            pair = np.int64(s[TIA + T_COLLISIONS]) >> 13
        return (pair & 1) << 7 | (pair >> 1 & 1) << 6 | noise
    if register < 14:
        return _read_input(s, register - 8) | noise
    return noise


@inlined
def _act_on_write(s, register, value, after_read):
    """Apply the effects of a TIA write that the 6507 observes immediately.

    `after_read`: the 6507's previous access was a read.
    """
    cycles = np.int64(s[CYCLES])
    clock = 3 * cycles
    if clock >= s[LINE_LIMIT]:
        s[FRAME_ENDED] = 1
    if register == tia_writes.WSYNC:
        if after_read:
            in_line = (cycles - np.int64(s[FRAME_START]) // 3) % 76
            if in_line != 0:
                s[CYCLES] = cycles + 76 - in_line
    elif register == tia_writes.VSYNC:
        if value & 2:
            s[VSYNC_FINISH] = clock + 228
        elif clock >= s[VSYNC_FINISH]:
            s[VSYNC_FINISH] = VSYNC_NEVER
            s[FRAME_ENDED] = 1
    elif register == tia_writes.VBLANK:
        if value & 0x80:
            s[DUMP] = 1
        elif s[DUMP] != 0:
            s[DUMP] = 0
            s[DUMP_OFF_CYCLE] = cycles


@separate(f"int64({CHIPS}, int64, int64, boolean)")
def access(s, memory, rom, screen, address, value, after_read):
    """Write `value` to a 16-bit address, or read it if `value` is READING; return the byte on the bus.

    `after_read`: the 6507's previous access was a read. One function serves both directions to save compile
    time, see `tia.serve`.
    """
    stand_alone()
    reading = value == READING
    if address & 0x1000:
        if reading:
            value = cartridge.read(s, memory, rom, address)
        else:
            cartridge.write(s, memory, address, value)
    elif address & 0x80 == 0:
        register = NOTHING if reading else np.int64(address) & 0x3F
        _log(s, screen, register, 0 if reading else value)
        if reading:
            value = _read_tia(s, screen, address)
        else:
            _act_on_write(s, register, value, after_read)
    elif address & 0x200:
        if reading:
            value = riot.read(s, address)
        else:
            riot.write(s, address, value)
    elif reading:
        value = np.int64(memory[address & 0x7F])
    else:
        memory[address & 0x7F] = np.uint8(value)
    s[BUS] = value
    return value


@inlined
def read(s, memory, rom, screen, address):
    """Read the byte at a 16-bit address."""
    if not on_gpu() and address & RAM_LINES == RAM_SELECTED:  # without the call, code in RAM runs faster
        value = np.int64(memory[address & 0x7F])
        s[BUS] = value
        return value
    return access(s, memory, rom, screen, address, READING, True)


@inlined
def write(s, memory, rom, screen, address, value, after_read):
    """Write `value` to a 16-bit address."""
    access(s, memory, rom, screen, address, value, after_read)
