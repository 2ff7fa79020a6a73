"""Memory accesses of translated instructions: addresses, reads and writes, equivalent to `bus.py`.

If an access may have a side effect that is not translated, machine code exits before the instruction has any
effect (`leave_if`), and the interpreter runs the complete instruction.
"""

from .. import cartridge
from ..mos6507.opcodes import LENGTH
from ..state import (
    CART_BANK,
    CART_RAM,
    CHARGE_AT_ONCE,
    CHARGE_NEVER,
    DUMP,
    DUMP_OFF_CYCLE,
    IN_CHARGE,
    IN_INPT4,
    IN_SWCHA,
    IN_SWCHB,
    RIOT_DDRA,
    RIOT_READ_CYCLE,
    RIOT_READ_FLAG,
    RIOT_SET_CYCLE,
    RIOT_SHIFT,
    RIOT_TIMER,
    T_COLLISIONS,
    TIA,
    VSYNC_FINISH,
)
from ..tia.writes import HMCLR, VBLANK, VSYNC, WSYNC
from .dpc_accesses import READS as FETCHER_READS
from .dpc_accesses import WRITES as FETCHER_WRITES
from .log_accesses import LogAccesses
from .rom_image import Image

WITH_RAM = (cartridge.F8SC, cartridge.F6SC)
WRITE_PORT, READ_PORT = 0x1000, 0x1080  # of a cartridge's 128 bytes of RAM
# Status of machine code: why it returns, or ENDED for a console that only takes part in meetings; see
# `recompiler.py`.
GOING, INTERPRET, LATCH, ENDED = 0, 1, 2, 3
INDEX = {"zpx": "X", "zpy": "Y", "absx": "X", "absy": "Y"}


