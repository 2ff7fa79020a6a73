"""Sets of games that results are reported on, and published scores to compare with.

``reference_scores.json`` holds, per game, the scores of random play, of a person, of DQN and of Gorila, with
their sources. All of them are raw scores from null-op starts without sticky actions.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Literal

from parcade.envs.games import canonical_game
from parcade.errors import UnknownName, UsageError, unknown_name

Reference = Literal["random", "human", "dqn", "gorila"]

# Aitchison 2023, "Atari-5" (arXiv 2210.02019): subsets that predict the median of all 57 games.
_ATARI_5 = ("battle_zone", "double_dunk", "name_this_game", "phoenix", "qbert")
_ATARI_10 = (*_ATARI_5, "amidar", "bowling", "frostbite", "kung_fu_master", "riverraid")
# Kommaraju 2019, "Scalable Reinforcement Learning on Cray XC".
_CRAY_4 = ("beam_rider", "breakout", "qbert", "space_invaders")
# Kaiser 2020, SimPLe (arXiv 1903.00374): the games of the 100,000-step benchmark.
_ATARI_26 = (
    "alien", "amidar", "assault", "asterix", "bank_heist", "battle_zone", "boxing", "breakout",
    "chopper_command", "crazy_climber", "demon_attack", "freeway", "frostbite", "gopher", "hero", "jamesbond",
    "kangaroo", "krull", "kung_fu_master", "ms_pacman", "pong", "private_eye", "qbert", "road_runner",
    "seaquest", "up_n_down",
)  # fmt: skip


@functools.cache
def _table() -> dict[str, dict[str, float | None]]:
    return json.loads((Path(__file__).parent / "reference_scores.json").read_text())["games"]


def game_sets() -> dict[str, tuple[str, ...]]:
    """Return the named sets of games; ``atari-49`` are the games of DQN and Gorila."""
    return {
        "atari-5": _ATARI_5,
        "atari-10": _ATARI_10,
        "cray-4": _CRAY_4,
        "atari-26": _ATARI_26,
        "atari-49": tuple(game for game, row in _table().items() if row["dqn"] is not None),
        "atari-57": tuple(_table()),
    }


def games_of(name: str) -> tuple[str, ...]:
    """Return the games of a set, or of a list such as ``pong,breakout``.

    Errors: UsageError for an unknown set or game, or a game that is listed twice.
    """
    if name in game_sets():
        return game_sets()[name]
    if "-" in name and "," not in name and name.partition("-")[0] in ("atari", "cray"):
        raise unknown_name("set of games", name, game_sets())
    parts = [part.strip() for part in name.split(",") if part.strip()]
    try:
        games = tuple(map(canonical_game, parts))
    except UnknownName as error:
        if len(parts) > 1 or error.near:
            raise
        raise UsageError(
            f"{name!r} is neither a set ({', '.join(game_sets())}) nor a game; parcade games lists the games"
        ) from None
    for part, game in zip(parts, games, strict=True):
        if re.search(r"-v\d+$", part) and part != game:
            raise UsageError(
                f"{part} has rules of its own, but those of a suite are its protocol's; use {game}"
            )
    if not games:
        raise UsageError(
            f"no games given; expected a set ({', '.join(game_sets())}) or a list: pong,breakout"
        )
    repeated = sorted({game for game in games if games.count(game) > 1})
    if repeated:
        raise UsageError(f"{repeated[0]} is listed twice; list each game once")
    return games


def reference_score(game: str, which: Reference) -> float | None:
    """Return a published score of a game, None if there is none."""
    return _table().get(game, {}).get(which)


def human_normalized(game: str, score: float) -> float | None:
    """Return (score - random) / (human - random), None for a game without published scores."""
    row = _table().get(game)
    return None if row is None else (score - row["random"]) / (row["human"] - row["random"])
