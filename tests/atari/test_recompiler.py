"""Machine code against the interpreter: on random programs, on real games, at its limits."""

import subprocess
import sys
from collections.abc import Sequence

import llvmlite.binding as llvm
import numpy as np
import pytest
from test_interpreter import machine

from parcade.atari import Arcade, cartridge, console
from parcade.atari import state as st
from parcade.atari.compiling.prepare import prepare
from parcade.atari.cuda.lane_simulation import LanesOnCpu, Row, compile_form, play_group
from parcade.atari.mos6507 import interpreter, opcodes
from parcade.atari.translate import machine_code, recompiler, rom_code, rom_image

PROGRAM_BYTES = 300


@pytest.fixture
def random(seed):
    return np.random.default_rng(seed)


def random_image(random: np.random.Generator) -> bytearray:
    """Documented opcodes whose operands often address RAM, the TIA, the RIOT or the program itself."""
    common = [byte for byte, row in opcodes.OPCODES.items() if not row.undocumented]
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
    image[at] = 0x4C  # and loop
    image[at + 1 : at + 3] = 0x00, 0xF0
    return bytearray(image.tobytes())


def test_machine_code_equals_the_interpreter_on_random_programs(random, usual_code):
    ran = programs = 0
    # Most programs soon go astray; the second condition ensures that enough machine code runs.
    while programs < 12 or ran < 300:
        ran += run_on_both(random_image(random), random, extras=[400])
        programs += 1
        assert programs < 100


def waiting_image(random: np.random.Generator) -> bytearray:
    """Loops on X, Y and the timer with both branches, in an endless loop."""
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
    """At every instruction limit, including limits inside a loop."""
    for _ in range(6):
        assert run_on_both(waiting_image(random), random, extras=[1, 50, *random.integers(2, 3000, 3)]) > 0


def test_the_stack_pointer_may_stand_at_the_tia(random):
    """PHP and PLA for any stack pointer; STA stores what PLA pulls in RAM."""
    image, at = np.zeros(4096, np.uint8), 0
    for k in range(60):
        place = int(
            random.choice([*range(0x08, 0x20), 0x78, 0x7F, 0x80, 0xFE, 0xFF, int(random.integers(256))])
        )
        program = [0xA2, place, 0x9A, *[0x08] * (k % 3), 0x68, 0x85, 0x80 + k]  # LDX, TXS, PHP ..., PLA, STA
        image[at : at + len(program)] = program
        at += len(program)
    image[at : at + 3] = 0x4C, 0x00, 0xF0
    assert run_on_both(bytearray(image.tobytes()), random, extras=[200]) > 50


def looping(program: list[int]) -> bytearray:
    """An image that runs a program in an endless loop."""
    program = [*program, 0x4C, 0x00, 0xF0]
    assert len(program) < 0x700
    return bytearray(bytes(program).ljust(4096, b"\0"))


def random_flags(random: np.random.Generator) -> list[int]:
    """Instructions that set C, D, I, V, N and Z at random."""
    # CLC SEC, CLD SED, CLI SEI
    flags = [int(random.choice(pair)) for pair in ((0x18, 0x38), (0xD8, 0xF8), (0x58, 0x78))]
    value = int(random.choice([0, 1, 0x80, int(random.integers(256))]))
    return [0xA9, value, 0x85, 0x80, 0x24, 0x80, *flags]  # LDA, STA, BIT


def test_decimal_mode_gives_the_interpreters_numbers_and_flags(random):
    program = [0xA2, 0xFF, 0x9A]  # LDX, TXS
    for k in range(55):
        a, m = (int(byte) for byte in random.integers(0, 256, 2))
        operation = int(random.choice([0x69, 0xE9]))  # ADC, SBC
        decimal, carry = int(random.choice([0xF8, 0xF8, 0xD8])), int(random.choice([0x18, 0x38]))
        # PHP, STA, PLA, STA
        program += [
            decimal, carry, 0xA9, a, operation, m, 0x08, 0x85, 0x80 + 2 * k, 0x68, 0x85, 0x81 + 2 * k,
        ]  # fmt: skip
    assert run_on_both(looping(program), random, extras=[1500, 1500]) >= 1500