class Accesses(LogAccesses):
    """Generate the reads and writes of instructions; `now` is the instruction being translated."""

    def __init__(self, image: Image) -> None:
        super().__init__()
        self.image = image
        self.may_read_latch = False  # through an address known only at run time

    def is_ram(self, address: str) -> str:
        return self.test("eq", self.op("and", address, 0x1280), 0x80)

    def plain_offset(self, address: str) -> tuple[str, str]:
        """Return whether an address is in plain ROM (i1), and its offset in the image."""
        image = self.image
        inside = self.op("sub", self.op("and", address, 0x1FFF), image.start)
        plain = self.value(f"icmp ult i32 {inside}, {image.end - image.start}")
        bank: int | str = self.now.bank
        if image.kind == cartridge.FE:
            upper = self.test("ne", self.op("and", address, 0x2000), 0)
            bank = self.value(f"select i1 {upper}, i32 0, i32 4096")
        return plain, self.op("add", self.op("and", address, 0xFFF), bank)

    def peek(self, address: str) -> str:
        """Read a byte at an address known only at run time, in ROM or RAM."""
        plain, offset = self.plain_offset(address)
        return self.either(plain, lambda: self.byte("rom", offset), lambda: self.peek_low(address))

    def peek_low(self, address: str) -> str:
        """Read a byte at an address that is not in plain ROM but may be RAM or an input."""
        if self.image.kind not in WITH_RAM or self.now.opcode.mode in ("zpx", "zpy"):
            return self.peek_console(address)

        def own() -> str:
            return self.byte("memory", self.op("add", self.op("and", address, 0x7F), CART_RAM))

        return self.either(self.is_port(address, READ_PORT), own, lambda: self.peek_console(address))

    def peek_console(self, address: str) -> str:
        """Read a byte like `peek_low`, without the cartridge."""
        return self.either(
            self.is_ram(address),
            lambda: self.byte("memory", self.op("and", address, 0x7F)),
            lambda: self.peek_input(address),
        )

    def peek_input(self, address: str) -> str:
        """Read a byte at an address that may be a TIA input; exit to the interpreter if it is not."""
        register = self.op("sub", self.op("and", address, 0x0F), 8)
        no_tia = self.test("ne", self.op("and", address, 0x1080), 0)
        if self.may_read_latch:
            self.leave_if(no_tia)
            latch, on = self.fresh("l"), self.fresh("c")
            self.line(f"br i1 {self.test('slt', register, 0)}, label %{latch}, label %{on}")
            self.label(latch)
            self.ask_for_latch()
            self.label(on)
            no_tia = "false"
        self.leave_if(self.value(f"or i1 {no_tia}, {self.test('ugt', register, 5)}"))
        self.log_read()
        return self.op("or", self.input(register), self.noise())

    def noise(self) -> int | str:
        """Return the six low bits that remain on the bus from the last byte.

        This byte is the last byte of the operand, or the second byte of a pointer in RAM.
        """
        if self.now.opcode.mode in ("indx", "indy"):
            return self.op("and", self.pointer_high, 0x3F)
        return (self.now.low if LENGTH[self.now.opcode.mode] == 2 else self.now.high) & 0x3F

    def reads_latch(self, address: int) -> bool:
        """Whether a known address is a collision latch."""
        return address & 0x1080 == 0 and address & 0x0F < 8

    def ask_for_latch(self) -> None:
        """Log the read of a collision latch and return so that the TIA catches up; `resume` continues."""
        self.log_read()
        self.stop(self.now.pc, LATCH)

    def latch(self, address: int | str) -> str:
        """Return the byte of a collision latch after the TIA has caught up; see `bus._read_tia`."""
        collisions = self.word(TIA + T_COLLISIONS)
        register = self.op("and", address, 7)
        # CXPPMM's two bits follow CXBLPF's single bit.
        shift = self.op("sub", self.op("shl", register, 1), self.bit("eq", register, 7))
        pair = self.op("lshr", collisions, shift)
        first = self.op("shl", self.op("and", pair, 1), 7)
        second = self.op("and", self.op("shl", pair, 5), 0x40)
        second = self.value(f"select i1 {self.test('eq', register, 6)}, i32 0, i32 {second}")
        return self.op("or", self.op("or", first, second), self.noise())

    def indexed(self) -> tuple[str, int | str]:
        """Return the address of an absolute indexed operand and the page-crossing cycle (0 or 1)."""
        index = self.get(INDEX[self.now.opcode.mode])
        address = self.op("and", self.op("add", index, self.now.address), 0xFFFF)
        extra: int | str = 0
        if self.now.opcode.page_cross_extra:
            extra = self.op("lshr", self.op("add", index, self.now.low), 8)
        self.extra = extra
        return address, extra

    def pointed(self) -> tuple[str, int | str]:
        """Return the address from a pointer in RAM, for both indirect modes, and the page-crossing cycle."""
        at: int | str = self.now.low
        if self.now.opcode.mode == "indx":
            at = self.op("and", self.op("add", self.get("X"), at), 0xFF)
        # The second byte of a pointer at $FF would come from $0100, outside RAM: exit.
        self.leave_if(self.value(f"icmp uge i32 {self.op('sub', at, 0x80)}, 127"))
        low = self.byte("memory", self.op("and", at, 0x7F))
        self.pointer_high = self.byte("memory", self.op("and", self.op("add", at, 1), 0x7F))
        high = self.op("shl", self.pointer_high, 8)
        if self.now.opcode.mode == "indx":
            return self.op("or", low, high), 0
        low = self.op("add", low, self.get("Y"))
        extra = self.op("lshr", low, 8) if self.now.opcode.page_cross_extra else 0
        self.extra = extra
        return self.op("and", self.op("add", low, high), 0xFFFF), extra

    def can_read(self, address: int) -> bool:
        """Whether a read of a known address has a translation."""
        if address & 0x1000:
            if self.image.kind == cartridge.DPC and address & 0xFFF in FETCHER_READS:
                return True
            switches = self.image.switched(address, self.now.bank) is not None
            return (
                switches
                or self.image.offset(address, self.now.bank) is not None
                or self.is_cartridge_ram(address, READ_PORT)
            )
        return True

    def switch(self, bank: int) -> None:
        """Map another bank."""
        if self.image.kind == cartridge.DPC:
            self.clock_random()
        self.put_word(CART_BANK, bank)

    def is_cartridge_ram(self, address: int, port: int) -> bool:
        return self.image.kind in WITH_RAM and port <= address & 0x1FFF < port + 0x80

    def is_port(self, address: str, port: int) -> str:
        """Whether an address known only at run time is in a port of the cartridge's RAM (i1)."""
        return self.test("ult", self.op("sub", self.op("and", address, 0x1FFF), port), 0x80)

    def read(self, address: int) -> int | str:
        """Read a byte at a known address."""
        if address & 0x1000:
            if self.image.kind == cartridge.DPC and address & 0xFFF in FETCHER_READS:
                return self.fetch(address & 0xFFF, self.end_cycle())
            bank = self.image.switched(address, self.now.bank)
            if bank is not None:
                self.switch(bank)
                return int(self.image.rom[bank + (address & 0xFFF)])
            at = self.image.offset(address, self.now.bank)
            return (
                int(self.image.rom[at])
                if at is not None
                else self.byte("memory", CART_RAM + (address & 0x7F))
            )
        if address & 0x80 == 0:
            self.log_read()
            register = address & 0x0F
            return self.op("or", self.input(register - 8), self.noise()) if register < 14 else self.noise()
        if address & 0x200 == 0:
            return self.byte("memory", address & 0x7F)
        register = address & 7
        if register in (4, 6):
            return self.timer()
        if register in (5, 7):
            return self.timer_flag()
        return 0 if register == 3 else self.word({0: IN_SWCHA, 1: RIOT_DDRA, 2: IN_SWCHB}[register])

    def input(self, register: int | str) -> str:
        """Read INPT0-INPT5 without the remaining bus bits; see `bus._read_input`."""
        if isinstance(register, int):
            return self.word(IN_INPT4 + register - 4) if register >= 4 else self.paddle(register)
        button = self.word(self.op("add", self.op("and", register, 1), IN_INPT4))
        paddle = self.paddle(self.op("and", register, 3))
        return self.value(f"select i1 {self.test('uge', register, 4)}, i32 {button}, i32 {paddle}")

    def paddle(self, register: int | str) -> str:
        """Read INPT0-INPT3: bit 7 is set once the capacitor is charged."""
        charge = self.word(self.op("add", register, IN_CHARGE))
        full = self.op("add", self.word(DUMP_OFF_CYCLE), charge)
        charged = self.value(f"icmp ugt i32 {self.end_cycle()}, {full}")
        dumped = self.test("ne", self.word(DUMP), 0)
        never = self.value(f"or i1 {dumped}, {self.test('eq', charge, CHARGE_NEVER)}")
        byte = self.value(f"select i1 {charged}, i32 128, i32 0")
        byte = self.value(f"select i1 {never}, i32 0, i32 {byte}")
        return self.value(f"select i1 {self.test('eq', charge, CHARGE_AT_ONCE)}, i32 128, i32 {byte}")

    def timer(self) -> str:
        """Read INTIM; see `riot.read_timer`."""
        delta = self.op("sub", self.op("sub", self.end_cycle(), 1), self.word(RIOT_SET_CYCLE))
        self.leave_if(self.test("slt", delta, 0))
        passed = self.op("lshr", delta, self.word(RIOT_SHIFT))
        value = self.op("sub", self.op("sub", self.word(RIOT_TIMER), passed), 1)
        counts = self.test("sge", value, 0)
        value = self.either(counts, lambda: value, lambda: self.expired_timer(delta, passed))
        return self.op("and", value, 0xFF)

    def expired_timer(self, delta: str, passed: str) -> str:
        """Read INTIM after the timer has expired: it counts every cycle until it is first read."""
        timer = self.word(RIOT_TIMER)
        end = self.op("shl", timer, self.word(RIOT_SHIFT))
        value = self.op("sub", self.op("sub", end, delta), 1)
        flag = self.word(RIOT_READ_FLAG)
        first = self.value(f"and i1 {self.test('sle', value, -2)}, {self.test('eq', flag, 0)}")
        cycle = self.value(f"select i1 {first}, i32 {self.end_cycle()}, i32 {self.word(RIOT_READ_CYCLE)}")
        flag = self.value(f"select i1 {first}, i32 1, i32 {flag}")
        self.put_word(RIOT_READ_CYCLE, cycle)
        self.put_word(RIOT_READ_FLAG, flag)
        late = self.op("sub", cycle, self.op("add", self.word(RIOT_SET_CYCLE), end))
        was_read = self.test("ne", flag, 0)
        return self.value(
            f"select i1 {was_read}, i32 {self.op('sub', self.op('sub', timer, passed), late)}, i32 {value}"
        )

    def timer_flag(self) -> str:
        """Read TIMINT: bit 7 is set after the timer has expired, until INTIM is read; see `riot.read`."""
        delta = self.op("sub", self.op("sub", self.end_cycle(), 1), self.word(RIOT_SET_CYCLE))
        self.leave_if(self.test("slt", delta, 0))
        passed = self.op("lshr", delta, self.word(RIOT_SHIFT))
        expired = self.test("sge", passed, self.word(RIOT_TIMER))
        unread = self.test("eq", self.word(RIOT_READ_FLAG), 0)
        return self.value(f"select i1 {self.value(f'and i1 {expired}, {unread}')}, i32 128, i32 0")

    def operand_address(self) -> tuple[int | str, int | str]:
        """Return the address of an operand in memory, and the instruction's extra cycle."""
        mode = self.now.opcode.mode
        if mode in ("zp", "abs"):
            return self.now.low if mode == "zp" else self.now.address, 0
        if mode in ("zpx", "zpy"):
            return self.op("and", self.op("add", self.get(INDEX[mode]), self.now.low), 0xFF), 0
        return self.indexed() if mode in ("absx", "absy") else self.pointed()

    def operand(self) -> tuple[int | str, int | str]:
        """Return the byte that an instruction reads, and its extra cycle."""
        now = self.now
        mode = now.opcode.mode
        if mode == "imm":
            return now.low, 0
        address, extra = self.operand_address()
        if mode in ("zp", "abs"):
            return self.read(address), 0
        if mode in ("zpx", "zpy"):
            return self.peek_low(address), 0
        if mode in ("absx", "absy"):
            first = self.image.offset(now.address, now.bank, 256)
            if first is not None:  # every value of the index selects plain ROM
                return self.byte("rom", self.op("add", self.get(INDEX[mode]), first)), extra
        return self.peek(address), extra

    def can_write(self, address: int) -> bool:
        """Whether a write to a known address has a translation."""
        if address & 0x1000:
            if self.image.kind != cartridge.DPC or self.image.switched(address, self.now.bank) is not None:
                return True
            return FETCHER_WRITES.start <= address & 0xFFF < 0xFC0
        return True

    def write(self, address: int, value: int | str) -> None:
        """Write to a known address. This is the last point at which an instruction may exit."""
        if address & 0x1000:
            bank = self.image.switched(address, self.now.bank)
            if bank is not None:
                self.switch(bank)
            elif self.image.kind == cartridge.DPC and address & 0xFFF in FETCHER_WRITES:
                self.set_fetcher(address & 0xFFF, value)
            elif self.is_cartridge_ram(address, WRITE_PORT):
                self.put_byte("memory", CART_RAM + (address & 0x7F), value)
        elif address & 0x80 == 0:
            self.write_register(address & 0x3F, value)
        elif address & 0x200 == 0:
            self.put_byte("memory", address & 0x7F, value)
        elif address & 0x14 == 0x14:
            interval = address & 3
            self.put_word(RIOT_TIMER, value)
            self.put_word(RIOT_SHIFT, 10 if interval == 3 else 3 * interval)
            self.put_word(RIOT_SET_CYCLE, self.end_cycle())
            self.put_word(RIOT_READ_FLAG, 0)
        elif address & 7 == 1:
            self.put_word(RIOT_DDRA, value)

    def write_register(self, register: int, value: int | str) -> None:
        """Write to a TIA register, with the effects that the 6507 observes (`bus._act_on_write`).

        `wait_for_line` handles WSYNC. The write to VSYNC that ends a frame exits, because only the
        interpreter ends frames.
        """
        clock, finish = self.op("mul", self.end_cycle(), 3), ""
        if register == VSYNC:
            finish = self.word(VSYNC_FINISH)
            off = self.test("eq", self.op("and", value, 2), 0)
            self.leave_if(self.value(f"and i1 {off}, {self.test('sge', clock, finish)}"))
            finish = self.value(f"select i1 {off}, i32 {finish}, i32 {self.op('add', clock, 228)}")
        self.log_write(register, value)
        if register == VSYNC:
            self.put_word(VSYNC_FINISH, finish)
        elif register == VBLANK:
            grounds = self.op("lshr", value, 7)
            falls = self.test("ult", grounds, self.bit("ne", self.word(DUMP), 0))
            since = self.value(f"select i1 {falls}, i32 {self.end_cycle()}, i32 {self.word(DUMP_OFF_CYCLE)}")
            self.put_word(DUMP_OFF_CYCLE, since)
            self.put_word(DUMP, grounds)

    def wait_for_line(self) -> None:
        """Handle WSYNC: after the instruction the 6507 waits for the end of the scanline."""
        cycles = self.get("CYCLES")
        in_line = self.op("urem", self.op("sub", cycles, "%line"), 76)
        missing = self.op("urem", self.op("sub", 76, in_line), 76)
        self.put("CYCLES", self.op("add", cycles, missing))

    def write_to(self, address: str, value: int | str) -> None:
        """Write to an address known only at run time: RAM, or a TIA register that affects only the image."""
        if self.image.kind not in WITH_RAM:
            self.write_to_console(address, value)
            return

        def own() -> None:
            self.put_byte("memory", self.op("add", self.op("and", address, 0x7F), CART_RAM), value)

        self.either_do(self.is_port(address, WRITE_PORT), own, lambda: self.write_to_console(address, value))

    def write_to_console(self, address: str, value: int | str) -> None:
        """Write like `write_to`, without the cartridge."""
        self.either_do(
            self.is_ram(address),
            lambda: self.put_byte("memory", self.op("and", address, 0x7F), value),
            lambda: self.write_to_tia(address, value),
        )

    def write_to_tia(self, address: str, value: int | str) -> None:
        """Write to the TIA; exit if the address is not in the TIA or if the write affects the 6507."""
        register = self.op("and", address, 0x3F)
        no_tia = self.test("ne", self.op("and", address, 0x1080), 0)
        unknown = self.value(f"or i1 {self.test('ule', register, WSYNC)}, {self.test('eq', register, HMCLR)}")
        self.leave_if(self.value(f"or i1 {no_tia}, {unknown}"))
        self.log_write_to_any(register, value)
