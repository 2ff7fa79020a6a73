"""What the 6507's operations do with its registers and flags, and with the byte on the bus.

The addressing of `interpreter.py` is done by then. `opcodes.py` says which operation an opcode is.
"""

import numpy as np

from ..compiling.jit import kernel, stand_alone
from ..state import CPU_A, CPU_C, CPU_D, CPU_I, CPU_NZ, CPU_SP, CPU_V, CPU_X, CPU_Y
from .alu import add, nz_of_flags, subtract
from .opcodes import OPERATIONS

# fmt: off
(HLT, ADC, ANC, AND, ANE, ARR, ASL, ASR, BCC, BCS, BEQ, BIT, BMI, BNE, BPL, BRK, BVC, BVS, CLC, CLD, CLI, CLV,
 CMP, CPX, CPY, DCP, DEC, DEX, DEY, EOR, INC, INX, INY, ISB, JMP, JSR, LAS, LAX, LDA, LDX, LDY, LSR, LXA, NOP,
 ORA, PHA, PHP, PLA, PLP, RLA, ROL, ROR, RRA, RTI, RTS, SAX, SBC, SBX, SEC, SED, SEI, SHA, SHS, SHX, SHY, SLO,
 SRE, STA, STX, STY, TAX, TAY, TSX, TXA, TXS, TYA) = range(len(OPERATIONS))
# fmt: on


@kernel
def operate_on_registers(s, operation):
    """Run an operation with implied operands."""
    stand_alone()
    if operation == DEX:
        s[CPU_X] = (s[CPU_X] - 1) & 0xFF
        s[CPU_NZ] = s[CPU_X]
    elif operation == DEY:
        s[CPU_Y] = (s[CPU_Y] - 1) & 0xFF
        s[CPU_NZ] = s[CPU_Y]
    elif operation == INX:
        s[CPU_X] = (s[CPU_X] + 1) & 0xFF
        s[CPU_NZ] = s[CPU_X]
    elif operation == INY:
        s[CPU_Y] = (s[CPU_Y] + 1) & 0xFF
        s[CPU_NZ] = s[CPU_Y]
    elif operation == TAX:
        s[CPU_X] = s[CPU_A]
        s[CPU_NZ] = s[CPU_A]
    elif operation == TAY:
        s[CPU_Y] = s[CPU_A]
        s[CPU_NZ] = s[CPU_A]
    elif operation == TXA:
        s[CPU_A] = s[CPU_X]
        s[CPU_NZ] = s[CPU_X]
    elif operation == TYA:
        s[CPU_A] = s[CPU_Y]
        s[CPU_NZ] = s[CPU_Y]
    elif operation == TSX:
        s[CPU_X] = s[CPU_SP]
        s[CPU_NZ] = s[CPU_SP]
    elif operation == TXS:
        s[CPU_SP] = s[CPU_X]
    elif operation == CLC:
        s[CPU_C] = 0
    elif operation == SEC:
        s[CPU_C] = 1
    elif operation == CLD:
        s[CPU_D] = 0
    elif operation == SED:
        s[CPU_D] = 1
    elif operation == CLI:
        s[CPU_I] = 0
    elif operation == SEI:
        s[CPU_I] = 1
    elif operation == CLV:
        s[CPU_V] = 0


@kernel
def operate_on_read(s, operation, m):
    """Run an operation on the byte `m` that was read."""
    stand_alone()
    a = np.int64(s[CPU_A])
    x = np.int64(s[CPU_X])
    c = np.int64(s[CPU_C])
    if operation == LDA:
        s[CPU_A] = m
        s[CPU_NZ] = m
    elif operation == LDX:
        s[CPU_X] = m
        s[CPU_NZ] = m
    elif operation == LDY:
        s[CPU_Y] = m
        s[CPU_NZ] = m
    elif operation == CMP:
        s[CPU_C] = 1 if a >= m else 0
        s[CPU_NZ] = (a - m) & 0xFF
    elif operation == CPX:
        s[CPU_C] = 1 if x >= m else 0
        s[CPU_NZ] = (x - m) & 0xFF
    elif operation == CPY:
        s[CPU_C] = 1 if s[CPU_Y] >= m else 0
        s[CPU_NZ] = (np.int64(s[CPU_Y]) - m) & 0xFF
    elif operation == AND:
        s[CPU_A] = a & m
        s[CPU_NZ] = a & m
    elif operation == ORA:
        s[CPU_A] = a | m
        s[CPU_NZ] = a | m
    elif operation == EOR:
        s[CPU_A] = a ^ m
        s[CPU_NZ] = a ^ m
    elif operation == ADC:
        result, carry, overflow = add(a, m, c, s[CPU_D])
        s[CPU_A] = result
        s[CPU_NZ] = result
        s[CPU_C] = carry
        s[CPU_V] = overflow
    elif operation == SBC:
        result, carry, overflow = subtract(a, m, c, s[CPU_D])
        s[CPU_A] = result
        s[CPU_NZ] = result
        s[CPU_C] = carry
        s[CPU_V] = overflow
    elif operation == BIT:
        s[CPU_NZ] = nz_of_flags(m & 0x80 != 0, a & m == 0)
        s[CPU_V] = m >> 6 & 1
    elif operation != NOP:
        _operate_undocumented(s, operation, m)


