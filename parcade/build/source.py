"""The experience source of a config, with this rank's environments."""

from __future__ import annotations

from parcade.algorithms.base import Algorithm
from parcade.build.groups import check_threads_serve, make_group, make_playing_group
from parcade.build.replay import make_replay_source
from parcade.config import TrainConfig
from parcade.envs.games import is_atari
from parcade.exchange.base import Exchange
from parcade.experience.episodes_source import EpisodesSource
from parcade.experience.population_source import Evaluator, PopulationSource
from parcade.experience.rollout import RolloutSource
from parcade.experience.source import Source
from parcade.experience.staggered import StaggeredSource
from parcade.machine.timing import Timer


def make_source(
    config: TrainConfig,
    algorithm: Algorithm,
    exchange: Exchange,
    *,
    timer: Timer,
    learner_timer: Timer,
    threads: int,
) -> Source:
    """Make the source that the algorithm requires, with this rank's environments.

    ``timer`` measures playing, ``learner_timer`` the learner's waiting. Without overlap they are the same.
    """
    hyper = config.hyper
    per_rank = hyper.num_envs // exchange.world_size
    first = exchange.rank * per_rank
    if not config.consoles_on_device:
        check_threads_serve(config, per_rank, threads)
    if algorithm.source_kind == "games":
        # Only native consoles can pause individually; other backends need one group per environment.
        size = per_rank if is_atari(config.game) and config.run.backend == "native" else 1
        groups = [
            make_group(config, first + i, size, num_threads=threads, timer=Timer())
            for i in range(0, per_rank, size)
        ]
        games_per_env = hyper.games_per_update // hyper.num_envs
        return EpisodesSource(groups, games_per_env, algorithm.policy, num_threads=threads, timer=timer)
    if algorithm.source_kind == "staggered":
        group = make_playing_group(config, first, per_rank, num_threads=threads, timer=timer)
        return StaggeredSource(group, hyper.unroll_length, hyper.num_groups, algorithm.policy)
    if algorithm.source_kind == "population":
        lanes = [make_group(config, first + i, 1, num_threads=1, timer=timer) for i in range(per_rank)]
        evaluator = Evaluator(lanes, algorithm.policy, hyper.sigma, hyper.games_per_member)
        whose = (exchange.rank, exchange.world_size)
        return PopulationSource(evaluator, algorithm.policy, config.run.seed, hyper.population, *whose)
    if algorithm.source_kind == "replay":
        group = make_playing_group(config, first, per_rank, num_threads=threads, timer=timer)
        return make_replay_source(
            config,
            algorithm,
            group,
            index=exchange.rank,
            count=exchange.world_size,
            replays_here=exchange.local_size,
            batch_size=hyper.batch_size // exchange.world_size,
        )
    num_groups = 2 if config.run.overlap else 1
    size = per_rank // num_groups
    groups = [
        make_playing_group(config, first + i * size, size, num_threads=threads, timer=timer)
        for i in range(num_groups)
    ]
    threaded = config.run.engine != "serial"
    return RolloutSource(
        groups, hyper.unroll_length, algorithm.policy, threaded=threaded, timer=learner_timer
    )
