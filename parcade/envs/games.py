"""Names of games: spellings that users may type, and ale-py's snake_case names."""

from __future__ import annotations

import functools
import re
from typing import Any

from parcade.errors import UsageError, unknown_name
from parcade.plugins import load_plugins


@functools.cache
def game_names() -> tuple[str, ...]:
    """Return the snake_case names of all Atari games whose ROMs ale-py includes."""
    from ale_py import roms

    return tuple(sorted(roms.get_all_rom_ids()))


def _key(name: str) -> str:
    """Return a name's letters and digits, without the parts that Gymnasium ids add.

    ``SpaceInvaders``, ``space_invaders`` and ``ALE/SpaceInvaders-v5`` have the same key.
    """
    name = name.removeprefix("ALE/")
    name = re.sub(r"(NoFrameskip)?-v\d+$", "", name)
    return re.sub(r"[^a-z0-9]", "", name.lower())


# Gymnasium ids: Pong-v0 and Pong-v4 skip a random number of frames; ALE/Pong-v5 has sticky actions.
_RANDOM_SKIP = re.compile(r"^[A-Za-z0-9]+-v[04]$")
_VERSION_5 = re.compile(r"^ALE/[A-Za-z0-9]+-v5$")


def settings_of_id(name: str) -> dict[str, Any]:
    """Return the settings that the Gymnasium id of an Atari game implies, as fields of EnvSettings.

    ``ALE/X-v5`` repeats the last action with probability 0.25 in every frame and has no random no-ops at the
    start. ``XNoFrameskip-v4`` with the preprocessing of SB3 and CleanRL equals ``dqn_2015``, the default.
    """
    return {"sticky_actions": 0.25, "noop_max": 0} if _VERSION_5.match(name) else {}


def canonical_game(name: str) -> str:
    """Return the canonical name of a game: ale-py's snake_case name, a built-in task, or a Gymnasium id.

    Errors: UsageError if the name is unknown (with the nearest name), or if no backend has the id's rules.
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
                f"{name} skips 2 to 4 frames at random, which no backend supports; "
                f"the closest is {game} with {nearest}, or use "
                f"{name.split('-')[0]}NoFrameskip-v4 or ALE/{name.split('-')[0]}-v5"
            )
        return game
    if name not in gymnasium.registry:
        load_plugins()  # a package may register its environments there
    if name in gymnasium.registry:
        return name
    raise unknown_name("game", name, [*game_names(), *gymnasium.registry, *TINY_TASKS])


def is_atari(game: str) -> bool:
    """Whether a canonical name is one of ale-py's games."""
    return game in game_names()


def score_milestones(game: str) -> tuple[float, ...]:
    """Return the scores of a game whose first crossing (mean of the last 100 episodes) a run records.

    Games without their own list use the 1-2-5 series: three milestones per decade.
    """
    if game == "pong":
        return (-15.0, -10.0, 0.0, 10.0, 18.0, 20.0)
    return tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))
