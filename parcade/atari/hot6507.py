"""The 6507's common instructions, fast: straight-line code for the opcodes games use most.

The twin of `cpu6507.py`. An instruction is done here when all its bytes come from an unbanked stretch of ROM and it touches
only ROM, RAM, INTIM and TIA registers without side effects on the 6507 but WSYNC; the registers stay in local variables. Whatever
else comes up (hotspots, TIA reads, VSYNC and VBLANK, decimal mode, rare opcodes, code in RAM) is left, with nothing
changed yet, to `cpu6507.step`. So are jumps into TIA registers, whose first byte depends on the last one on the bus. Tests run both on
the same programs.

The long chain of ``elif`` becomes one jump table. Its bodies were written out by opcode because going through tables for
address and operation costs almost twice the time.
"""

import numpy as np

from . import cpu6507, riot
from .cartridge import PLAIN_END, PLAIN_START
from .cpu6507 import status
from .jit import inlined, kernel, stand_alone
from .state import (
    CART_BANK,
    CART_KIND,
    CPU_A,
    CPU_C,
    CPU_D,
    CPU_I,
    CPU_JAMMED,
    CPU_NZ,
    CPU_PC,
    CPU_SP,
    CPU_V,
    CPU_X,
    CPU_Y,
    CYCLES,
    FRAME_ENDED,
    FRAME_START,
    LINE_LIMIT,
    LOG_BASE,
    LOG_CAPACITY,
    LOG_COUNT,
    LOG_SLOT,
    LOGS,
    RIOT_SET_CYCLE,
    RIOT_SHIFT,
    RIOT_TIMER,
)

INTIM = 0x0284
WSYNC = 0x02


@inlined
def _peek(s, memory, rom, address, bank, plain_start, plain_span):
    """The byte at an address of ROM or RAM, or -1 for anything else."""
    if 0 <= (address & 0x1FFF) - plain_start < plain_span:
        return np.int64(rom[np.uint32(bank + (address & 0xFFF))])
    if address & 0x1280 == 0x80:
        return np.int64(memory[np.uint32(address & 0x7F)])
    return np.int64(-1)


@inlined
def _idle_turns(s, rom, at, pc, cycles, most):
    """How many turns of a loop that waits for INTIM to reach 0 can be passed over, at 7 cycles a turn.

    The loop is a load of INTIM at image offset `at` and BNE back to it; `cycles` is the time before the load.
    """
    waits = rom[np.uint32(at + 3)] == 0xD0 and rom[np.uint32(at + 4)] == 0xFB and (pc ^ (pc + 5)) & 0x1F00 == 0
    if not waits:
        return np.int64(0)
    zero_at = ((np.int64(s[RIOT_TIMER]) - 1) << np.int64(s[RIOT_SHIFT])) + np.int64(s[RIOT_SET_CYCLE])
    turns = (zero_at - (cycles + 3) + 6) // 7
    return max(np.int64(0), min(turns, most))


