"""RLlib: after ``register()``, it knows parcade's environments by their Gymnasium ids.

``PPOConfig().environment("parcade/Pong-v0")`` trains on them; docs/integrations.md has more.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv

from parcade.errors import missing_extra
from parcade.integrations.gym import env_id, make, make_registered_vec, registered_games

try:
    from ray.tune.registry import register_env
except ImportError as error:
    raise missing_extra("ray[rllib]", "rllib", "parcade.integrations.rllib") from error


def register() -> None:
    """Register every game and tiny task with RLlib, under its Gymnasium id, for all processes of the cluster.

    ``env_config`` takes the arguments of ``parcade.make_vec``, and ``clip_rewards``. With
    ``env_runners(gym_env_vectorize_mode="vector_entry_point")``, an environment runner steps all its
    environments at once; without, one after the other.
    """
    for game in registered_games():
        register_env(env_id(game), functools.partial(make_env, game))


def make_env(game: str, config: Mapping[str, Any]) -> gymnasium.Env | VectorEnv:
    """Create what RLlib asks for: with ``num_envs`` in the config a vector environment, else a single one.

    Observations are as RLlib's networks expect them, float32 in [-1, 1]: images ``[height, width, stack]``,
    in colour ``[height, width, 3 * stack]``, anything else a vector. Rewards are raw points, or their signs
    with ``clip_rewards``. Errors: UsageError.
    """
    settings = dict(config)
    clips, num_envs = settings.pop("clip_rewards", False), settings.pop("num_envs", None)
    env: Any
    wrappers: Any
    if num_envs is None:
        env, wrappers, space = make(game, **settings), gymnasium.wrappers, "observation_space"
    else:
        # RLlib's environment runner expects the next episode in the step after the last one.
        env = make_registered_vec(game, num_envs, autoreset_mode=AutoresetMode.NEXT_STEP, **settings)
        wrappers, space = gymnasium.wrappers.vector, "single_observation_space"
    see = functools.partial(_seen, getattr(env, space))
    seen_space = Box(-1, 1, see(getattr(env, space).low).shape, np.float32)
    env = wrappers.TransformObservation(env, see, **{space: seen_space})
    seen: gymnasium.Env | VectorEnv = wrappers.TransformReward(env, np.sign) if clips else env
    return seen


def _seen(space: Box, observations: np.ndarray) -> np.ndarray:
    """Scale observations of ``space``, or batches of them, to [-1, 1], and move an image's channels last."""
    leading = observations.shape[: observations.ndim - len(space.shape)]
    if len(space.shape) == 3:  # [stack, height, width]
        shaped = np.moveaxis(observations, -3, -1)
    elif len(space.shape) == 4:  # [stack, height, width, 3]
        shaped = np.moveaxis(observations, -4, -2).reshape(*leading, *space.shape[1:3], -1)
    else:
        shaped = observations.reshape(*leading, -1)
    low, high = np.float32(space.low.min()), np.float32(space.high.max())
    return (shaped.astype(np.float32) - low) * (2 / (high - low)) - 1