# For each kind: start of the initially mapped bank in the image, image length, PC, addresses that switch
# banks.
BANKED = {
    cartridge.PLAIN: (0, 4096, 0xF000, ()),
    cartridge.F8: (4096, 8192, 0xF000, (0xF8, 0xF9)),
    cartridge.F8SC: (4096, 8192, 0xF100, (0xF8, 0xF9)),
    cartridge.F6: (0, 16384, 0xF000, (0xF6, 0xF7, 0xF8, 0xF9)),
    cartridge.F6SC: (0, 16384, 0xF100, (0xF6, 0xF7, 0xF8, 0xF9)),
    cartridge.E0: (4096, 8192, 0xF000, ()),
    cartridge.FE: (0, 8192, 0xF000, ()),
    cartridge.DPC: (4096, 10240, 0xF080, (0xF8, 0xF9)),
}


def interrupting_image(random: np.random.Generator, kind: int, stacks: list[int]) -> tuple[bytearray, tuple]:
    """BRK with random flags and stack pointers: the same program but another handler in each bank."""
    base, length, start, switches = BANKED[kind]
    image = bytearray(length)
    banks = range(0, 4096 * (len(switches) or 1), 4096) if switches else (base,)
    program, seen = [], []
    for k in range(14):
        if switches:
            program += [0xAD, int(random.choice(switches)), 0xFF]  # LDA
        # LDX, TXS, BRK
        program += [0xA2, int(random.choice(stacks)), 0x9A, *random_flags(random), 0x00, 0xEA]
        seen.append(start + len(program))
        program += [0x08, 0x68, 0x85, 0x90 + k, 0xBA, 0x86, 0xA0 + k]  # PHP, PLA, STA, TSX, STX
    program += [0x4C, start & 0xFF, start >> 8]
    for number, bank in enumerate(banks):
        at = bank + (start & 0xFFF)
        image[at : at + len(program)] = bytes(program)
        handler = 0xF800 + 0x40 * number
        # PHP, PLA, STA, INC, RTI
        code = bytes([0x08, 0x68, 0x85, 0xB0 + number, 0xE6, 0xB8, *random_flags(random), 0x40])
        image[bank + (handler & 0xFFF) : bank + (handler & 0xFFF) + len(code)] = code
        image[bank + 0xFFC : bank + 0x1000] = bytes([start & 0xFF, start >> 8, handler & 0xFF, handler >> 8])
        seen.append(handler)
    numbers = {0: (0,), 4096: (1,)}[base] if not switches else range(len(switches))
    numbers = ((4 | 5 << 3 | 6 << 6),) if kind == cartridge.E0 else numbers
    return image, tuple(number << 16 | pc for number in numbers for pc in seen)


@pytest.mark.parametrize("kind", BANKED)
def test_interrupts_push_and_pull_what_the_interpreter_does_in_every_bank(kind, random):
    image, seen = interrupting_image(random, kind, stacks=list(range(0xC8, 0x100)))
    ran = run_on_both(image, random, extras=[600], kind=kind, start=BANKED[kind][2], seen=seen)
    # Reading the DPC's last bytes has a side effect, so it leaves BRK to the interpreter.
    if kind != cartridge.DPC:
        assert ran >= 600


def test_the_stack_of_an_interrupt_may_wrap_around_or_stand_at_the_tia(random):
    for _ in range(3):
        stacks = [*range(0x84), *range(0xFA, 0x100), *[0x80, 0x81, 0x82, 0x83, 0xFC, 0xFD, 0xFE, 0xFF] * 10]
        image, seen = interrupting_image(random, cartridge.PLAIN, stacks)
        run_on_both(image, random, extras=[300, 300], seen=seen)


def blanking_image(random: np.random.Generator, with_indexed: bool) -> bytearray:
    """Writes to VSYNC, VBLANK and WSYNC at any cycle, with paddle reads in between."""
    program = []
    for k in range(40):
        program += [0xA9, int(random.choice([0, 2, 0x80, 0x82, 0xC2, 0x42, 0xFF]))]  # LDA
        program += [0xEA] * int(random.integers(4))
        program += [0xA4, 0x80] * int(random.integers(2))  # LDY, three cycles
        register = int(random.integers(2))
        ways = [
            [0x85, register],
            [0x8D, register, 0x01],
            [0x8D, 0x40 | register, 0x00],
            [0xAA, 0x86, register],
            [0x85, 0x02],
        ]
        if with_indexed:
            ways += [
                [0xA2, 1, 0x95, 0xFF + register & 0xFF],
                [0xE6, register],
                [0x0E, register, 0x00],
                [0xA2, register, 0x9A, 0x48],
            ]
        program += ways[int(random.integers(len(ways)))]
        program += [0xA5, 0x08 + k % 4, 0x85, 0x90 + k]  # LDA INPT0-3, STA
    return looping(program)