@kernel
def _operate_undocumented(s, operation, m):
    """Run an undocumented operation on the byte `m` that was read."""
    stand_alone()
    a = np.int64(s[CPU_A])
    x = np.int64(s[CPU_X])
    if operation == LAX:
        s[CPU_A] = m
        s[CPU_X] = m
        s[CPU_NZ] = m
    elif operation == ANC:
        s[CPU_A] = a & m
        s[CPU_NZ] = a & m
        s[CPU_C] = (a & m) >> 7
    elif operation == ASR:
        s[CPU_C] = a & m & 1
        s[CPU_A] = (a & m) >> 1
        s[CPU_NZ] = (a & m) >> 1
    elif operation == ARR:
        carry = np.int64(s[CPU_C])
        value = a & m
        result = value >> 1 | carry << 7
        if s[CPU_D] == 0:
            s[CPU_NZ] = result
            s[CPU_C] = result >> 6 & 1
            s[CPU_V] = (result >> 6 ^ result >> 5) & 1
        else:
            s[CPU_NZ] = nz_of_flags(carry != 0, result == 0)
            s[CPU_V] = (value ^ result) >> 6 & 1
            if (value & 0x0F) + (value & 0x01) > 0x05:
                result = (result & 0xF0) | (result + 6) & 0x0F
            if (value & 0xF0) + (value & 0x10) > 0x50:
                result = (result + 0x60) & 0xFF
                s[CPU_C] = 1
            else:
                s[CPU_C] = 0
        s[CPU_A] = result
    elif operation == ANE:
        s[CPU_A] = (a | 0xEE) & x & m
        s[CPU_NZ] = s[CPU_A]
    elif operation == LXA:
        s[CPU_A] = (a | 0xEE) & m
        s[CPU_X] = s[CPU_A]
        s[CPU_NZ] = s[CPU_A]
    elif operation == SBX:
        difference = (a & x) - m
        s[CPU_X] = difference & 0xFF
        s[CPU_NZ] = difference & 0xFF
        s[CPU_C] = 1 if difference >= 0 else 0
    elif operation == LAS:
        value = np.int64(s[CPU_SP]) & m
        s[CPU_A] = value
        s[CPU_X] = value
        s[CPU_SP] = value
        s[CPU_NZ] = value


@kernel
def modify(s, operation, m):
    """Run a read-modify-write operation on the byte `m`; return the byte to store."""
    stand_alone()
    a = np.int64(s[CPU_A])
    c = np.int64(s[CPU_C])
    if operation == INC:
        result = (m + 1) & 0xFF
        s[CPU_NZ] = result
    elif operation == DEC:
        result = (m - 1) & 0xFF
        s[CPU_NZ] = result
    elif operation == ASL or operation == SLO:
        result = m << 1 & 0xFF
        s[CPU_C] = m >> 7
        s[CPU_NZ] = result
    elif operation == ROL or operation == RLA:
        result = (m << 1 | c) & 0xFF
        s[CPU_C] = m >> 7
        s[CPU_NZ] = result
    elif operation == LSR or operation == SRE:
        result = m >> 1
        s[CPU_C] = m & 1
        s[CPU_NZ] = result
    elif operation == ROR or operation == RRA:
        result = m >> 1 | c << 7
        s[CPU_C] = m & 1
        s[CPU_NZ] = result
    elif operation == DCP:
        result = (m - 1) & 0xFF
        s[CPU_C] = 1 if a >= result else 0
        s[CPU_NZ] = (a - result) & 0xFF
    else:  # ISB
        result = (m + 1) & 0xFF
    if operation == SLO:
        s[CPU_A] = a | result
        s[CPU_NZ] = a | result
    elif operation == RLA:
        s[CPU_A] = a & result
        s[CPU_NZ] = a & result
    elif operation == SRE:
        s[CPU_A] = a ^ result
        s[CPU_NZ] = a ^ result
    elif operation == RRA:
        total, carry, overflow = add(a, result, m & 1, s[CPU_D])
        s[CPU_A] = total
        s[CPU_NZ] = total
        s[CPU_C] = carry
        s[CPU_V] = overflow
    elif operation == ISB:
        total, carry, overflow = subtract(a, result, c, s[CPU_D])
        s[CPU_A] = total
        s[CPU_NZ] = total
        s[CPU_C] = carry
        s[CPU_V] = overflow
    return result


@kernel
def stored(s, operation, address):
    """Return the byte that a store writes."""
    stand_alone()
    a = np.int64(s[CPU_A])
    x = np.int64(s[CPU_X])
    high = ((address >> 8) + 1) & 0xFF
    if operation == STA:
        return a
    if operation == STX:
        return x
    if operation == STY:
        return np.int64(s[CPU_Y])
    if operation == SAX:
        return a & x
    if operation == SHA:
        return a & x & high
    if operation == SHX:
        return x & high
    if operation == SHY:
        return np.int64(s[CPU_Y]) & high
    s[CPU_SP] = a & x  # SHS
    return a & x & high
