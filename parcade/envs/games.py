"""Game names, as people type them and as ale-py writes them."""

from __future__ import annotations

import functools
import re

from parcade.errors import unknown_name


@functools.cache
def game_names() -> tuple[str, ...]:
    """Every Atari game ale-py carries a ROM for, by its snake_case name."""
    from ale_py import roms

    return tuple(sorted(roms.get_all_rom_ids()))


def _key(name: str) -> str:
    """The letters and digits of a name: the same for ``SpaceInvaders``, ``space_invaders`` and ``ALE/SpaceInvaders-v5``."""
    name = name.removeprefix("ALE/")
    name = re.sub(r"(NoFrameskip)?-v\d+$", "", name)
    return re.sub(r"[^a-z0-9]", "", name.lower())


def canonical_game(name: str) -> str:
    """The one name of a game: ale-py's snake_case name, a built-in task's name, or a Gymnasium id unchanged.

    Errors: UsageError with the nearest name when nothing is called that.
    """
    import gymnasium

    from parcade.testing import TINY_TASKS

    if name in TINY_TASKS:
        return name
    by_key = {_key(game): game for game in game_names()}
    if _key(name) in by_key:
        return by_key[_key(name)]
    if name in gymnasium.registry:
        return name
    raise unknown_name("game", name, [*game_names(), *gymnasium.registry, *TINY_TASKS])


def is_atari(game: str) -> bool:
    """Whether a canonical name is one of ale-py's games."""
    return game in game_names()


def score_milestones(game: str) -> tuple[float, ...]:
    """The scores whose first crossing (mean of the last 100 games) a run records; every game has its own.

    Games without a row record the 1-2-5 series, so that a curve of any scale leaves about three marks a decade.
    """
    if game == "pong":
        return (-15.0, -10.0, 0.0, 10.0, 18.0, 20.0)
    return tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))
