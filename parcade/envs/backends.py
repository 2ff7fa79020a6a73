"""The table of backends, which emulate Atari games: adding one is a class and a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gymnasium.vector import VectorEnv

from parcade.envs.games import is_atari
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError, unknown_name
from parcade.plugins import check_registered, load_plugins

ABILITIES = (
    "start_states", "warm_up_steps", "continuous_actions", "frame_skip_to", "ale_compat", "batch_size",
)  # fmt: skip
"""What a backend may support besides emulating games; ``register_backend`` describes them."""


class Backend(NamedTuple):
    """How Atari games are emulated."""

    make: Callable[..., VectorEnv]
    """``make(game, num_envs, settings, num_threads=n)``: an environment as ``make_vec`` describes it."""
    check: Callable[[str, EnvSettings], None]
    """Refuses settings of a game that the backend cannot serve. Errors: UsageError."""
    supports: frozenset[str] = frozenset()
    """Some of ``ABILITIES``; and ``cuda``, a form on the GPU, which only parcade's own consoles have."""
    check_fits: Callable[[int, EnvSettings], None] = lambda num_envs, settings: None
    """Refuses more environments than the CPU's memory holds, for several games. Errors: UsageError."""


def _make_native(game: str, num_envs: int, settings: EnvSettings, **options: object) -> VectorEnv:
    if "batch_size" in options:
        from parcade.envs.native_async import AsyncNativeVectorEnv

        return AsyncNativeVectorEnv(game, num_envs, settings, **options)
    from parcade.envs.native import NativeVectorEnv

    return NativeVectorEnv(game, num_envs, settings, **options)


def _check_native(game: str, settings: EnvSettings) -> None:
    from parcade.atari.games import load_games, snake_case
    from parcade.envs.native import check_switches

    check_switches(load_games()[snake_case(game)], settings)


def _check_native_fits(num_envs: int, settings: EnvSettings) -> None:
    from parcade.envs.native import check_consoles_fit

    check_consoles_fit(num_envs, settings)


def _make_ale(game: str, num_envs: int, settings: EnvSettings, **options: object) -> VectorEnv:
    from parcade.envs.ale import AleVectorEnv

    return AleVectorEnv(game, num_envs, settings, **options)


def _check_ale(game: str, settings: EnvSettings) -> None:
    from parcade.envs.ale import check_settings

    check_settings(game, settings)


def _check_ale_fits(num_envs: int, settings: EnvSettings) -> None:
    from parcade.envs.ale import check_consoles_fit

    check_consoles_fit(num_envs, settings)


BACKENDS: dict[str, Backend] = {
    "native": Backend(
        _make_native,
        _check_native,
        frozenset({*ABILITIES, "cuda"}),
        _check_native_fits,
    ),
    "ale": Backend(_make_ale, _check_ale, frozenset({"continuous_actions"}), _check_ale_fits),
}


def backend_row(name: str) -> Backend:
    """Return the backend of this name. Errors: UsageError with the known names."""
    if not isinstance(name, str):
        raise unknown_name("backend", name, BACKENDS)
    if name not in BACKENDS:
        load_plugins()
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    return BACKENDS[name]


def register_backend(
    name: str,
    make: Callable[..., VectorEnv],
    *,
    check: Callable[[str, EnvSettings], None] = lambda game, settings: None,
    supports: Iterable[str] = (),
) -> None:
    """Add a backend for Atari games, for ``make_vec`` and ``parcade train --backend NAME``.

    Args:
        make: ``make(game, num_envs, settings, num_threads=n)``, an environment as ``make_vec`` describes. If
            it has ``get_state``, ``set_state`` and ``gives_state = True``, runs on it resume bit-identical.
        check: refuses settings of a game that the backend cannot serve, with a UsageError.
        supports: names of optional abilities. ``start_states``, ``warm_up_steps``, ``continuous_actions``
            and ``frame_skip_to``: ``make`` accepts other values of these settings than the defaults; the
            second also requires ``can_rest = True`` and a ``step(actions, playing)``. ``ale_compat``:
            ``make`` accepts ``ale_compat=True``. ``batch_size``: ``make`` accepts ``batch_size=B`` and then
            returns an environment with ``send`` and ``recv``.

    Errors: UsageError for a name that is in use, what cannot be called, or an unknown ability.
    """
    check_registered("backend", name, make)
    if name in BACKENDS:
        raise UsageError(f"backend {name!r} exists already; choose another name")
    if isinstance(supports, str):
        raise UsageError(f"supports={supports!r} is one string; expected several, e.g. [{supports!r}]")
    abilities = frozenset(supports)
    if strange := sorted(map(str, abilities - set(ABILITIES))):
        raise UsageError(
            f"supports={', '.join(strange)} of backend {name!r}: expected some of {', '.join(ABILITIES)}"
        )
    BACKENDS[name] = Backend(make, check, abilities)


def check_supported(backend: str, game: str, settings: EnvSettings) -> None:
    """Refuse settings that a backend cannot serve for a game, a canonical name. Errors: UsageError."""
    row = backend_row(backend) if is_atari(game) else None
    abilities = row.supports if row else frozenset()
    default = EnvSettings()
    for name in ("start_states", "warm_up_steps", "continuous_actions", "frame_skip_to"):
        value = getattr(settings, name)
        if value == getattr(default, name) or name in abilities:
            continue
        if row is None:
            raise UsageError(f"{name}={value} needs an Atari game, and {game} is none; leave it out")
        raise UsageError(
            f"{name}={value} needs an Atari game on parcade's own consoles; "
            f"use backend 'native', or {name}={getattr(default, name)}"
        )
    if row is None:
        return
    if settings.observations == "karpathy_2016" and game != "pong":
        raise UsageError(
            f"observations=karpathy_2016 erases the background colours of pong; got {game}; "
            "use pong, or another preset or kind of observations"
        )
    row.check(game, settings)
