"""``make_vec``: one function for every game and backend, with the same interface for all."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import gymnasium.vector
from gymnasium.spaces import Space

from parcade.envs.backends import backend_row, check_supported
from parcade.envs.games import canonical_game, is_atari, settings_of_id
from parcade.envs.settings import (
    EnvSettings,
    env_preset,
    refuse_consoles_only,
    refuse_settings_of_consoles,
)
from parcade.errors import UsageError
from parcade.ranges import whole

if TYPE_CHECKING:
    from parcade.envs.native_async import AsyncNativeVectorEnv

DEVICES = ("cpu", "cuda")
OUTPUTS = ("numpy", "torch")


@overload
def make_vec(
    game: str,
    num_envs: int,
    backend: str = "native",
    device: Literal["cpu"] = "cpu",
    *,
    batch_size: int,
    output: Literal["numpy"] | None = None,
    **others: Any,
) -> AsyncNativeVectorEnv: ...


@overload
def make_vec(
    game: str | Sequence[str],
    num_envs: int,
    backend: str = "native",
    device: str = "cpu",
    *,
    preset: str | None = None,
    settings: EnvSettings | None = None,
    num_threads: int = 0,
    ale_compat: bool = False,
    batch_size: int | None = None,
    output: str | None = None,
    **overrides: Any,
) -> gymnasium.vector.VectorEnv: ...


def make_vec(
    game: str | Sequence[str],
    num_envs: int,
    backend: str = "native",
    device: str = "cpu",
    *,
    preset: str | None = None,
    settings: EnvSettings | None = None,
    num_threads: int = 0,
    ale_compat: bool = False,
    batch_size: int | None = None,
    output: str | None = None,
    **overrides: Any,
) -> gymnasium.vector.VectorEnv:
    """Create a vector of environments that reset automatically (SAME_STEP autoreset).

    Args:
        game: name of a game (``pong``, ``SpaceInvaders``), of a built-in task, or a Gymnasium id, after the
            module that registers it if Gymnasium does not know it (``my_module:My-v0``). ``ALE/Pong-v5``
            implies sticky actions of 0.25 and no no-op starts, unless overrides or settings say otherwise.
            Several Atari games share the environments evenly, in contiguous blocks; if their action sets
            differ, all games use the full set of 18 actions.
        num_envs: number of environments, n below.
        backend: ``ale`` (ale-py's C++ vector env) or ``native`` (parcade's own consoles).
        device: device of the observations; with ``cuda`` all inputs and outputs are torch tensors on the GPU.
        preset: environment preset: ``dqn_2015`` (default), ``machado_2018`` or ``karpathy_2016``.
        settings: a complete EnvSettings, instead of preset and overrides.
        num_threads: number of emulation threads; 0 is one on backend ``native``, and as many as ale-py
            chooses on ``ale``. More than one pays from a few dozen environments on.
        ale_compat: clip rewards and end episodes at a lost life inside the environment, as ale-py's settings
            do; backend ``native`` only.
        batch_size: B of the asynchronous mode (``AsyncNativeVectorEnv``): ``recv`` returns the B environments
            that finish first; 1 to n, backend ``native`` only. None or 0: all environments step together.
        output: ``numpy`` (default on the CPU) or ``torch``: tensors that share the arrays' memory.
        **overrides: single EnvSettings fields, e.g. ``image_height=42`` or ``start_states="cached"``.

    Returns:
        A VectorEnv. ``step`` returns observations ``[n, ...]``, raw rewards ``[n]`` (unclipped points, int32
        of Atari games as ale-py's), terminated and truncated ``[n]`` bool, and infos: ``lives`` ``[n]``,
        ``frames`` ``[n]`` (emulated by this step), ``reset_frames`` ``[n]`` (emulated by a reset inside this
        step) and, if an episode ended, ``final_obs`` ``[n, ...]`` with ``_final_obs`` ``[n]`` bool, which
        marks the valid rows. On backend ``native``, a first ``reset`` without a seed gives environment i the
        seed i: always the same episodes.

    Errors:
        UsageError, one line, if the name is unknown or the backend does not support a setting.
    """
    batch_size = 0 if batch_size is None else batch_size
    backend_row(backend)  # refuses an unknown name
    _check_places(device, output)
    _check_sizes(num_envs, num_threads, batch_size)
    if not isinstance(ale_compat, bool):
        raise UsageError(f"ale_compat={ale_compat!r}: expected True or False")
    _check_settings(settings, overrides if preset is None else {"preset": preset, **overrides})
    if not isinstance(game, str | list | tuple) or not all(isinstance(name, str) for name in game):
        raise UsageError(f"game={game!r}: expected a name, e.g. 'pong', or a list of names")
    how: dict[str, Any] = {
        "preset": "dqn_2015" if preset is None else preset,
        "settings": settings,
        "num_threads": num_threads,
        "ale_compat": ale_compat,
    }
    if isinstance(game, str):
        env = _make_one(game, num_envs, backend, device, batch_size=batch_size, **how, **overrides)
    elif batch_size:
        raise UsageError("batch_size is for one game; leave it out")
    else:
        env = _make_mixed(list(game), num_envs, backend, device, **how, **overrides)
    return env if device == "cuda" else with_output(env, output)


def _check_places(device: str, output: str | None) -> None:
    _check_choice("device", device, DEVICES)
    _check_choice("output", output, (None, *OUTPUTS))
    if device == "cuda" and output == "numpy":
        raise UsageError("output 'numpy' needs device 'cpu'; on a GPU use 'torch', or leave it out")


def _check_sizes(num_envs: int, num_threads: int, batch_size: int) -> None:
    whole("num_envs", num_envs, 1)
    whole("num_threads", num_threads, 0)
    whole("batch_size", batch_size, 0)
    if batch_size > num_envs:
        raise UsageError(f"batch_size={batch_size} is above num_envs={num_envs}; use {num_envs} or fewer")


def _check_settings(settings: EnvSettings | None, given: dict[str, Any]) -> None:
    if settings is None:
        return
    if not isinstance(settings, EnvSettings):
        raise UsageError(f"settings is a {type(settings).__name__}; expected EnvSettings, e.g. EnvSettings()")
    if given:
        raise UsageError(
            f"got settings and also {', '.join(given)}; put them into settings, or leave settings out"
        )


def with_output(env: gymnasium.vector.VectorEnv, output: str | None) -> gymnasium.vector.VectorEnv:
    """Wrap an environment on the CPU so that it returns tensors if ``output`` is ``torch``."""
    _check_choice("output", output, (None, *OUTPUTS))
    if output != "torch":
        return env
    from parcade.envs.torch_view import TorchView

    return TorchView(env)


def _check_choice(name: str, value: str | None, choices: Sequence[str | None]) -> None:
    if value not in choices:
        names = ", ".join(choice for choice in choices if choice)
        raise UsageError(f"unknown {name} {value!r}; expected one of {names}")


def _make_one(
    game: str,
    num_envs: int,
    backend: str,
    device: str,
    *,
    preset: str,
    settings: EnvSettings | None,
    num_threads: int,
    ale_compat: bool,
    batch_size: int,
    **overrides: Any,
) -> gymnasium.vector.VectorEnv:
    """Implement ``make_vec`` for one game. Errors: UsageError."""
    abilities = backend_row(backend).supports
    of_id, game = settings_of_id(game, overrides), canonical_game(game)
    if settings is not None and not is_atari(game):
        refuse_settings_of_consoles(game, settings)
    if settings is None:
        if not is_atari(game):
            refuse_consoles_only(game, overrides)
        settings = env_preset(preset, **{**of_id, **overrides})
    options = {
        name: value for name, value in (("ale_compat", ale_compat), ("batch_size", batch_size)) if value
    }
    if device == "cuda" and ("cuda" not in abilities or not is_atari(game)):
        raise UsageError("device 'cuda' needs an Atari game and backend 'native'; use device 'cpu'")
    check_supported(backend, game, settings)
    if device == "cuda":
        refuse_on_gpu(settings)
        for name in options:
            raise UsageError(f"{name} is for device 'cpu'; leave it out")
        from parcade.envs.cuda_views import seen_on_gpu
        from parcade.envs.native_cuda import CudaNativeVectorEnv

        return seen_on_gpu(CudaNativeVectorEnv(game, num_envs, settings), settings)
    for name in options:
        if name not in abilities or not is_atari(game):
            raise UsageError(f"{name} is for Atari games on backend 'native'; leave it out")
    return _make(game, num_envs, backend, settings, num_threads=num_threads, **options)


def refuse_on_gpu(settings: EnvSettings) -> None:
    """Refuse settings that only consoles on the CPU have. Errors: UsageError."""
    for name in ("continuous_actions", "frame_skip_to"):
        if getattr(settings, name):
            default = getattr(EnvSettings(), name)
            raise UsageError(
                f"{name} is for consoles on the CPU; use {name}={default}, or device 'cpu' for the consoles"
            )


@functools.cache
def action_space(game: str) -> Space[Any]:
    """Return the action space of a task that is not an Atari game, by its canonical name."""
    env = _make(game, 1, "native", EnvSettings())
    env.close()
    return env.single_action_space


def _make_mixed(
    games: list[str],
    num_envs: int,
    backend: str,
    device: str,
    *,
    preset: str,
    settings: EnvSettings | None,
    **how: Any,
) -> gymnasium.vector.VectorEnv:
    """Implement ``make_vec`` for several games. Errors: UsageError."""
    from parcade.envs.mixed import MixedVectorEnv, have_one_action_set, portions_of, with_all_actions

    names = [canonical_game(game) for game in games]
    strangers = [name for name in names if not is_atari(name)]
    if strangers or not names:
        raise UsageError(
            f"games={games}: expected Atari games, one or more; got {', '.join(strangers) or 'none'}"
        )
    if num_envs < len(names):
        raise UsageError(
            f"num_envs={num_envs} is fewer than the {len(names)} games; use {len(names)} or more"
        )
    ids = {tuple(settings_of_id(game).items()) for game in games}
    if settings is None and len(ids) > 1:
        raise UsageError(f"games={games} have ids with different rules; use one kind of id, or pass settings")
    overrides = {name: how.pop(name) for name in list(how) if name not in ("num_threads", "ale_compat")}
    if settings is None:
        settings = env_preset(preset, **{**settings_of_id(games[0], overrides), **overrides})
    if not settings.continuous_actions and not have_one_action_set(names):
        if settings.action_subset:
            raise UsageError("action_subset requires that all games have the same action set; leave it out")
        of_games = [with_all_actions(name, settings) for name in names]
    else:
        of_games = [settings] * len(names)
    _check_all_fit(names, num_envs, backend, device, settings)
    envs: list[Any] = [
        make_vec(name, portion, backend, device, settings=own, **how)
        for name, portion, own in zip(names, portions_of(num_envs, len(names)), of_games, strict=True)
    ]
    if device == "cuda":
        from parcade.envs.native_cuda import CudaMixedVectorEnv

        return CudaMixedVectorEnv(envs, names)
    return MixedVectorEnv(envs, names)


def _check_all_fit(games: list[str], num_envs: int, backend: str, device: str, settings: EnvSettings) -> None:
    """Check that the consoles of all games fit into memory, before any is made. Errors: UsageError."""
    if device == "cpu":
        backend_row(backend).check_fits(num_envs, settings)
    elif "cuda" in backend_row(backend).supports:
        from parcade.envs.native_cuda import check_games_fit

        check_games_fit(games, num_envs, settings)


def _make(
    game: str, num_envs: int, backend: str, settings: EnvSettings, **options: object
) -> gymnasium.vector.VectorEnv:
    """Make one game's environments on the CPU."""
    from parcade.envs.tiny import TINY_TASKS

    if game in TINY_TASKS:
        return TINY_TASKS[game](num_envs)
    if is_atari(game):
        from parcade.envs.views import ActionSubset, KarpathyView

        env = backend_row(backend).make(game, num_envs, settings, **options)
        if settings.observations == "karpathy_2016":
            env = KarpathyView(env)
        return ActionSubset(env, settings.action_subset) if settings.action_subset else env
    from parcade.envs.gym import GymVectorEnv

    return GymVectorEnv(game, num_envs)