@pytest.mark.parametrize("with_indexed", [False, True])
def test_vsync_and_vblank_are_written_at_any_cycle_and_end_frames_where_the_interpreter_does(
    with_indexed, random
):
    """`with_indexed` adds INC, ASL, indexed and stack writes, which the interpreter handles."""
    for _ in range(3):
        run_on_both(
            blanking_image(random, with_indexed), random, extras=[30, 100, *random.integers(10, 1200, 3)]
        )


def test_instructions_that_read_and_write_back_reach_the_tia_and_the_riot(random):
    """Registers, ports and the timer at known addresses."""
    # INC, DEC, ASL, ROL, LSR, ROR of the zero page; + 8: absolute.
    operations = [0xE6, 0xC6, 0x06, 0x26, 0x46, 0x66]
    ran = programs = 0
    # A few programs end their frame early, by a write to VSYNC; then more of them are run.
    while programs < 2 or ran <= 100:
        program = [0xA2, 0xFF, 0x9A]
        for k in range(50):
            operation = int(random.choice(operations))
            low = int(
                random.choice([int(random.integers(0x40)), int(random.integers(256)), 0x82, 0x84, 0x96])
            )
            program += (
                [operation, low & 0x7F]
                if k % 3 == 0
                else [operation + 8, low, int(random.choice([0, 1, 2, 2]))]
            )
            # PHP, PLA, STA, LDA INTIM, STA
            program += [0x08, 0x68, 0x85, 0x90 + k, 0xAD, 0x84, 0x02, 0x85, 0xC4 + k]
        ran += run_on_both(looping(program), random, extras=[500, 500])
        programs += 1
        assert programs < 20


def test_the_timer_is_read_after_it_expired(random):
    for _ in range(2):
        program = []
        for k in range(30):
            count, interval = (
                int(random.choice([0, 1, 2, int(random.integers(20))])),
                int(random.choice([0x94, 0x94, 0x95, 0x96, 0x97])),
            )
            # LDA, STA, LDX, DEX, BNE
            program += [
                0xA9, count, 0x8D, interval, 0x02, 0xA2, int(random.integers(1, 30)), 0xCA, 0xD0, 0xFD,
            ]  # fmt: skip
            reads = [[0xAD, 0x84, 0x02], [0xAD, 0x85, 0x02], [0xAD, 0x86, 0x02, 0xEA]]
            for n in range(3):
                program += [*reads[int(random.integers(3))], 0x85, 0x80 + 3 * k + n]
        assert run_on_both(looping(program), random, extras=[3000, 3000]) >= 2500


def colliding_image(random: np.random.Generator) -> bytearray:
    """Overlapping objects, and collision latches read in all ways."""
    program = [0xA2, 40, 0x85, 0x02, 0xCA, 0xD0, 0xFB]  # LDX, STA WSYNC, DEX, BNE
    program += [0xA9, 0x00, 0x85, 0x80, 0x85, 0x81, 0x85, 0x83]  # pointers to page 0
    for k in range(40):
        program += [
            0xA9,
            int(random.integers(256)),
            0x85,
            int(random.choice([0x0D, 0x0E, 0x1B, 0x1C, 0x1D, 0x1E, 0x1F, 0x2C, 0x10, 0x02])),
        ]
        latch, x = int(random.integers(8)), int(random.integers(8))
        program += [0xA2, x, 0xA0, x]  # LDX, LDY
        ways = [
            [0xA5, latch], [0xC5, latch], [0x24, 0x30 | latch], [0xAD, latch, 0x00], [0x0D, latch, 0x01],
            [0x65, latch],
            [0xB5, latch - x & 0xFF], [0xD5, latch + 0x30 - x], [0xE6, latch], [0x06, latch],
            [0xA9, latch, 0x85, 0x82, 0xA1, 0x82 - x], [0xA9, latch - min(x, latch), 0x85, 0x82, 0xB1, 0x82],
            [0xB9, latch, 0x00],
        ]  # fmt: skip
        # STA, PHP, PLA, STA
        program += [*ways[int(random.integers(len(ways)))], 0x85, 0x90 + k, 0x08, 0x68, 0x85, 0xC0 + k]
    return looping([0xA2, 0xFF, 0x9A, *program])


