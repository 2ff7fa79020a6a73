"""The games for two players on one console: how they start, where the scores are, what each side sees.

Every row was found by experiment and is checked by `benchmarks/duels.py`: the same play on either side gives
the same results, within the bounds on docs/duels.md. Player A is the player of ale-py's games. Player B
takes the place of the opponent that the console plays in them:

| game          | player A               | player B            | a match ends                            |
|---------------|------------------------|---------------------|-----------------------------------------|
| pong          | right paddle, green    | left paddle, orange | at 21 points                            |
| boxing        | white, starts top left | black, bottom right | after two minutes or at 100 points      |
| ice_hockey    | blue, defends the top  | yellow, the bottom  | after three minutes                     |
| fishing_derby | left pier              | right pier          | at 99 pounds                            |
| double_dunk   | teal, starts attacking | white               | at 24 points                            |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .joystick import JOYSTICK

SERVE_FRAMES = 30  # in games that serve with FIRE, both players press it once in this many frames
_FIRE = 16  # in `JOYSTICK`
# Reads points from RAM, uint8 [128].
Points = Callable[[np.ndarray], int]
Span = tuple[int, int]  # of scanlines or columns: first, and first after the last


def binary(address: int) -> Points:
    """Return a reader of a binary byte."""
    return lambda ram: int(ram[address & 0x7F])


def decimal(address: int, knock_out: int = -1) -> Points:
    """Return a reader of two decimal digits; the byte `knock_out` means 100."""
    at = address & 0x7F
    return lambda ram: 100 if ram[at] == knock_out else 10 * int(ram[at] >> 4) + int(ram[at] & 15)


@dataclass(frozen=True)
class Turned:
    """A part of the picture that is mirrored, horizontally, vertically or both."""

    lines: Span
    columns: Span = (0, 160)
    horizontal: bool = True
    vertical: bool = False


@dataclass(frozen=True)
class Exchanged:
    """Two parts of the picture of equal size that change places, such as the two scores."""

    lines: Span
    left: Span
    right: Span


@dataclass(frozen=True)
class OtherSide:
    """How player B's picture becomes what player A would see in B's place, and A's actions become B's.

    colours: pairs of palette indices that change places, in `colour_columns`.
    """

    parts: tuple[Turned | Exchanged, ...] = ()
    colours: tuple[tuple[int, int], ...] = ()
    colour_columns: Span = (0, 160)
    left_is_right: bool = False
    up_is_down: bool = False

    def picture(self, screen: np.ndarray) -> np.ndarray:
        """Return the picture from the other side. screen: palette indices, uint8 `[height, 160]`."""
        seen = screen.copy()
        for part in self.parts:
            rows = slice(*part.lines)
            if isinstance(part, Exchanged):
                left, right = (rows, slice(*part.left)), (rows, slice(*part.right))
                seen[left], seen[right] = screen[right], screen[left]
            else:
                place = rows, slice(*part.columns)
                seen[place] = screen[place][:: -1 if part.vertical else 1, :: -1 if part.horizontal else 1]
        table = np.arange(256, dtype=np.uint8)
        for one, other in self.colours:
            table[[one, other]] = other, one
        columns = slice(*self.colour_columns)
        seen[:, columns] = table[seen[:, columns]]
        return seen

    def action(self, action: int) -> int:
        """Return the ale-py action of player B that looks from there as `action` looks to player A."""
        keys = int(JOYSTICK[action])
        if self.left_is_right:
            keys = keys & ~12 | (keys & 4) << 1 | (keys & 8) >> 1
        if self.up_is_down:
            keys = keys & ~3 | (keys & 1) << 1 | (keys & 2) >> 1
        return int(np.flatnonzero(JOYSTICK == keys)[0])


@dataclass(frozen=True)
class TwoPlayerGame:
    """A game's variation for two players.

    rules: keys of the game's row of `games.json` that differ from the game against the console; `mode_select`
    says how SELECT and RESET start the variation. scores: player A's and player B's, on the screen.
    serves_with_fire: the winner of a point serves with FIRE, which has no effect while the ball moves.
    """

    rules: Mapping[str, Any]
    scores: tuple[Points, Points]
    other_side: OtherSide = field(default_factory=OtherSide)
    serves_with_fire: bool = False


# Activision's scores: 24 columns around each.
_SCORES = {"left": (40, 64), "right": (104, 128)}

TWO_PLAYER_GAMES: dict[str, TwoPlayerGame] = {
    "pong": TwoPlayerGame(
        rules={"modes": [2], "default_mode": 2},
        scores=(binary(0x8E), binary(0x8D)),
        other_side=OtherSide(
            (Exchanged((0, 24), left=(8, 80), right=(88, 160)), Turned((24, 210))), colours=((56, 200),)
        ),
        serves_with_fire=True,
    ),
    "boxing": TwoPlayerGame(
        rules={"modes": [1], "default_mode": 1, "mode_select": {"until": "b(0xD9) == 0", "press": 2}},
        scores=(decimal(0x92, knock_out=0xC0), decimal(0x93, knock_out=0xC0)),
        other_side=OtherSide(
            (Exchanged((4, 13), **_SCORES), Turned((25, 188), (8, 152), vertical=True)),
            colours=((12, 0),),
            colour_columns=(8, 152),  # HMOVE blanks are black, too
            left_is_right=True,
            up_is_down=True,
        ),
    ),
    "ice_hockey": TwoPlayerGame(
        rules={"modes": [1], "default_mode": 1, "reward": "diff"},
        scores=(decimal(0x8A), decimal(0x8B)),
        other_side=OtherSide(
            (Exchanged((13, 22), **_SCORES), Turned((36, 193), (32, 128), vertical=True)),
            colours=((132, 252), (68, 212), (136, 46)),
            left_is_right=True,
            up_is_down=True,
        ),
    ),
    "fishing_derby": TwoPlayerGame(
        rules={"modes": [1], "default_mode": 1, "mode_select": {"until": "b(0x80) == m", "press": 2}},
        scores=(decimal(0xBD), decimal(0xBE)),
        other_side=OtherSide(
            (Exchanged((7, 17), **_SCORES), Turned((17, 190), (8, 152))), left_is_right=True
        ),
    ),
    "double_dunk": TwoPlayerGame(
        rules={"modes": [16], "default_mode": 16, "starting_actions": []},
        scores=(decimal(0xF6), decimal(0xF7)),
    ),
}


def two_player_game(game: str) -> TwoPlayerGame:
    """Return the row of a game by its snake_case name. Errors: ValueError for a game that is not offered."""
    if game not in TWO_PLAYER_GAMES:
        raise ValueError(f"{game} is not offered for two players; use one of {', '.join(TWO_PLAYER_GAMES)}")
    return TWO_PLAYER_GAMES[game]


def with_fire(action: int) -> int:
    """Return the ale-py action with the fire button pressed, too."""
    return int(np.flatnonzero(int(JOYSTICK[action]) | _FIRE == JOYSTICK)[0])
