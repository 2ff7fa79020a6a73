"""Names of games: spellings that users may type, and ale-py's snake_case names."""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from parcade.atari.games import load_games
from parcade.atari.held_keys import ACTION_NAMES
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError, unknown_name
from parcade.plugins import exit_refused, load_plugins


@functools.cache
def game_names() -> tuple[str, ...]:
    """Return the snake_case names of all Atari games for one player whose ROMs ale-py includes."""
    from ale_py import roms

    return tuple(sorted(load_games().keys() & set(roms.get_all_rom_ids())))


def _key(name: str) -> str:
    """Return a name's letters and digits: ``SpaceInvaders`` and ``space_invaders`` have the same key."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


# Gymnasium ids: ALE/Pong-v5, PongNoFrameskip-v4, parcade/Pong-v0, and Pong-v0 and -v4.
_ID = re.compile(r"^(?P<space>ALE/|parcade/|)(?P<title>[A-Za-z0-9]+?)(?P<kind>(NoFrameskip)?-v\d+)$")
RANDOM_SKIPS = {"noop_max": 0, "frame_skip": 2, "frame_skip_to": 4}
RULES_OF_IDS: dict[str, dict[str, Any]] = {
    "ALE/-v5": {"sticky_actions": 0.25, "noop_max": 0},
    "-v0": {"sticky_actions": 0.25, **RANDOM_SKIPS},
    "-v4": RANDOM_SKIPS,
    "NoFrameskip-v4": {},
    "parcade/-v0": {},
}
"""Settings that the ids of Atari games imply, by what they have around the game's title."""


def settings_of_id(name: str, given: Iterable[str] = ()) -> dict[str, Any]:
    """Return the settings that the Gymnasium id of an Atari game implies, as fields of EnvSettings.

    ``ALE/X-v5`` and ``X-v0`` repeat the last action with probability 0.25 in every frame, and have no random
    no-ops at the start, like ``X-v4``. ``X-v0`` and ``X-v4`` skip 2 to 4 frames at random.
    ``XNoFrameskip-v4`` with the preprocessing of SB3 and CleanRL equals ``dqn_2015``, the default.
    ``given`` are settings that the user names: with ``frame_skip``, the id no longer skips at random.
    """
    title, form = _split_id(name.removeprefix("ale_py:"))
    is_game = _key(title) in map(_key, game_names())
    rules = dict(RULES_OF_IDS.get(form, {})) if is_game else {}
    if "frame_skip" in given:
        rules.pop("frame_skip_to", None)
    return rules


def _split_id(name: str) -> tuple[str, str]:
    """Return the title of a Gymnasium id and the rest of it, such as ``ALE/-v5``; empty for other names."""
    match = _ID.match(name)
    return (match["title"], match["space"] + match["kind"]) if match else (name, "")


def _is_id_of_game(env_id: str) -> bool:
    """Return whether a Gymnasium id is one of an Atari game, also one that ``canonical_game`` refuses."""
    title, form = _split_id(env_id)
    is_form = form in RULES_OF_IDS or form.startswith(("ALE/", "NoFrameskip"))
    return is_form and _key(title) in map(_key, game_names())