@kernel
def run(s, memory, rom, screen, limit):
    """Run until the frame ends, the chip halts or `limit` instructions are done."""
    stand_alone()
    plain_start = PLAIN_START[s[CART_KIND]]
    plain_span = PLAIN_END[s[CART_KIND]] - plain_start
    frame_line = np.int64(s[FRAME_START]) // 3
    line_limit = np.int64(s[LINE_LIMIT])
    a, x, y, sp = np.int64(s[CPU_A]), np.int64(s[CPU_X]), np.int64(s[CPU_Y]), np.int64(s[CPU_SP])
    nz, c, v, d = np.int64(s[CPU_NZ]), np.int64(s[CPU_C]), np.int64(s[CPU_V]), np.int64(s[CPU_D])
    pc = np.int64(s[CPU_PC])
    cycles = np.int64(s[CYCLES])
    bank = np.int64(s[CART_BANK])
    log = LOGS + np.int64(s[LOG_SLOT]) * LOG_CAPACITY
    base = np.int64(s[LOG_BASE])
    count = np.int64(s[LOG_COUNT])
    n = np.int64(0)
    while n < limit:
        n += 1
        if 0 <= (pc & 0x1FFF) - plain_start < plain_span - 2:
            at = bank + (pc & 0xFFF)
            opcode = np.int64(rom[np.uint32(at)])
            low = np.int64(rom[np.uint32(at + 1)])
            high = np.int64(rom[np.uint32(at + 2)])
            register, value, end, length, pushed = np.int64(-1), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
            if opcode == 0xA5:  # LDA zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    a = m
                    nz = m
                    pc += 2
                    cycles += 3
                    continue
            elif opcode == 0x85:  # STA zp
                if low >= 0x80:
                    memory[np.uint32(low & 0x7F)] = np.uint8(a)
                    pc += 2
                    cycles += 3
                    continue
                register = low & 0x3F
                value = a
                end = cycles + 3
                length = 2
            elif opcode == 0xD0:  # BNE rel
                if nz & 0xFF != 0:
                    target = pc + 2 + low - ((low & 0x80) << 1)
                    if target & 0x1080:
                        cycles += 4 if (target ^ (pc + 2)) & 0x1F00 else 3
                        pc = target & 0xFFFF
                        continue
                else:
                    pc += 2
                    cycles += 2
                    continue
            elif opcode == 0xBD:  # LDA absx
                address = (low + x + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    a = m
                    nz = m
                    pc += 3
                    cycles += 4 + (low + x >> 8)
                    continue
            elif opcode == 0xA9:  # LDA imm
                m = low
                a = m
                nz = m
                pc += 2
                cycles += 2
                continue
            elif opcode == 0xCA:  # DEX imp
                x = (x - 1) & 0xFF
                nz = x
                pc += 1
                cycles += 2
                continue
            elif opcode == 0x95:  # STA zpx
                low = (low + x) & 0xFF
                if low >= 0x80:
                    memory[np.uint32(low & 0x7F)] = np.uint8(a)
                    pc += 2
                    cycles += 4
                    continue
                register = low & 0x3F
                value = a
                end = cycles + 4
                length = 2
            elif opcode == 0xF0:  # BEQ rel
                if nz & 0xFF == 0:
                    target = pc + 2 + low - ((low & 0x80) << 1)
                    if target & 0x1080:
                        cycles += 4 if (target ^ (pc + 2)) & 0x1F00 else 3
                        pc = target & 0xFFFF
                        continue
                else:
                    pc += 2
                    cycles += 2
                    continue
            elif opcode == 0xB1:  # LDA indy
                if 0x80 <= low < 0xFF:
                    target = np.int64(memory[np.uint32(low & 0x7F)]) + y
                    address = (target + (np.int64(memory[np.uint32((low + 1) & 0x7F)]) << 8)) & 0xFFFF
                    m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                    if m >= 0:
                        a = m
                        nz = m
                        pc += 2
                        cycles += 5 + (target >> 8)
                        continue
            elif opcode == 0xB5:  # LDA zpx
                low = (low + x) & 0xFF
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    a = m
                    nz = m
                    pc += 2
                    cycles += 4
                    continue
            elif opcode == 0x99:  # STA absy
                address = (low + y + (high << 8)) & 0xFFFF
                if address & 0x1280 == 0x80:
                    memory[np.uint32(address & 0x7F)] = np.uint8(a)
                    pc += 3
                    cycles += 5
                    continue
                if address & 0x1080 == 0:
                    register = address & 0x3F
                    value = a
                    end = cycles + 5
                    length = 3
            elif opcode == 0x9D:  # STA absx
                address = (low + x + (high << 8)) & 0xFFFF
                if address & 0x1280 == 0x80:
                    memory[np.uint32(address & 0x7F)] = np.uint8(a)
                    pc += 3
                    cycles += 5
                    continue
                if address & 0x1080 == 0:
                    register = address & 0x3F
                    value = a
                    end = cycles + 5
                    length = 3
            elif opcode == 0xC9:  # CMP imm
                m = low
                nz = (a - m) & 0xFF
                c = 1 if a >= m else 0
                pc += 2
                cycles += 2
                continue
            elif opcode == 0x10:  # BPL rel
                if nz & 0x8080 == 0:
                    target = pc + 2 + low - ((low & 0x80) << 1)
                    if target & 0x1080:
                        cycles += 4 if (target ^ (pc + 2)) & 0x1F00 else 3
                        pc = target & 0xFFFF
                        continue
                else:
                    pc += 2
                    cycles += 2
                    continue
            elif opcode == 0x88:  # DEY imp
                y = (y - 1) & 0xFF
                nz = y
                pc += 1
                cycles += 2
                continue
            elif opcode == 0xA2:  # LDX imm
                m = low
                x = m
                nz = m
                pc += 2
                cycles += 2
                continue
            elif opcode == 0xA0:  # LDY imm
                m = low
                y = m
                nz = m
                pc += 2
                cycles += 2
                continue
            elif opcode == 0x4C:  # JMP abs
                if high << 8 & 0x1000 or low & 0x80:
                    pc = low | high << 8
                    cycles += 3
                    continue
            elif opcode == 0xE6:  # INC zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    m = (m + 1) & 0xFF
                    memory[np.uint32(low & 0x7F)] = np.uint8(m)
                    nz = m
                    pc += 2
                    cycles += 5
                    continue
            elif opcode == 0xC6:  # DEC zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    m = (m - 1) & 0xFF
                    memory[np.uint32(low & 0x7F)] = np.uint8(m)
                    nz = m
                    pc += 2
                    cycles += 5
                    continue
            elif opcode == 0x65:  # ADC zp
                if low >= 0x80 and d == 0:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    total = a + m + c
                    v = ((a ^ total) & (m ^ total)) >> 7 & 1
                    c = total >> 8
                    a = total & 0xFF
                    nz = a
                    pc += 2
                    cycles += 3
                    continue
            elif opcode == 0x69:  # ADC imm
                if d == 0:
                    m = low
                    total = a + m + c
                    v = ((a ^ total) & (m ^ total)) >> 7 & 1
                    c = total >> 8
                    a = total & 0xFF
                    nz = a
                    pc += 2
                    cycles += 2
                    continue
            elif opcode == 0xE5:  # SBC zp
                if low >= 0x80 and d == 0:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    total = a - m - 1 + c
                    v = ((a ^ m) & (a ^ total)) >> 7 & 1
                    c = 1 if total >= 0 else 0
                    a = total & 0xFF
                    nz = a
                    pc += 2
                    cycles += 3
                    continue
            elif opcode == 0xE9:  # SBC imm
                if d == 0:
                    m = low
                    total = a - m - 1 + c
                    v = ((a ^ m) & (a ^ total)) >> 7 & 1
                    c = 1 if total >= 0 else 0
                    a = total & 0xFF
                    nz = a
                    pc += 2
                    cycles += 2
                    continue
            elif opcode == 0x29:  # AND imm
                m = low
                a &= m
                nz = a
                pc += 2
                cycles += 2
                continue
            elif opcode == 0x25:  # AND zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    a &= m
                    nz = a
                    pc += 2
                    cycles += 3
                    continue
            elif opcode == 0x24:  # BIT zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    nz = (m & 0x80) << 8 | (1 if a & m else 0)
                    v = m >> 6 & 1
                    pc += 2
                    cycles += 3
                    continue
            elif opcode == 0x90:  # BCC rel
                if c == 0:
                    target = pc + 2 + low - ((low & 0x80) << 1)
                    if target & 0x1080:
                        cycles += 4 if (target ^ (pc + 2)) & 0x1F00 else 3
                        pc = target & 0xFFFF
                        continue
                else:
                    pc += 2
                    cycles += 2
                    continue
            elif opcode == 0xB0:  # BCS rel
                if c != 0:
                    target = pc + 2 + low - ((low & 0x80) << 1)
                    if target & 0x1080:
                        cycles += 4 if (target ^ (pc + 2)) & 0x1F00 else 3
                        pc = target & 0xFFFF
                        continue
                else:
                    pc += 2
                    cycles += 2
                    continue
            elif opcode == 0x18:  # CLC imp
                c = np.int64(0)
                pc += 1
                cycles += 2
                continue
            elif opcode == 0x38:  # SEC imp
                c = np.int64(1)
                pc += 1
                cycles += 2
                continue
            elif opcode == 0x0A:  # ASL acc
                m = a
                c = m >> 7
                m = m << 1 & 0xFF
                a = m
                nz = m
                pc += 1
                cycles += 2
                continue
            elif opcode == 0x4A:  # LSR acc
                m = a
                c = m & 1
                m >>= 1
                a = m
                nz = m
                pc += 1
                cycles += 2
                continue
            elif opcode == 0x2A:  # ROL acc
                m = a
                m = m << 1 | c
                c = m >> 8
                m &= 0xFF
                a = m
                nz = m
                pc += 1
                cycles += 2
                continue
            elif opcode == 0x6A:  # ROR acc
                m = a
                total = m & 1
                m = m >> 1 | c << 7
                c = total
                a = m
                nz = m
                pc += 1
                cycles += 2
                continue
            elif opcode == 0x8A:  # TXA imp
                a = x
                nz = a
                pc += 1
                cycles += 2
                continue
            elif opcode == 0x98:  # TYA imp
                a = y
                nz = a
                pc += 1
                cycles += 2
                continue
            elif opcode == 0xA8:  # TAY imp
                y = a
                nz = a
                pc += 1
                cycles += 2
                continue
            elif opcode == 0xAA:  # TAX imp
                x = a
                nz = a
                pc += 1
                cycles += 2
                continue
            elif opcode == 0x84:  # STY zp
                if low >= 0x80:
                    memory[np.uint32(low & 0x7F)] = np.uint8(y)
                    pc += 2
                    cycles += 3
                    continue
                register = low & 0x3F
                value = y
                end = cycles + 3
                length = 2
            elif opcode == 0x86:  # STX zp
                if low >= 0x80:
                    memory[np.uint32(low & 0x7F)] = np.uint8(x)
                    pc += 2
                    cycles += 3
                    continue
                register = low & 0x3F
                value = x
                end = cycles + 3
                length = 2
            elif opcode == 0xA4:  # LDY zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    y = m
                    nz = m
                    pc += 2
                    cycles += 3
                    continue
            elif opcode == 0xA6:  # LDX zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    x = m
                    nz = m
                    pc += 2
                    cycles += 3
                    continue
            elif opcode == 0x20:  # JSR abs
                if sp >= 0x82 and (high << 8 & 0x1000 or low & 0x80):
                    memory[np.uint32(sp & 0x7F)] = np.uint8((pc + 2) >> 8 & 0xFF)
                    memory[np.uint32((sp - 1) & 0x7F)] = np.uint8((pc + 2) & 0xFF)
                    sp -= 2
                    pc = low | high << 8
                    cycles += 6
                    continue
            elif opcode == 0x60:  # RTS imp
                if 0x80 <= sp <= 0xFD:
                    target = np.int64(memory[np.uint32((sp + 1) & 0x7F)]) | np.int64(memory[np.uint32((sp + 2) & 0x7F)]) << 8
                    if 0 <= (target & 0x1FFF) - plain_start < plain_span:  # its byte at the old PC is read and dropped
                        sp += 2
                        pc = (target + 1) & 0xFFFF
                        cycles += 6
                        continue
            elif opcode == 0x30:  # BMI rel
                if nz & 0x8080 != 0:
                    target = pc + 2 + low - ((low & 0x80) << 1)
                    if target & 0x1080:
                        cycles += 4 if (target ^ (pc + 2)) & 0x1F00 else 3
                        pc = target & 0xFFFF
                        continue
                else:
                    pc += 2
                    cycles += 2
                    continue
            elif opcode == 0xE8:  # INX imp
                x = (x + 1) & 0xFF
                nz = x
                pc += 1
                cycles += 2
                continue
            elif opcode == 0xC8:  # INY imp
                y = (y + 1) & 0xFF
                nz = y
                pc += 1
                cycles += 2
                continue
            elif opcode == 0x9A:  # TXS imp
                sp = x
                pc += 1
                cycles += 2
                continue
            elif opcode == 0xBA:  # TSX imp
                x = sp
                nz = sp
                pc += 1
                cycles += 2
                continue
            elif opcode == 0x48:  # PHA imp
                if sp >= 0x80:
                    memory[np.uint32(sp & 0x7F)] = np.uint8(a)
                    sp -= 1
                    pc += 1
                    cycles += 3
                    continue
            elif opcode == 0x68:  # PLA imp
                if 0x80 <= sp <= 0xFE:
                    sp += 1
                    a = np.int64(memory[np.uint32(sp & 0x7F)])
                    nz = a
                    pc += 1
                    cycles += 4
                    continue
            elif opcode == 0x09:  # ORA imm
                m = low
                a |= m
                nz = a
                pc += 2
                cycles += 2
                continue
            elif opcode == 0x05:  # ORA zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    a |= m
                    nz = a
                    pc += 2
                    cycles += 3
                    continue
            elif opcode == 0x45:  # EOR zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    a ^= m
                    nz = a
                    pc += 2
                    cycles += 3
                    continue
            elif opcode == 0x49:  # EOR imm
                m = low
                a ^= m
                nz = a
                pc += 2
                cycles += 2
                continue
            elif opcode == 0xC5:  # CMP zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    nz = (a - m) & 0xFF
                    c = 1 if a >= m else 0
                    pc += 2
                    cycles += 3
                    continue
            elif opcode == 0xE0:  # CPX imm
                m = low
                nz = (x - m) & 0xFF
                c = 1 if x >= m else 0
                pc += 2
                cycles += 2
                continue
            elif opcode == 0xC0:  # CPY imm
                m = low
                nz = (y - m) & 0xFF
                c = 1 if y >= m else 0
                pc += 2
                cycles += 2
                continue
            elif opcode == 0xC4:  # CPY zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    nz = (y - m) & 0xFF
                    c = 1 if y >= m else 0
                    pc += 2
                    cycles += 3
                    continue
            elif opcode == 0xE4:  # CPX zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    nz = (x - m) & 0xFF
                    c = 1 if x >= m else 0
                    pc += 2
                    cycles += 3
                    continue
            elif opcode == 0x8D:  # STA abs
                address = low | high << 8
                if address & 0x1280 == 0x80:
                    memory[np.uint32(address & 0x7F)] = np.uint8(a)
                    pc += 3
                    cycles += 4
                    continue
                if address & 0x1080 == 0:
                    register = address & 0x3F
                    value = a
                    end = cycles + 4
                    length = 3
            elif opcode == 0xAD:  # LDA abs
                address = low | high << 8
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    a = m
                    nz = m
                    pc += 3
                    cycles += 4
                    continue
                if address == INTIM:
                    turns = _idle_turns(s, rom, at, pc, cycles, (limit - n) // 2)
                    n += 2 * turns
                    cycles += 7 * turns
                    s[CYCLES] = cycles + 4
                    a = riot.read_timer(s)
                    nz = a
                    pc += 3
                    cycles += 4
                    continue
            elif opcode == 0xB9:  # LDA absy
                address = (low + y + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    a = m
                    nz = m
                    pc += 3
                    cycles += 4 + (low + y >> 8)
                    continue
            elif opcode == 0x50:  # BVC rel
                if v == 0:
                    target = pc + 2 + low - ((low & 0x80) << 1)
                    if target & 0x1080:
                        cycles += 4 if (target ^ (pc + 2)) & 0x1F00 else 3
                        pc = target & 0xFFFF
                        continue
                else:
                    pc += 2
                    cycles += 2
                    continue
            elif opcode == 0x70:  # BVS rel
                if v != 0:
                    target = pc + 2 + low - ((low & 0x80) << 1)
                    if target & 0x1080:
                        cycles += 4 if (target ^ (pc + 2)) & 0x1F00 else 3
                        pc = target & 0xFFFF
                        continue
                else:
                    pc += 2
                    cycles += 2
                    continue
            elif opcode == 0xD5:  # CMP zpx
                low = (low + x) & 0xFF
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    nz = (a - m) & 0xFF
                    c = 1 if a >= m else 0
                    pc += 2
                    cycles += 4
                    continue
            elif opcode == 0x75:  # ADC zpx
                low = (low + x) & 0xFF
                if low >= 0x80 and d == 0:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    total = a + m + c
                    v = ((a ^ total) & (m ^ total)) >> 7 & 1
                    c = total >> 8
                    a = total & 0xFF
                    nz = a
                    pc += 2
                    cycles += 4
                    continue
            elif opcode == 0x15:  # ORA zpx
                low = (low + x) & 0xFF
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    a |= m
                    nz = a
                    pc += 2
                    cycles += 4
                    continue
            elif opcode == 0x35:  # AND zpx
                low = (low + x) & 0xFF
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    a &= m
                    nz = a
                    pc += 2
                    cycles += 4
                    continue
            elif opcode == 0x55:  # EOR zpx
                low = (low + x) & 0xFF
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    a ^= m
                    nz = a
                    pc += 2
                    cycles += 4
                    continue
            elif opcode == 0x94:  # STY zpx
                low = (low + x) & 0xFF
                if low >= 0x80:
                    memory[np.uint32(low & 0x7F)] = np.uint8(y)
                    pc += 2
                    cycles += 4
                    continue
                register = low & 0x3F
                value = y
                end = cycles + 4
                length = 2
            elif opcode == 0xB4:  # LDY zpx
                low = (low + x) & 0xFF
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    y = m
                    nz = m
                    pc += 2
                    cycles += 4
                    continue
            elif opcode == 0x46:  # LSR zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    c = m & 1
                    m >>= 1
                    memory[np.uint32(low & 0x7F)] = np.uint8(m)
                    nz = m
                    pc += 2
                    cycles += 5
                    continue
            elif opcode == 0x06:  # ASL zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    c = m >> 7
                    m = m << 1 & 0xFF
                    memory[np.uint32(low & 0x7F)] = np.uint8(m)
                    nz = m
                    pc += 2
                    cycles += 5
                    continue
            elif opcode == 0x26:  # ROL zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    m = m << 1 | c
                    c = m >> 8
                    m &= 0xFF
                    memory[np.uint32(low & 0x7F)] = np.uint8(m)
                    nz = m
                    pc += 2
                    cycles += 5
                    continue
            elif opcode == 0x66:  # ROR zp
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    total = m & 1
                    m = m >> 1 | c << 7
                    c = total
                    memory[np.uint32(low & 0x7F)] = np.uint8(m)
                    nz = m
                    pc += 2
                    cycles += 5
                    continue
            elif opcode == 0xD6:  # DEC zpx
                low = (low + x) & 0xFF
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    m = (m - 1) & 0xFF
                    memory[np.uint32(low & 0x7F)] = np.uint8(m)
                    nz = m
                    pc += 2
                    cycles += 6
                    continue
            elif opcode == 0xF6:  # INC zpx
                low = (low + x) & 0xFF
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    m = (m + 1) & 0xFF
                    memory[np.uint32(low & 0x7F)] = np.uint8(m)
                    nz = m
                    pc += 2
                    cycles += 6
                    continue
            elif opcode == 0xEA:  # NOP imp
                pc += 1
                cycles += 2
                continue
            elif opcode == 0x2C:  # BIT abs
                address = low | high << 8
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    nz = (m & 0x80) << 8 | (1 if a & m else 0)
                    v = m >> 6 & 1
                    pc += 3
                    cycles += 4
                    continue
            elif opcode == 0xBE:  # LDX absy
                address = (low + y + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    x = m
                    nz = m
                    pc += 3
                    cycles += 4 + (low + y >> 8)
                    continue
            elif opcode == 0xBC:  # LDY absx
                address = (low + x + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    y = m
                    nz = m
                    pc += 3
                    cycles += 4 + (low + x >> 8)
                    continue
            elif opcode == 0xAE:  # LDX abs
                address = low | high << 8
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    x = m
                    nz = m
                    pc += 3
                    cycles += 4
                    continue
                if address == INTIM:
                    turns = _idle_turns(s, rom, at, pc, cycles, (limit - n) // 2)
                    n += 2 * turns
                    cycles += 7 * turns
                    s[CYCLES] = cycles + 4
                    x = riot.read_timer(s)
                    nz = x
                    pc += 3
                    cycles += 4
                    continue
            elif opcode == 0xAC:  # LDY abs
                address = low | high << 8
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    y = m
                    nz = m
                    pc += 3
                    cycles += 4
                    continue
                if address == INTIM:
                    turns = _idle_turns(s, rom, at, pc, cycles, (limit - n) // 2)
                    n += 2 * turns
                    cycles += 7 * turns
                    s[CYCLES] = cycles + 4
                    y = riot.read_timer(s)
                    nz = y
                    pc += 3
                    cycles += 4
                    continue
            elif opcode == 0x8E:  # STX abs
                address = low | high << 8
                if address & 0x1280 == 0x80:
                    memory[np.uint32(address & 0x7F)] = np.uint8(x)
                    pc += 3
                    cycles += 4
                    continue
                if address & 0x1080 == 0:
                    register = address & 0x3F
                    value = x
                    end = cycles + 4
                    length = 3
            elif opcode == 0x8C:  # STY abs
                address = low | high << 8
                if address & 0x1280 == 0x80:
                    memory[np.uint32(address & 0x7F)] = np.uint8(y)
                    pc += 3
                    cycles += 4
                    continue
                if address & 0x1080 == 0:
                    register = address & 0x3F
                    value = y
                    end = cycles + 4
                    length = 3
            elif opcode == 0xD9:  # CMP absy
                address = (low + y + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    nz = (a - m) & 0xFF
                    c = 1 if a >= m else 0
                    pc += 3
                    cycles += 4 + (low + y >> 8)
                    continue
            elif opcode == 0xDD:  # CMP absx
                address = (low + x + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    nz = (a - m) & 0xFF
                    c = 1 if a >= m else 0
                    pc += 3
                    cycles += 4 + (low + x >> 8)
                    continue
            elif opcode == 0x91:  # STA indy
                if 0x80 <= low < 0xFF:
                    target = np.int64(memory[np.uint32(low & 0x7F)]) + y
                    address = (target + (np.int64(memory[np.uint32((low + 1) & 0x7F)]) << 8)) & 0xFFFF
                    if address & 0x1280 == 0x80:
                        memory[np.uint32(address & 0x7F)] = np.uint8(a)
                        pc += 2
                        cycles += 6
                        continue
            elif opcode == 0x79:  # ADC absy
                address = (low + y + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0 and d == 0:
                    total = a + m + c
                    v = ((a ^ total) & (m ^ total)) >> 7 & 1
                    c = total >> 8
                    a = total & 0xFF
                    nz = a
                    pc += 3
                    cycles += 4 + (low + y >> 8)
                    continue
            elif opcode == 0x7D:  # ADC absx
                address = (low + x + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0 and d == 0:
                    total = a + m + c
                    v = ((a ^ total) & (m ^ total)) >> 7 & 1
                    c = total >> 8
                    a = total & 0xFF
                    nz = a
                    pc += 3
                    cycles += 4 + (low + x >> 8)
                    continue
            elif opcode == 0xF9:  # SBC absy
                address = (low + y + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0 and d == 0:
                    total = a - m - 1 + c
                    v = ((a ^ m) & (a ^ total)) >> 7 & 1
                    c = 1 if total >= 0 else 0
                    a = total & 0xFF
                    nz = a
                    pc += 3
                    cycles += 4 + (low + y >> 8)
                    continue
            elif opcode == 0xFD:  # SBC absx
                address = (low + x + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0 and d == 0:
                    total = a - m - 1 + c
                    v = ((a ^ m) & (a ^ total)) >> 7 & 1
                    c = 1 if total >= 0 else 0
                    a = total & 0xFF
                    nz = a
                    pc += 3
                    cycles += 4 + (low + x >> 8)
                    continue
            elif opcode == 0x1D:  # ORA absx
                address = (low + x + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    a |= m
                    nz = a
                    pc += 3
                    cycles += 4 + (low + x >> 8)
                    continue
            elif opcode == 0x3D:  # AND absx
                address = (low + x + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    a &= m
                    nz = a
                    pc += 3
                    cycles += 4 + (low + x >> 8)
                    continue
            elif opcode == 0x39:  # AND absy
                address = (low + y + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    a &= m
                    nz = a
                    pc += 3
                    cycles += 4 + (low + y >> 8)
                    continue
            elif opcode == 0x5D:  # EOR absx
                address = (low + x + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    a ^= m
                    nz = a
                    pc += 3
                    cycles += 4 + (low + x >> 8)
                    continue
            elif opcode == 0x08:  # PHP imp
                value = status(nz, c, v, d, np.int64(s[CPU_I]))
                if sp >= 0x80:
                    memory[np.uint32(sp & 0x7F)] = np.uint8(value)
                    sp -= 1
                    pc += 1
                    cycles += 3
                    continue
                register, end, length, pushed = sp & 0x3F, cycles + 3, np.int64(1), np.int64(1)
            elif opcode == 0x6C:  # JMP ind
                address = low | high << 8
                low = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                high = _peek(s, memory, rom, (address & 0xFF00) | (address + 1) & 0xFF, bank, plain_start, plain_span)
                if low >= 0 and high >= 0 and (high << 8 & 0x1000 or low & 0x80):
                    pc = low | high << 8
                    cycles += 5
                    continue
            elif opcode == 0xB6:  # LDX zpy
                low = (low + y) & 0xFF
                if low >= 0x80:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    x = m
                    nz = m
                    pc += 2
                    cycles += 4
                    continue
            elif opcode == 0x96:  # STX zpy
                low = (low + y) & 0xFF
                if low >= 0x80:
                    memory[np.uint32(low & 0x7F)] = np.uint8(x)
                    pc += 2
                    cycles += 4
                    continue
                register = low & 0x3F
                value = x
                end = cycles + 4
                length = 2
            elif opcode == 0xF5:  # SBC zpx
                low = (low + x) & 0xFF
                if low >= 0x80 and d == 0:
                    m = np.int64(memory[np.uint32(low & 0x7F)])
                    total = a - m - 1 + c
                    v = ((a ^ m) & (a ^ total)) >> 7 & 1
                    c = 1 if total >= 0 else 0
                    a = total & 0xFF
                    nz = a
                    pc += 2
                    cycles += 4
                    continue
            elif opcode == 0x0D:  # ORA abs
                address = low | high << 8
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    a |= m
                    nz = a
                    pc += 3
                    cycles += 4
                    continue
            elif opcode == 0x19:  # ORA absy
                address = (low + y + (high << 8)) & 0xFFFF
                m = _peek(s, memory, rom, address, bank, plain_start, plain_span)
                if m >= 0:
                    a |= m
                    nz = a
                    pc += 3
                    cycles += 4 + (low + y >> 8)
                    continue
            # Only stores to the TIA come here with a register, and everything that is not done yet without one.
            if register >= WSYNC and count < LOG_CAPACITY and 3 * end < line_limit:
                s[np.uint32(log + count)] = (end - base) << 14 | register << 8 | value
                count += 1
                pc += length
                sp -= pushed
                cycles = end
                if register == WSYNC:
                    in_line = (end - frame_line) % 76
                    if in_line != 0:
                        cycles += 76 - in_line
                continue

        s[CPU_A] = a
        s[CPU_X] = x
        s[CPU_Y] = y
        s[CPU_SP] = sp
        s[CPU_PC] = pc & 0xFFFF
        s[CPU_NZ] = nz
        s[CPU_C] = c
        s[CPU_V] = v
        s[CYCLES] = cycles
        s[LOG_COUNT] = count
        cpu6507.step(s, memory, rom, screen)
        a, x, y, sp = np.int64(s[CPU_A]), np.int64(s[CPU_X]), np.int64(s[CPU_Y]), np.int64(s[CPU_SP])
        nz, c, v, d = np.int64(s[CPU_NZ]), np.int64(s[CPU_C]), np.int64(s[CPU_V]), np.int64(s[CPU_D])
        pc = np.int64(s[CPU_PC])
        cycles = np.int64(s[CYCLES])
        bank = np.int64(s[CART_BANK])
        base = np.int64(s[LOG_BASE])
        count = np.int64(s[LOG_COUNT])
        if s[FRAME_ENDED] != 0 or s[CPU_JAMMED] != 0:
            break
    s[CPU_A] = a
    s[CPU_X] = x
    s[CPU_Y] = y
    s[CPU_SP] = sp
    s[CPU_PC] = pc & 0xFFFF
    s[CPU_NZ] = nz
    s[CPU_C] = c
    s[CPU_V] = v
    s[CYCLES] = cycles
    s[LOG_COUNT] = count
