"""``parcade play``: play a game with the keyboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from parcade.errors import UsageError
from parcade.files.outputs import check_output_file


@dataclass(frozen=True)
class PlayFlags:
    """Play a game in the terminal with the keyboard: arrows or wasd move, space fires, q quits."""

    game: Annotated[str, "positional"]
    """Name of a game, or path of a ROM."""
    mode: int | None = None
    """The cartridge's game mode."""
    difficulty: int | None = None
    """The difficulty switches: bit 0 is the left one, bit 1 the right one."""
    seed: int | None = None
    """Seed of the console; by default the time."""
    record: str = ""
    """Write what is played to this file; parcade watch FILE replays it."""

    def __post_init__(self) -> None:
        if self.seed is not None and not 0 <= self.seed < 2**32:
            raise UsageError(f"seed={self.seed} is out of range; use 0 to {2**32 - 1}")
        check_output_file("record", self.record)


def play(arguments: list[str]) -> int:
    """``parcade play``."""
    from parcade.flags import parse
    from parcade.play import play as play_game

    flags = parse(PlayFlags, arguments, prog="parcade play")
    best = play_game(
        flags.game, mode=flags.mode, difficulty=flags.difficulty, seed=flags.seed, record=flags.record
    )
    print(
        f"best score {'-' if best is None else best}"
        + (f"; recorded in {flags.record}" if flags.record else "")
    )
    return 0
