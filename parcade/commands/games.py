"""``parcade games``: list the available games."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class GamesFlags:
    """List the games that can be trained."""

    json: bool = False
    """Print the list as JSON."""


def games(arguments: list[str]) -> int:
    """``parcade games``."""
    from parcade.envs import game_names
    from parcade.envs.tiny import TINY_TASKS
    from parcade.flags import parse

    flags = parse(GamesFlags, arguments, prog="parcade games")
    if flags.json:
        print(json.dumps({"atari": list(game_names()), "tiny": sorted(TINY_TASKS)}))
        return 0
    from rich.console import Console

    console = Console()
    # Capture the output: if the reader closes the pipe early (`| head`), rich itself would exit with code 1.
    with console.capture() as shown:
        _show(console)
    print(shown.get(), end="")
    return 0


def _show(console: Console) -> None:
    from rich.columns import Columns

    from parcade.envs import game_names
    from parcade.envs.tiny import TINY_TASKS

    console.print(
        f"{len(game_names())} Atari games (other spellings work, e.g. SpaceInvaders; "
        "ALE/NAME-v5 also sets sticky actions):"
    )
    console.print(Columns(game_names(), equal=True, column_first=True))
    console.print(
        f"tiny tasks for tests: {', '.join(sorted(TINY_TASKS))}; also any Gymnasium id, e.g. CartPole-v1"
    )
