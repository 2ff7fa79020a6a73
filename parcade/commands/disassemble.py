"""``parcade disassemble``: list a ROM's instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from parcade.errors import UsageError


@dataclass(frozen=True)
class DisassembleFlags:
    """List a ROM's instructions. Bytes that no code reaches are listed as data."""

    rom: Annotated[str, "positional"]
    """Path of a ROM, or name of a game."""


def disassemble(arguments: list[str]) -> int:
    """``parcade disassemble``."""
    from parcade.flags import parse

    flags = parse(DisassembleFlags, arguments, prog="parcade disassemble")
    from parcade.atari import games
    from parcade.atari.translate.disassembler import listing

    try:
        image = games.read_rom(flags.rom)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    for line in listing(image):
        print(line)
    return 0
