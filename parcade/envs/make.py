"""``make_vec``: one function for every game and backend, with the same interface for all."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Sequence

import gymnasium.vector

from parcade.envs.backends import backend_row, check_supported
from parcade.envs.games import canonical_game, is_atari, settings_of_id
from parcade.envs.settings import EnvSettings, env_preset
from parcade.errors import UsageError

DEVICES = ("cpu", "cuda")
OF_ANY_GAME = ("life_loss", "clip_rewards", "start_states", "warm_up_steps")
"""Settings that have their own checks, or that the learner applies to any game."""


def make_vec(
    game: str | Sequence[str],
    num_envs: int,
    backend: str = "native",
    device: str = "cpu",
    *,
    preset: str = "dqn_2015",
    settings: EnvSettings | None = None,
    num_threads: int = 0,
    ale_compat: bool = False,
    **overrides: object,
) -> gymnasium.vector.VectorEnv:
    """Create a vector of environments that reset automatically (SAME_STEP autoreset).

    Args:
        game: name of a game (``pong``, ``SpaceInvaders``), of a built-in task, or a Gymnasium id.
        ``ALE/Pong-v5``
            implies sticky actions of 0.25 and no no-op starts, unless overrides or settings say otherwise.
            Several Atari games share the environments evenly, in contiguous blocks; if their action sets
            differ, all games use the full set of 18 actions.
        num_envs: number of environments, n below.
        backend: ``ale`` (ale-py's C++ vector env) or ``native`` (parcade's own consoles).
        device: device of the observations; with ``cuda`` all inputs and outputs are torch tensors on the GPU.
        preset: environment preset: ``dqn_2015``, ``machado_2018`` or ``karpathy_2016``.
        settings: a complete EnvSettings, instead of preset and overrides.
        num_threads: number of emulation threads; 0 lets the backend choose.
        ale_compat: clip rewards and end episodes at a lost life inside the environment, as ale-py's settings
            do; backend ``native`` only.
        **overrides: single EnvSettings fields, e.g. ``image_height=42`` or ``start_states="cached"``.

    Returns:
        A VectorEnv. ``step`` returns observations ``[n, ...]``, raw rewards ``[n]`` (unclipped points),
        terminated and truncated ``[n]`` bool, and infos: ``lives`` ``[n]``, ``frames`` ``[n]`` (emulated by
        this step), ``reset_frames`` ``[n]`` (emulated by a reset inside this step) and, if an episode ended,
        ``final_obs`` ``[n, ...]`` with ``_final_obs`` ``[n]`` bool, which marks the valid rows.

    Errors:
        UsageError, one line, if the name is unknown or the backend does not support a setting.
    """
    abilities = backend_row(backend).supports
    if device not in DEVICES:
        raise UsageError(f"unknown device {device!r}; expected one of {', '.join(DEVICES)}")
    for name, value, least in (("num_envs", num_envs, 1), ("num_threads", num_threads, 0)):
        if not isinstance(value, numbers.Integral) or isinstance(value, bool):
            raise UsageError(f"{name}={value!r} is not an integer; use an integer, {least} or more")
        if value < least:
            raise UsageError(f"{name}={value} is below {least}; use {least} or more")
    if settings is not None and not isinstance(settings, EnvSettings):
        raise UsageError(f"settings is a {type(settings).__name__}; expected EnvSettings, e.g. EnvSettings()")
    if not isinstance(game, str | list | tuple) or not all(isinstance(name, str) for name in game):
        raise UsageError(f"game={game!r}: expected a name, e.g. 'pong', or a list of names")
    if not isinstance(game, str):
        return _make_mixed(
            list(game),
            num_envs,
            backend,
            device,
            preset=preset,
            settings=settings,
            num_threads=num_threads,
            ale_compat=ale_compat,
            **overrides,
        )
    of_id, game = settings_of_id(game), canonical_game(game)
    if settings is None:
        settings = env_preset(preset, **{**of_id, **overrides})
    elif overrides:
        raise UsageError(f"got settings and also {', '.join(overrides)}; put them into settings")
    if not is_atari(game):
        _refuse_overrides(game, overrides)
    if device == "cuda":
        if "cuda" not in abilities or not is_atari(game):
            raise UsageError("device 'cuda' needs an Atari game and backend 'native'; use device 'cpu'")
        if ale_compat:
            raise UsageError("ale_compat is for device 'cpu'; leave it out")
        from parcade.envs.cuda_views import seen_on_gpu
        from parcade.envs.native_cuda import CudaNativeVectorEnv

        return seen_on_gpu(CudaNativeVectorEnv(game, num_envs, settings), settings)
    check_supported(backend, is_atari(game), settings)
    if ale_compat and ("ale_compat" not in abilities or not is_atari(game)):
        raise UsageError("ale_compat is for Atari games on backend 'native'; leave it out")
    options = {"ale_compat": True} if ale_compat else {}
    return _make(game, num_envs, backend, settings, num_threads=num_threads, **options)


def _refuse_overrides(game: str, overrides: dict[str, object]) -> None:
    """Refuse single settings that only consoles have. Errors: UsageError."""
    consoles_only = sorted(set(overrides) - set(OF_ANY_GAME))
    if consoles_only:
        raise UsageError(
            f"{game} is not an Atari game and has no {', '.join(consoles_only)}; leave these settings out"
        )


def _make_mixed(
    games: list[str],
    num_envs: int,
    backend: str,
    device: str,
    *,
    preset: str,
    settings: EnvSettings | None,
    **how: object,
) -> gymnasium.vector.VectorEnv:
    """Implement ``make_vec`` for several games. Errors: UsageError."""
    from parcade.envs.mixed import MixedVectorEnv, have_one_action_set, shares_of

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
        settings = env_preset(preset, **{**settings_of_id(games[0]), **overrides})
    elif overrides:
        raise UsageError(f"got settings and also {', '.join(overrides)}; put them into settings")
    if not have_one_action_set(names):
        if settings.action_subset:
            raise UsageError("action_subset requires that all games have the same action set; leave it out")
        settings = dataclasses.replace(settings, full_action_set=True)
    envs = [
        make_vec(name, share, backend, device, settings=settings, **how)
        for name, share in zip(names, shares_of(num_envs, len(names)), strict=True)
    ]
    if device == "cuda":
        from parcade.envs.native_cuda import CudaMixedVectorEnv

        return CudaMixedVectorEnv(envs, names)
    return MixedVectorEnv(envs, names)


def _make(
    game: str, num_envs: int, backend: str, settings: EnvSettings, **options: object
) -> gymnasium.vector.VectorEnv:
    """Make one game's environments on the CPU."""
    from parcade.testing import TINY_TASKS

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
