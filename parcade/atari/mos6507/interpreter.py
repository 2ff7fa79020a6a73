"""Interpreter of the 6507. It runs an instruction in two phases: address, then operand, operation and result.

The interpreter handles every opcode of `opcodes.py` and makes every bus access in order. Most instructions of
a game run as machine code instead (`recompiler.py`), which falls back to the interpreter for the rest. Tests
compare the two.

As in ale-py's core, an instruction's base cycles are added before its first operand is read, so all its
accesses see the same time. The only dummy accesses are discarded reads of PLA, PLP, RTI, RTS, JSR, BRK.
"""

import numpy as np

from .. import bus
from ..compiling.jit import CHIPS, inlined, kernel, separate, stand_alone
from ..primitives.warp import any_of, on_gpu, together
from ..state import (
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
)
from ..tia import chip as tia
from ..translate.accesses import ENDED, GOING, INTERPRET, LATCH
from ..translate.machine_code import run_machine_code
from ..translate.notes import count_notes, take_note
from .alu import nz_of_flags, status
from .opcodes import CYCLES as BASE_CYCLES
from .opcodes import KIND, KINDS, MODE, MODES, OPERATION, PAGE_EXTRA
from .operations import (
    BCC,
    BCS,
    BEQ,
    BMI,
    BNE,
    BPL,
    BRK,
    BVC,
    HLT,
    JMP,
    JSR,
    PHA,
    PHP,
    PLA,
    PLP,
    RTI,
    RTS,
    modify,
    operate_on_read,
    operate_on_registers,
    stored,
)

(IMP, ACC, IMM, ZP, ZPX, ZPY, ABS, ABSX, ABSY, IND, INDX, INDY, REL) = range(len(MODES))
(NONE, READ, WRITE, RMW, BRANCH, JUMP) = range(len(KINDS))


@inlined
def _push(s, memory, rom, screen, value, after_read):
    sp = np.int64(s[CPU_SP])
    s[CPU_SP] = (sp - 1) & 0xFF
    bus.write(s, memory, rom, screen, 0x100 | sp, value, after_read)


@inlined
def _pull(s, memory, rom, screen):
    sp = (np.int64(s[CPU_SP]) + 1) & 0xFF
    s[CPU_SP] = sp
    return bus.read(s, memory, rom, screen, 0x100 | sp)


@inlined
def _status(s):
    return status(
        np.int64(s[CPU_NZ]), np.int64(s[CPU_C]), np.int64(s[CPU_V]), np.int64(s[CPU_D]), np.int64(s[CPU_I])
    )


@inlined
def _set_status(s, byte):
    s[CPU_NZ] = nz_of_flags(byte & 0x80 != 0, byte & 0x02 != 0)
    s[CPU_V] = byte >> 6 & 1
    s[CPU_D] = byte >> 3 & 1
    s[CPU_I] = byte >> 2 & 1
    s[CPU_C] = byte & 1


@separate(f"void({CHIPS})")
def reset(s, memory, rom, screen):
    """System reset: clear the registers, set SP to $FF and load PC from the vector at $FFFC."""
    stand_alone()
    s[CPU_A] = 0
    s[CPU_X] = 0
    s[CPU_Y] = 0
    s[CPU_SP] = 0xFF
    s[CPU_NZ] = 1
    s[CPU_C] = 0
    s[CPU_V] = 0
    s[CPU_D] = 0
    s[CPU_I] = 0
    s[CPU_JAMMED] = 0
    low = bus.read(s, memory, rom, screen, np.int64(0xFFFC))
    high = bus.read(s, memory, rom, screen, np.int64(0xFFFD))
    s[CPU_PC] = low | high << 8


