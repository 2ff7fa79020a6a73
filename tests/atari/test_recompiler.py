"""Machine code against the interpreter: on random programs, on real games, at its limits."""

import secrets

import numpy as np
import pytest
from test_cpu6507 import machine

from parcade.atari import Arcade, cartridge, console, cpu6507, jit, machine_code, opcodes, recompiler, rom_code, rom_image
from parcade.atari import state as st

PROGRAM_BYTES = 300


@pytest.fixture
def random():
    seed = secrets.randbits(30)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def random_image(random: np.random.Generator) -> bytearray:
    """Documented opcodes with operands that often mean RAM, the TIA, the RIOT or the program itself."""
    common = [byte for byte, row in opcodes.OPCODES.items() if not row.undocumented and row.mnemonic not in ("BRK", "RTI")]
    image = np.zeros(4096, np.uint8)
    at = 0
    while at < PROGRAM_BYTES:
        opcode = int(random.choice(common))
        length = opcodes.LENGTH[opcodes.OPCODES[opcode].mode]
        operand = random.integers(0, 256, 2)
        if length == 3:
            operand[1] = random.choice([0x00, 0x00, 0x02, 0xF0, 0xF0, 0xF1, int(random.integers(256))])
        image[at : at + 3] = opcode, *operand
        at += length
    image[at] = 0x4C  # and round again
    image[at + 1 : at + 3] = 0x00, 0xF0
    return bytearray(image.tobytes())


def test_machine_code_equals_the_interpreter_on_random_programs(random):
    ran = programs = 0
    while programs < 12 or ran < 300:  # most programs soon lose themselves; without the second the interpreter might meet itself
        ran += run_on_both(random_image(random), random, extra=400)
        programs += 1
        assert programs < 100


def waiting_image(random: np.random.Generator) -> bytearray:
    """Loops on X, Y and the timer, of both branches, round and round."""
    image = np.zeros(4096, np.uint8)
    at = 0
    for _ in range(12):
        count, interval = int(random.integers(256)), int(random.choice([0x94, 0x95, 0x96]))
        branch = int(random.choice([0xD0, 0x10]))  # BNE, BPL
        loop = [[0xA2, count, 0xCA, branch, 0xFD], [0xA0, count, 0x88, branch, 0xFD]]
        for poll in (0xAD, 0xAE, 0xAC):  # LDA, LDX, LDY
            loop.append([0xA9, count, 0x8D, interval, 0x02, poll, 0x84, 0x02, branch, 0xFB])
        loop.append([0xA9, count, 0x8D, interval, 0x02, 0x2C, 0x85, 0x02, branch, 0xFB])  # BIT TIMINT
        chosen = loop[int(random.integers(len(loop)))]
        image[at : at + len(chosen)] = chosen
        at += len(chosen)
    image[at : at + 3] = 0x4C, 0x00, 0xF0
    return bytearray(image.tobytes())


def test_loops_that_only_wait_end_where_the_interpreter_ends_them(random):
    """At every limit of instructions, which may fall into a loop."""
    for extra in (1, 50, *random.integers(2, 3000, 10)):
        assert run_on_both(waiting_image(random), random, extra=int(extra)) > 0


def test_the_stack_pointer_may_stand_at_the_tia(random):
    """PHP and PLA wherever the stack pointer is; what PLA pulls goes to RAM."""
    image, at = np.zeros(4096, np.uint8), 0
    for k in range(60):
        place = int(random.choice([*range(0x08, 0x20), 0x78, 0x7F, 0x80, 0xFE, 0xFF, int(random.integers(256))]))
        program = [0xA2, place, 0x9A, *[0x08] * (k % 3), 0x68, 0x85, 0x80 + k]  # LDX, TXS, PHP ..., PLA, STA
        image[at : at + len(program)] = program
        at += len(program)
    image[at : at + 3] = 0x4C, 0x00, 0xF0
    assert run_on_both(bytearray(image.tobytes()), random, extra=200) > 50


def fetching_image(random: np.random.Generator) -> bytearray:
    """Reads of all of the DPC's registers, music above all, and writes, in its second bank from $F080 on."""
    image = random.integers(0, 256, 10240).astype(np.uint8)
    at, end = 4096 + 0x80, 4096 + 0x400
    while at < end:
        register = int(random.choice([*range(0x40), *[4, 5, 6, 7] * 12, *range(0x40, 0x80)]))
        opcode = 0x8D if register >= 0x40 else int(random.choice([0xAD, 0xAE, 0xAC, 0x4D]))  # STA; LDA, LDX, LDY, EOR
        wait = [0xEA] * int(random.integers(4))
        program = [opcode, register, 0x10, 0x85, 0x80 + at % 0x70, *wait]  # and STA to RAM
        image[at : at + len(program)] = program
        at += len(program)
    image[at : at + 3] = 0x4C, 0x80, 0xF0
    image[4096 + 0xFFC : 4096 + 0xFFE] = 0x80, 0xF0
    return bytearray(image.tobytes())