def test_collision_latches_are_read_between_machine_code_as_by_the_interpreter(random):
    """At every instruction limit, including limits next to such a read."""
    for _ in range(2):
        assert (
            run_on_both(colliding_image(random), random, extras=[300, 600, *random.integers(1, 900, 3)]) > 0
        )


def test_a_latch_is_read_when_the_log_is_full(random):
    program = [0x85, 0x06] * 100 + [0xA5, 0x02, 0x85, 0x90]  # STA, LDA CXP0FB, STA
    assert run_on_both(looping(program), random, extras=[st.LOG_CAPACITY + 3000]) > st.LOG_CAPACITY


def fetching_image(random: np.random.Generator) -> bytearray:
    """Reads of all DPC registers, mostly music, and writes, in its second bank from $F080 on."""
    image = random.integers(0, 256, 10240).astype(np.uint8)
    at, end = 4096 + 0x80, 4096 + 0x400
    while at < end:
        register = int(random.choice([*range(0x40), *[4, 5, 6, 7] * 12, *range(0x40, 0x80)]))
        opcode = (
            0x8D if register >= 0x40 else int(random.choice([0xAD, 0xAE, 0xAC, 0x4D]))
        )  # STA; LDA, LDX, LDY, EOR
        wait = [0xEA] * int(random.integers(4))
        program = [opcode, register, 0x10, 0x85, 0x80 + at % 0x70, *wait]  # and STA to RAM
        image[at : at + len(program)] = program
        at += len(program)
    image[at : at + 3] = 0x4C, 0x80, 0xF0
    image[4096 + 0xFFC : 4096 + 0xFFE] = 0x80, 0xF0
    return bytearray(image.tobytes())


def test_the_dpc_plays_its_music_in_machine_code_as_on_the_interpreter(random):
    image = fetching_image(random)
    ran = run_on_both(image, random, extras=[2000, 2000, 2000], kind=cartridge.DPC, start=0xF080)
    assert ran > 1000


def run_on_both(
    image: bytearray,
    random: np.random.Generator,
    extras: Sequence[int],
    kind: int = cartridge.PLAIN,
    start: int = 0xF000,
    seen: tuple = (),
) -> int:
    """Run a program on machine code and in the interpreter, from a random state for each of `extras`.

    Each limits a run to so many instructions more than the program has. Returns the number of instructions
    that ran as machine code, of the run with the fewest. `seen`: names of instructions that only tracing
    would find.
    """
    prepare()
    rows = machine(b"", image, kind)
    names = [int(rows[0][st.CART_BANK]) >> 12 << 16 | start, *seen]
    found, reached = rom_image.find_code(rom_image.Image(rows[2], kind), names)
    codes = [
        compile_form(form(rom_image.Image(rows[2], kind), found, reached | set(found)))
        for form in (recompiler.Translator, LanesOnCpu)
    ]
    fewest = []
    for extra in extras:
        limit = len(found) + int(extra)
        first = randomised(image, kind, random)
        plain = Row(*(each.copy() for each in first))
        for _ in range(limit):
            if plain[0][st.FRAME_ENDED] or plain[0][st.CPU_JAMMED]:
                break
            interpreter.step(*plain)
        ran = [run_machine_code(code, first, limit, plain) for code in codes]
        # Lanes leave nothing else to the interpreter. But they check the limit at every meeting, where it is
        # lower by the length of the code.
        assert ran[0] - len(found) - 1 <= ran[1] <= ran[0]
        fewest.append(ran[0])
    return min(fewest)


