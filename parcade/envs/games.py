"""Game names, as people type them and as ale-py writes them."""

from __future__ import annotations

import functools
import re

from parcade.errors import UsageError, unknown_name


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


# Gymnasium's ids of Atari games: Pong-v0 and Pong-v4 skip a random number of frames, ALE/Pong-v5 has sticky actions.
_RANDOM_SKIP = re.compile(r"^[A-Za-z0-9]+-v[04]$")
_VERSION_5 = re.compile(r"^ALE/[A-Za-z0-9]+-v5$")


def settings_of_id(name: str) -> dict[str, object]:
    """What an Atari game's Gymnasium id says about its settings, as fields of EnvSettings.

    ``ALE/X-v5`` repeats the last action with a probability of 0.25 in every frame, and starts have no random no-ops;
    ``XNoFrameskip-v4`` with the preprocessing that SB3 and CleanRL add is ``dqn_2015``, and so is a bare name.
    """
    return {"sticky_actions": 0.25, "noop_max": 0} if _VERSION_5.match(name) else {}


def canonical_game(name: str) -> str:
    """The one name of a game: ale-py's snake_case name, a built-in task's name, or a Gymnasium id unchanged.

    Errors: UsageError with the nearest name when nothing is called that, or for an Atari id whose rules no backend has.
    """
    import gymnasium

    from parcade.testing import TINY_TASKS

    if name in TINY_TASKS:
        return name
    by_key = {_key(game): game for game in game_names()}
    if _key(name) in by_key:
        game = by_key[_key(name)]
        if _RANDOM_SKIP.match(name) and "NoFrameskip" not in name:
            nearest = "--frame-skip 3 --sticky-actions 0.25" if name.endswith("-v0") else "--frame-skip 3"
            raise UsageError(
                f"{name} skips 2 to 4 frames at random, which no backend here does; the nearest is {game} with {nearest}, or use "
                f"{name.split('-')[0]}NoFrameskip-v4 or ALE/{name.split('-')[0]}-v5"
            )
        return game
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
