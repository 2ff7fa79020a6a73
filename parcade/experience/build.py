"""The experience source of a config: which environments this rank plays, in which groups, with which seeds."""

from __future__ import annotations

import numpy as np

from parcade.algorithms.base import Algorithm
from parcade.config import TrainConfig
from parcade.envs import make_vec
from parcade.exchange.base import Exchange
from parcade.experience.device_group import DeviceEnvGroup
from parcade.experience.env_group import EnvGroup
from parcade.experience.games import GamesSource
from parcade.experience.rollout import RolloutSource
from parcade.experience.source import Source
from parcade.experience.staggered import StaggeredSource
from parcade.precision import Precision
from parcade.random import env_seeds
from parcade.report.timing import Timer



def make_group(
    config: TrainConfig, first: int, count: int, *, num_threads: int, timer: Timer
) -> EnvGroup | DeviceEnvGroup:
    """Environments ``first .. first + count - 1`` of the run, counted over all ranks."""
    console_seeds, noise_keys = env_seeds(config.run.seed, first, count)
    what = (np.arange(first, first + count), console_seeds, noise_keys)
    how = {
        "clip_rewards": config.env.clip_rewards,
        "life_loss": config.env.life_loss,
        "precision": Precision(config.run.precision),
        "timer": timer,
        "device": config.run.device,
    }
    if config.consoles_on_device:
        return DeviceEnvGroup(make_vec(config.game, count, "native", "cuda", settings=config.env), *what, **how)
    env = make_vec(config.game, count, config.run.backend, settings=config.env, num_threads=num_threads)
    return EnvGroup(env, *what, **how)


def make_source(
    config: TrainConfig, algorithm: Algorithm, exchange: Exchange, *, timer: Timer, learner_timer: Timer, threads: int
) -> Source:
    """The source the algorithm takes, with this rank's share of the environments.

    ``timer`` counts playing; ``learner_timer`` counts what the learner waits for. They are one without overlap.
    """
    hyper = config.hyper
    per_rank = hyper.num_envs // exchange.world_size
    first = exchange.rank * per_rank
    if algorithm.source_kind == "games":
        lanes = [make_group(config, first + i, 1, num_threads=1, timer=Timer()) for i in range(per_rank)]
        games_per_env = hyper.games_per_update // hyper.num_envs
        return GamesSource(lanes, games_per_env, algorithm.policy, num_threads=threads, timer=timer)
    if algorithm.source_kind == "staggered":
        group = make_group(config, first, per_rank, num_threads=threads, timer=timer)
        return StaggeredSource(group, hyper.unroll_length, hyper.num_groups, algorithm.policy)
    num_groups = 2 if config.run.overlap else 1
    size = per_rank // num_groups
    groups = [
        make_group(config, first + i * size, size, num_threads=threads, timer=timer) for i in range(num_groups)
    ]
    threaded = config.run.engine != "serial"
    return RolloutSource(groups, hyper.unroll_length, algorithm.policy, threaded=threaded, timer=learner_timer)