@kernel
def _stack_and_jumps(s, memory, rom, screen, operation, pc):
    """Run an operation that changes PC or SP; return PC."""
    stand_alone()
    if operation == PHA:
        _push(s, memory, rom, screen, np.int64(s[CPU_A]), True)
    elif operation == PHP:
        _push(s, memory, rom, screen, _status(s), True)
    elif operation == PLA:
        bus.read(s, memory, rom, screen, 0x100 | np.int64(s[CPU_SP]))
        value = _pull(s, memory, rom, screen)
        s[CPU_A] = value
        s[CPU_NZ] = value
    elif operation == PLP:
        bus.read(s, memory, rom, screen, 0x100 | np.int64(s[CPU_SP]))
        _set_status(s, _pull(s, memory, rom, screen))
    elif operation == JSR:
        low = bus.read(s, memory, rom, screen, pc)
        pc = (pc + 1) & 0xFFFF
        bus.read(s, memory, rom, screen, 0x100 | np.int64(s[CPU_SP]))
        _push(s, memory, rom, screen, pc >> 8, True)
        _push(s, memory, rom, screen, pc & 0xFF, False)
        pc = low | bus.read(s, memory, rom, screen, pc) << 8
    elif operation == RTS:
        bus.read(s, memory, rom, screen, 0x100 | np.int64(s[CPU_SP]))
        pc = _pull(s, memory, rom, screen)
        pc |= _pull(s, memory, rom, screen) << 8
        bus.read(s, memory, rom, screen, pc)
        pc = (pc + 1) & 0xFFFF
    elif operation == RTI:
        bus.read(s, memory, rom, screen, 0x100 | np.int64(s[CPU_SP]))
        _set_status(s, _pull(s, memory, rom, screen))
        pc = _pull(s, memory, rom, screen)
        pc |= _pull(s, memory, rom, screen) << 8
    else:  # BRK
        bus.read(s, memory, rom, screen, pc)
        pc = (pc + 1) & 0xFFFF
        _push(s, memory, rom, screen, pc >> 8, True)
        _push(s, memory, rom, screen, pc & 0xFF, False)
        _push(s, memory, rom, screen, _status(s), False)
        s[CPU_I] = 1
        pc = bus.read(s, memory, rom, screen, np.int64(0xFFFE))
        pc |= bus.read(s, memory, rom, screen, np.int64(0xFFFF)) << 8
    return pc


@inlined
def _branch_taken(s, operation):
    nz = np.int64(s[CPU_NZ])
    if operation == BNE:
        return nz & 0xFF != 0
    if operation == BEQ:
        return nz & 0xFF == 0
    if operation == BPL:
        return nz & 0x8080 == 0
    if operation == BMI:
        return nz & 0x8080 != 0
    if operation == BCC:
        return s[CPU_C] == 0
    if operation == BCS:
        return s[CPU_C] != 0
    if operation == BVC:
        return s[CPU_V] == 0
    return s[CPU_V] != 0