def canonical_game(name: str) -> str:
    """Return the canonical name of a game: ale-py's snake_case name, a built-in task, or a Gymnasium id.

    ``parcade/Pong-v0``, ``parcade:parcade/Pong-v0``, ``ALE/Pong-v5`` and ``ale_py:ALE/Pong-v5`` are ``pong``;
    built-in tasks have ids of the first two forms.
    Another ``MODULE:ID`` imports the module, which registers the id, as ``gymnasium.make`` does.
    Errors: UsageError if the name is unknown (with the nearest name), or if no backend has the id's rules.
    """
    import gymnasium

    from parcade.envs.tiny import TINY_TASKS

    if name in TINY_TASKS:
        return name
    if name.startswith(("parcade:parcade/", "ale_py:ALE/")):
        name = name.partition(":")[2]
    if ":" in name:
        _import_environments(name)
        return name
    title, form = _split_id(name)
    known_names = (*game_names(), *(TINY_TASKS if form == "parcade/-v0" else ()))
    game = {_key(known): known for known in known_names}.get(_key(title))
    if game is not None and form in ("", *RULES_OF_IDS):
        return game
    if game is not None and (form.startswith(("ALE/", "NoFrameskip")) or name not in gymnasium.registry):
        raise UsageError(f"unknown id {name}; use {title}NoFrameskip-v4, ALE/{title}-v5 or {game}")
    if name not in gymnasium.registry:
        load_plugins()  # a package may register its environments there
    if name in gymnasium.registry:
        return name
    ids = [each for each in gymnasium.registry if not _is_id_of_game(each)]
    error = unknown_name("game", name, [*game_names(), *ids, *TINY_TASKS])
    if re.search(r"-v\d+$", name):
        mark = "" if str(error).endswith("?") else "."
        error.args = (f"{error}{mark} Name an environment of your own with its module: MODULE:{name}",)
    raise error


def module_of(game: str) -> str:
    """Return the module of a game ``MODULE:ID``, which registers its environments; empty for other games."""
    return game.rpartition(":")[0]


def naming_flags(game: str) -> list[str]:
    """Return the flags with which a command on a run of this game names it: empty but for ``MODULE:ID``."""
    return ["--env", game] if module_of(game) else []


def file_word(game: str) -> str:
    """Return a game's name for use in the name of a file."""
    return re.sub("[/:]", "_", game)


def _import_environments(name: str) -> None:
    """Import the module of ``MODULE:ID`` and look up the id. Errors: UsageError."""
    import gymnasium

    module, env_id = module_of(name), name.rpartition(":")[2]
    before = set(gymnasium.registry)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as for ``python -m parcade``: own modules need no installation
    try:
        with exit_refused():
            importlib.import_module(module)
    except Exception as error:  # a module may raise anything
        raise UsageError(
            f"module {module!r} of {name} cannot be imported ({type(error).__name__}: {error}); "
            "expected MODULE:ID with a module of the working directory or an installed one"
        ) from error
    if env_id not in gymnasium.registry:
        known = [each for each in gymnasium.registry if each not in before or _is_of(each, module)]
        if not known:
            raise UsageError(
                f"module {module} registers no Gymnasium id {env_id!r}; "
                f"expected a call of gymnasium.register(id={env_id!r}, ...) in it"
            )
        raise unknown_name(f"environment of {module}", env_id, known)


def _is_of(env_id: str, module: str) -> bool:
    """Return whether the class of a registered environment is in a module."""
    import gymnasium

    entry = gymnasium.registry[env_id].entry_point
    home = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    return home == module


def is_atari(game: str) -> bool:
    """Whether a canonical name is one of ale-py's games."""
    return game in game_names()


def action_ids(game: str, settings: EnvSettings) -> list[int]:
    """Return ale-py's id of each action of one of its games."""
    row = load_games()[game]
    ids = row.get("legal_actions", range(len(ACTION_NAMES))) if settings.full_action_set else row["actions"]
    return [ids[action] for action in settings.action_subset] or list(ids)


def action_names(game: str, settings: EnvSettings) -> list[str]:
    """Return the names of the actions of one of ale-py's games, e.g. NOOP and FIRE, by action.

    Continuous actions have none.
    """
    if settings.continuous_actions:
        return []
    return [ACTION_NAMES[each] for each in action_ids(game, settings)]


def score_milestones(game: str) -> tuple[float, ...]:
    """Return the scores of a game whose first crossing (mean of the last 100 episodes) a run records.

    Games without their own list use the 1-2-5 series: three milestones per decade.
    """
    if game == "pong":
        return (-15.0, -10.0, 0.0, 10.0, 18.0, 20.0)
    return tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))