def randomised(image: bytearray, kind: int, random: np.random.Generator) -> Row:
    """A console at the start of a frame, with random RAM, paddles and fetchers."""
    rows = machine(b"", image, kind)
    rows[0][st.DPC_TOP : st.DPC_TOP + 40] = random.integers(0, 256, 40)
    rows[0][st.DPC_TOP + 32 : st.DPC_TOP + 40] &= 1  # which play music
    rows[1][:128] = random.integers(0, 256, 128)
    rows[0][st.IN_CHARGE : st.IN_CHARGE + 4] = random.integers(-2, 5000, 4)
    rows[0][st.IN_INPT4] = 0x80
    console._start_frame(rows[0])
    return Row(*rows[:4])


def run_machine_code(code, first: Row, limit: int, expected: Row) -> int:
    """Run from a copy of `first` and compare with the interpreter's; return how many instructions ran."""
    fast = Row(*(each.copy() for each in first))
    ran = play_group([fast], code, limit).instructions
    for row in (expected, fast):
        row[0][st.BUS] = 0  # undefined between instructions
    assert np.array_equal(expected[0], fast[0]), [
        state_difference(expected[0], fast[0]),
        bytes(fast[2][:PROGRAM_BYTES]).hex(),
    ]
    assert np.array_equal(expected[1], fast[1])
    return ran


def state_difference(a: np.ndarray, b: np.ndarray) -> list:
    return [(int(i), int(a[i]), int(b[i])) for i in np.flatnonzero(a != b)[:6]]


GAMES = ("breakout", "montezuma_revenge", "pitfall2")
MORE_GAMES = "beam_rider robotank elevator_action darkchambers atlantis jamesbond krull solaris".split()


@pytest.mark.parametrize(
    "game", [*GAMES, *(pytest.param(game, marks=pytest.mark.exact) for game in MORE_GAMES)]
)
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
    from parcade.atari.translate import tracing
    from parcade.atari.translate.notes import named

    machine = arcade.machine
    seen, entered = named(tracing.trace(machine.powered, machine.rom, machine.program), cartridge.PLAIN)
    vector = int(arcade.machine.rom[0xFFC]) | int(arcade.machine.rom[0xFFD]) << 8
    static, _ = rom_image.find_code(rom_image.Image(arcade.machine.rom, cartridge.PLAIN), [vector])
    assert len(seen) > 300
    assert entered <= set(seen)
    assert len(set(seen) - set(static)) > 100


def test_the_option_of_llvm_is_as_before_though_a_compilation_fails(monkeypatch):
    set_for_the_process = []
    monkeypatch.setattr(llvm, "set_option", lambda name, option: set_for_the_process.append(option))
    emitted = []

    class Machine:
        def emit_object(self, module):
            emitted.append(list(set_for_the_process))
            raise RuntimeError("out of memory")

    monkeypatch.setattr(machine_code, "_target_machine", Machine)
    monkeypatch.setattr(machine_code, "_optimised", lambda *words: None)
    with pytest.raises(RuntimeError, match="out of memory"):
        machine_code.compile_assembly("")
    assert emitted == [[machine_code.SPLITTING]]
    assert set_for_the_process == [machine_code.SPLITTING, machine_code.DEFAULT_SPLITTING]


FORKS = """
import os, signal, threading, time
from parcade.atari import Arcade
from parcade.atari.compiling.one_thread import compiling
from parcade.atari.translate import machine_code

Arcade("pong", 1)
function = "define i32 @f%d(i32 %%a) { %%b = add i32 %%a, 1\\n ret i32 %%b }"
assembly = "\\n".join(function % k for k in range(1000)) + "\\n" + function.replace("f%d", "run") % ()

def work():
    while not stop:
        with compiling:
            machine_code.compile_assembly(assembly)

stop = []
thread = threading.Thread(target=work)
thread.start()
for _ in range(4):
    time.sleep(0.2)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with compiling:
            machine_code.compile_assembly(assembly)
        os._exit(0)
    print(os.waitpid(child, 0)[1])
stop.append(1)
thread.join()
"""


@pytest.mark.processes
def test_a_process_that_is_forked_while_a_thread_translates_can_translate():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=400)
    assert done.stdout.split() == ["0"] * 4, done.stderr[-500:]


def test_quick_code_is_kept_apart_from_usual_code(usual_code, monkeypatch):
    usual = machine_code.target_name()
    monkeypatch.setenv(machine_code.QUICK_CODE, "1")
    assert machine_code.target_name() != usual
