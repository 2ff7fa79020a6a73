"""Listings of hand-made ROMs."""

from parcade.atari import games
from parcade.atari.mos6507.opcodes import OPCODES
from parcade.atari.translate.disassembler import listing, text
from parcade.atari.translate.rom_image import Instruction
from parcade.cli import main


def rom(program: bytes, at: int = 0) -> bytes:
    image = bytearray(4096)
    image[at : at + len(program)] = program
    image[0xFFC:0xFFE] = (0xF000).to_bytes(2, "little")
    return bytes(image)


def test_code_is_listed_with_register_names_and_the_rest_as_bytes():
    lines = list(listing(rom(bytes([
        0x78, 0xA2, 0xFF, 0x9A, 0x85, 0x02, 0xAD, 0x84, 0x02, 0xD0, 0xF8, 0x4C, 0x00, 0xF0, 0x07, 0x08,
    ]))))  # fmt: skip
    assert lines[0] == "; unknown ROM, 4096 bytes, cartridge 4K"
    start = lines.index("; bank 0, starts at $F000") + 1
    assert lines[start : start + 8] == [
        "F000  78        SEI",
        "F001  A2 FF     LDX #$FF",
        "F003  9A        TXS",
        "F004  85 02     STA WSYNC",
        "F006  AD 84 02  LDA INTIM",
        "F009  D0 F8     BNE $F003",
        "F00B  4C 00 F0  JMP $F000",
        "F00E            .byte $07, $08, $00, $00, $00, $00, $00, $00",
    ]


def test_every_opcode_has_a_text_and_undocumented_ones_say_so():
    for byte, opcode in OPCODES.items():
        written = text(Instruction(0xF000, 0xF000, 0, opcode, 0x90, 0xF1))
        assert written.startswith(opcode.mnemonic), byte
        assert written.endswith("; undocumented") == opcode.undocumented


def test_a_listing_covers_every_byte_of_every_bank():
    for name, banks in (
        ("pong", 1),
        ("breakout", 1),
        ("montezuma_revenge", 1),
        ("robotank", 2),
        ("pitfall2", 2),
        ("solaris", 4),
    ):
        image = games.find_rom(name).read_bytes()
        lines = list(listing(image))
        assert lines[0].startswith(f"; {name}, {len(image)} bytes")
        listed = [line for line in lines if line and line[0] != ";"]
        bytes_in = sum(line.count("$") if ".byte" in line else len(line[6:15].split()) for line in listed)
        assert bytes_in == 4096 * banks, name
        assert any(".byte" not in line for line in listed), name


def test_the_command_prints_the_listing_and_names_a_missing_rom(capsys, tmp_path):
    path = tmp_path / "tiny.bin"
    path.write_bytes(rom(b"\xea\x02"))
    assert main(["disassemble", str(path)]) == 0
    assert "F000  EA        NOP" in capsys.readouterr().out
    assert main(["disassemble", "no_such_game"]) == 2
    assert "unknown game 'no_such_game'" in capsys.readouterr().err
