"""``parcade play``: play a game with the keyboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class PlayFlags:
    """Play a game in the terminal with the keyboard: arrows or wasd move, space fires, q quits."""

    game: Annotated[str, "positional"]
    """Name of a game, or path of a ROM."""
    mode: int | None = None
    """The cartridge's game mode."""
    difficulty: int | None = None
    """The difficulty switches: bit 0 is the left one, bit 1 the right one."""


def play(arguments: list[str]) -> int:
    """``parcade play``."""
    from parcade.flags import parse
    from parcade.play import play as play_game

    flags = parse(PlayFlags, arguments, prog="parcade play")
    best = play_game(flags.game, mode=flags.mode, difficulty=flags.difficulty)
    print(f"best score {best}")
    return 0