@separate(f"void({CHIPS})")
def step(s, memory, rom, screen):
    """Run one instruction."""
    stand_alone()
    pc = np.int64(s[CPU_PC])
    opcode = bus.read(s, memory, rom, screen, pc)
    pc = (pc + 1) & 0xFFFF
    operation = np.int64(OPERATION[opcode])
    mode = np.int64(MODE[opcode])
    kind = np.int64(KIND[opcode])
    if operation == HLT:
        s[CPU_PC] = pc
        s[CPU_JAMMED] = 1
        return
    s[CYCLES] += np.int32(BASE_CYCLES[opcode])

    if kind == BRANCH:
        offset = bus.read(s, memory, rom, screen, pc)
        pc = (pc + 1) & 0xFFFF
        if _branch_taken(s, operation):
            target = (pc + offset - ((offset & 0x80) << 1)) & 0xFFFF
            s[CYCLES] += np.int32(1 if (target ^ pc) & 0xFF00 == 0 else 2)
            pc = target
        s[CPU_PC] = pc
        return

    # Phase 1: the effective address.
    address = np.int64(0)
    operand = np.int64(0)
    if mode == IMM:
        operand = bus.read(s, memory, rom, screen, pc)
        pc = (pc + 1) & 0xFFFF
    elif ZP <= mode <= ZPY or mode == INDX or mode == INDY:
        address = bus.read(s, memory, rom, screen, pc)
        pc = (pc + 1) & 0xFFFF
        if mode == ZPX or mode == INDX:
            address = (address + np.int64(s[CPU_X])) & 0xFF
        elif mode == ZPY:
            address = (address + np.int64(s[CPU_Y])) & 0xFF
        if mode == INDX or mode == INDY:
            # The pointer's high byte comes from pointer + 1 without wrapping: $FF takes it from $0100.
            low = bus.read(s, memory, rom, screen, address)
            address = low | bus.read(s, memory, rom, screen, address + 1) << 8
    elif ABS <= mode <= IND and operation != JSR:
        low = bus.read(s, memory, rom, screen, pc)
        address = low | bus.read(s, memory, rom, screen, (pc + 1) & 0xFFFF) << 8
        pc = (pc + 2) & 0xFFFF
    if mode == ABSX or mode == ABSY or mode == INDY:
        base = address
        address = (address + np.int64(s[CPU_X] if mode == ABSX else s[CPU_Y])) & 0xFFFF
        if PAGE_EXTRA[opcode] != 0 and (address ^ base) & 0xFF00:
            s[CYCLES] += np.int32(1)

    # Phase 2: operand, operation, result.
    if kind == READ:
        if mode != IMM:
            operand = bus.read(s, memory, rom, screen, address)
        operate_on_read(s, operation, operand)
    elif kind == RMW:
        operand = bus.read(s, memory, rom, screen, address)
        bus.write(s, memory, rom, screen, address, modify(s, operation, operand), True)
    elif kind == WRITE:
        bus.write(s, memory, rom, screen, address, stored(s, operation, address), True)
    elif mode == ACC:
        s[CPU_A] = modify(s, operation, np.int64(s[CPU_A]))
    elif operation == JMP:
        if mode == IND:
            low = bus.read(s, memory, rom, screen, address)
            following = (address & 0xFF00) | (address + 1) & 0xFF  # the pointer wraps inside its page
            address = low | bus.read(s, memory, rom, screen, following) << 8
        pc = address
    elif operation in (JSR, RTS, PHA, PHP, PLA, PLP, RTI, BRK):
        pc = _stack_and_jumps(s, memory, rom, screen, operation, pc)
    else:
        operate_on_registers(s, operation)
    s[CPU_PC] = pc


@separate(f"void({CHIPS}, int64)")
def run(s, memory, rom, screen, limit):
    """Run until the frame ends, the CPU halts or `limit` instructions have executed.

    Instructions run as machine code where possible; the others are noted for the next translation. All lanes
    of a group stay in this loop until the last one ends, because machine code synchronises the lanes of a
    group and runs the lane that is furthest behind.
    """
    stand_alone()
    group = together()
    done = np.int64(0)
    noted = np.int64(0)
    unknown = True  # whether the next instruction cannot be predicted from interpreted ones
    status = np.int64(GOING)
    while any_of(group, status != ENDED):
        answer = run_machine_code(s, memory, rom, limit - done, status, group)
        if status != ENDED:
            done += answer >> 2
            status = answer & 3
            unknown = unknown or answer >> 2 != 0
        if status == LATCH:
            tia.serve(s, screen, tia.CATCH_UP)
        elif status == INTERPRET:
            while status == INTERPRET:
                status = np.int64(ENDED)
                if done < limit:
                    number, unknown = take_note(s, memory, rom, unknown)
                    noted += number
                    step(s, memory, rom, screen)
                    done += 1
                    if done < limit and s[FRAME_ENDED] == 0 and s[CPU_JAMMED] == 0:
                        # Outside the cartridge there is no machine code. A GPU's lanes meet anyway.
                        outside = not on_gpu() and s[CPU_PC] & 0x1000 == 0
                        status = np.int64(INTERPRET if outside else GOING)
    if noted != 0:
        count_notes(rom, noted)