def test_the_dpc_plays_its_music_in_machine_code_as_on_the_interpreter(random):
    for _ in range(5):
        assert run_on_both(fetching_image(random), random, extra=2000, kind=cartridge.DPC, start=0xF080) > 1000


def run_on_both(image: bytearray, random: np.random.Generator, extra: int, kind: int = cartridge.PLAIN, start: int = 0xF000) -> int:
    """Run a program on machine code and on the interpreter from one random state; returns how many were machine code."""
    jit.prepare()
    plain, fast = machine(b"", image, kind), machine(b"", image, kind)
    name = int(plain[0][st.CART_BANK]) >> 12 << 16 | start
    found, _ = rom_image.find_code(rom_image.Image(plain[2], kind), [name])
    assembly = recompiler.translate(plain[2], kind, [name], set(found))
    engine, address = machine_code.load_object(machine_code.compile_assembly(assembly))
    fast[2][-8:] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)
    ram = random.integers(0, 256, 128).astype(np.uint8)
    charge = random.integers(-2, 5000, 4)
    fetchers = random.integers(0, 256, 40)  # tops, bottoms, counters, flags, and which play music
    fetchers[32:] &= 1
    for rows in (plain, fast):
        rows[0][st.DPC_TOP : st.DPC_TOP + 40] = fetchers
        rows[1][:128] = ram
        rows[0][st.IN_CHARGE : st.IN_CHARGE + 4] = charge
        rows[0][st.IN_INPT4] = 0x80
        console._start_frame(rows[0])
    limit = len(found) + extra
    ran = int(machine_code_alone(fast, address, limit))
    for _ in range(limit):
        if plain[0][st.FRAME_ENDED] or plain[0][st.CPU_JAMMED]:
            break
        cpu6507.step(*plain[:4])
    plain[0][st.BUS] = fast[0][st.BUS] = 0  # means nothing between instructions
    assert np.array_equal(plain[0], fast[0]), [state_difference(plain[0], fast[0]), image[:PROGRAM_BYTES].hex()]
    assert np.array_equal(plain[1], fast[1])
    assert engine is not None
    return ran


def machine_code_alone(rows: tuple, address: int, limit: int) -> int:
    """Run as `cpu6507.run` does; returns how many instructions were machine code."""
    from ctypes import CFUNCTYPE, c_int32, c_void_p

    call = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_int32)(address)
    done = ran = 0
    while done < limit:
        here = call(rows[0].ctypes.data, rows[1].ctypes.data, rows[2].ctypes.data, limit - done)
        assert 0 <= here <= limit - done
        done, ran = done + here, ran + here
        if done >= limit:
            break
        cpu6507.step(*rows[:4])
        done += 1
        if rows[0][st.FRAME_ENDED] or rows[0][st.CPU_JAMMED]:
            break
    return ran


def state_difference(a: np.ndarray, b: np.ndarray) -> list:
    return [(int(i), int(a[i]), int(b[i])) for i in np.flatnonzero(a != b)[:6]]


WITH_CODE = "breakout beam_rider robotank montezuma_revenge elevator_action darkchambers atlantis jamesbond krull solaris pitfall2"


@pytest.mark.parametrize("game", WITH_CODE.split())
def test_a_game_runs_the_same_with_and_without_machine_code(game, random):
    with_code, without = Arcade(game, 1), Arcade(game, 1)
    rom_code.detach(without.machine.rom)
    assert with_code.machine.rom[-8:].any()
    assert not without.machine.rom[-8:].any()
    for arcade in (with_code, without):
        arcade.reset(seed=5)
    for _ in range(80):
        action = int(random.integers(18))
        assert with_code.act(action) == without.act(action)
        assert np.array_equal(with_code.ram, without.ram)
        assert np.array_equal(with_code.screen, without.screen)


def test_code_behind_rts_and_pointers_is_found_by_running_it():
    arcade = Arcade("breakout", 1)
    from parcade.atari import tracing

    seen, entered = tracing.trace(arcade.machine.powered, arcade.machine.rom, arcade.machine.program)
    vector = int(arcade.machine.rom[0xFFC]) | int(arcade.machine.rom[0xFFD]) << 8
    static, _ = rom_image.find_code(rom_image.Image(arcade.machine.rom, cartridge.PLAIN), [vector])
    assert len(seen) > 300
    assert entered <= set(seen)
    assert len(set(seen) - set(static)) > 100
