"""The 6507: flags and decimal mode against a slow reference, cycles, jumps."""

import numpy as np
import pytest

from parcade.atari import cartridge, console
from parcade.atari import state as st
from parcade.atari.compiling.prepare import prepare
from parcade.atari.mos6507 import interpreter, opcodes


def machine(program: bytes, image: bytearray | None = None, kind: int = cartridge.PLAIN) -> tuple:
    """A console about to run `program` at $F000, or an image with its own reset vector."""
    prepare()
    image = image or bytearray(4096)
    image[: len(program)] = program
    if kind == cartridge.PLAIN:
        image[0xFFC:0xFFE] = b"\x00\xf0"
    rom = cartridge.expand_image(bytes(image), kind)
    arrays = st.allocate(1, 210)
    arrays["state"][0, st.CART_KIND] = kind
    rows = arrays["state"][0], arrays["memory"][0], rom, arrays["screen"][0], arrays["random"][0]
    rows[0][st.ROM_HEIGHT], rows[0][st.ROM_YSTART], rows[0][st.ROM_MAX_LINES] = 210, 34, 290
    rows[4][0, 624] = 624
    console.system_reset(*rows)
    return rows


def run(program: bytes, steps: int, **registers) -> np.ndarray:
    s, memory, rom, screen, _ = machine(program)
    for name, value in registers.items():
        s[getattr(st, name)] = value
    for _ in range(steps):
        interpreter.step(s, memory, rom, screen)
    return s


def reference_decimal(a: int, m: int, c: int, subtracting: bool) -> tuple[int, int, int]:
    """Result, carry and overflow, computed by tens and ones."""
    value = {byte: 10 * (byte >> 4) + (byte & 15) for byte in range(256)}
    if subtracting:
        total = value[a] - value[m] - (1 - c)
        total = total + 100 if total < 0 else total
        number = total % 100
        carry = int(a >= m + (1 - c))
        result = 16 * (number // 10) + number % 10
        return result, carry, ((a ^ result) & (a ^ m)) >> 7
    total = value[a] + value[m] + c
    number = (total & 0xFF) % 100
    result = 16 * (number // 10) + number % 10
    return result, int(total > 99), ((a ^ result) & (result ^ m)) >> 7


def signed(byte: int) -> int:
    return byte - 256 if byte & 0x80 else byte


@pytest.mark.parametrize("decimal", [0, 1])
def test_adc_and_sbc_give_the_reference_result_and_flags_for_every_operand(decimal):
    s, memory, rom, screen, _ = machine(bytes([0x65, 0x80, 0xE5, 0x80]))
    for a in range(256):
        for m in range(0, 256, 1 if a % 16 == 0 else 7):
            for c in (0, 1):
                for pc, subtracting in ((0xF000, False), (0xF002, True)):
                    s[st.CPU_A], s[st.CPU_C], s[st.CPU_D], s[st.CPU_PC], memory[0] = a, c, decimal, pc, m
                    interpreter.step(s, memory, rom, screen)
                    if decimal:
                        result, carry, overflow = reference_decimal(a, m, c, subtracting)
                    elif subtracting:
                        result, carry = (a - m - 1 + c) & 0xFF, int(a - m - 1 + c >= 0)
                        overflow = int(not -128 <= signed(a) - signed(m) - 1 + c <= 127)
                    else:
                        result, carry = (a + m + c) & 0xFF, int(a + m + c > 255)
                        overflow = int(not -128 <= signed(a) + signed(m) + c <= 127)
                    got = int(s[st.CPU_A]), int(s[st.CPU_C]), int(s[st.CPU_V]), int(s[st.CPU_NZ]) & 0xFF
                    assert got == (result, carry, overflow, result), (a, m, c, subtracting)


def test_every_flags_byte_survives_plp_and_php():
    s, memory, rom, screen, _ = machine(bytes([0x28, 0x08]))
    for byte in range(256):
        s[st.CPU_PC], s[st.CPU_SP], memory[0x7F] = 0xF000, 0xFE, byte
        interpreter.step(s, memory, rom, screen)
        interpreter.step(s, memory, rom, screen)
        assert memory[0x7F] == byte | 0x30


def test_a_taken_branch_costs_one_cycle_and_two_into_another_page():
    assert run(bytes([0xD0, 0x10]), 1, CPU_NZ=1)[st.CYCLES] == 3
    assert run(bytes([0xD0, 0x80]), 1, CPU_NZ=1)[st.CYCLES] == 4
    assert run(bytes([0xD0, 0x10]), 1, CPU_NZ=0)[st.CYCLES] == 2


def test_an_indexed_read_that_leaves_its_page_costs_one_cycle_more_and_a_store_does_not():
    assert run(bytes([0xBD, 0x80, 0xF0]), 1, CPU_X=0x7F)[st.CYCLES] == 4
    assert run(bytes([0xBD, 0x80, 0xF0]), 1, CPU_X=0x80)[st.CYCLES] == 5
    assert run(bytes([0x9D, 0x80, 0xF0]), 1, CPU_X=0x80)[st.CYCLES] == 5


def test_jmp_indirect_takes_the_high_byte_from_the_start_of_the_page():
    image = bytearray(4096)
    image[0x2FF], image[0x200] = 0x34, 0xF1
    s, memory, rom, screen, _ = machine(bytes([0x6C, 0xFF, 0xF2]), image)
    interpreter.step(s, memory, rom, screen)
    assert s[st.CPU_PC] == 0xF134


@pytest.mark.parametrize("opcode", sorted(set(range(256)) - set(opcodes.OPCODES)))
def test_bytes_outside_the_table_halt_the_chip(opcode):
    assert run(bytes([opcode]), 1)[st.CPU_JAMMED] == 1
