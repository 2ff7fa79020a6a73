"""Builds the experience source of a config: the environments of this rank, their groups and their seeds."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parcade.algorithms.base import Algorithm
from parcade.algorithms.table import algorithm_row
from parcade.capture import make_capture
from parcade.config import TrainConfig
from parcade.devices import free_device_memory, torch_device
from parcade.envs import make_vec
from parcade.envs.games import is_atari
from parcade.errors import UsageError
from parcade.exchange.base import Exchange
from parcade.experience.device_group import DeviceEnvGroup
from parcade.experience.device_replay import DeviceReplay
from parcade.experience.env_group import EnvGroup
from parcade.experience.games import GamesSource
from parcade.experience.hybrid_group import HybridEnvGroup
from parcade.experience.population import Evaluator, PopulationSource
from parcade.experience.replay import FILL_STEPS, Replay, ReplaySettings
from parcade.experience.replay_source import ReplaySource
from parcade.experience.rollout import PLAY_TIMEOUT_SECONDS, AnyGroup, RolloutSource
from parcade.experience.source import Source
from parcade.experience.staggered import StaggeredSource
from parcade.policy import Policy
from parcade.precision import Precision
from parcade.random import env_seeds
from parcade.timing import Timer

# Evolution strategies gather no input statistics while learning. They normalise inputs by a reference batch
# of random play, from environments that no rank plays.
REFERENCE_ENV = 1 << 39
REFERENCE_ENVS = 4
REFERENCE_STEPS = 256
# A thread emulates every game on every backend faster than this, with a margin for a busy machine.
SLOWEST_FRAMES_PER_SECOND = 4000


def make_policy(config: TrainConfig) -> Policy:
    """Make the policy for the config's game, with initial weights drawn from the run's seed."""
    env = make_vec(config.game, 1, config.run.backend, settings=config.env)
    observation, num_actions = env.single_observation_space, int(env.single_action_space.n)
    env.close()
    torch.manual_seed(config.run.seed)
    make = algorithm_row(config.run.algorithm).make
    policy = Policy(observation.shape, observation.dtype, num_actions, config.hyper.network, make.head)
    if make.source_kind == "population" and policy.statistics is not None:
        policy.statistics.merge(policy.input_moments(_reference_batch(config)))
    return policy


def _reference_batch(config: TrainConfig) -> torch.Tensor:
    """Return observations ``[T, B, ...]`` of random play, the same in every process of a run."""
    console_seeds, _ = env_seeds(config.run.seed, REFERENCE_ENV, REFERENCE_ENVS)
    random = np.random.default_rng([config.run.seed, REFERENCE_ENV])
    env = make_vec(config.game, REFERENCE_ENVS, config.run.backend, settings=config.env)
    observations = [env.reset(seed=console_seeds)[0].copy()]
    for _ in range(REFERENCE_STEPS - 1):
        actions = random.integers(0, int(env.single_action_space.n), REFERENCE_ENVS)
        observations.append(env.step(actions)[0].copy())
    env.close()
    return torch.from_numpy(np.stack(observations))


def make_group(config: TrainConfig, first: int, count: int, *, num_threads: int, timer: Timer) -> EnvGroup:
    """Make environments ``first .. first + count - 1`` of the run for a policy on the host."""
    env = make_vec(config.game, count, config.run.backend, settings=config.env, num_threads=num_threads)
    who, how = _identity(config, first, count, timer)
    return EnvGroup(env, *who, **how, warm_up_steps=config.env.warm_up_steps)


def _identity(
    config: TrainConfig, first: int, count: int, timer: Timer
) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
    """Return the arguments common to all kinds of groups: indices and seeds, and keyword arguments."""
    how = {
        "clip_rewards": config.env.clip_rewards,
        "life_loss": config.env.life_loss,
        "precision": Precision(config.run.precision),
        "timer": timer,
    }
    return (np.arange(first, first + count), *env_seeds(config.run.seed, first, count)), how


def make_playing_group(
    config: TrainConfig, first: int, count: int, *, num_threads: int, timer: Timer
) -> AnyGroup:
    """Make environments of the run for a policy on the run's device."""
    if config.consoles_on_device:
        env = make_vec(config.game, count, "native", "cuda", settings=config.env)
        who, how = _identity(config, first, count, timer)
        seeded_by = None
        if config.env.warm_up_steps:
            seeded_by = functools.partial(
                make_group, config, first, count, num_threads=num_threads, timer=timer
            )
        return DeviceEnvGroup(env, *who, **how, device=torch_device(config.run.device), seeded_by=seeded_by)
    if config.run.device == "cpu":
        return make_group(config, first, count, num_threads=num_threads, timer=timer)
    sizes = [count] if count % 2 else [count // 2, count // 2]
    halves = [
        make_group(config, first + i * size, size, num_threads=num_threads, timer=timer)
        for i, size in enumerate(sizes)
    ]
    capture = make_capture(config.run.device, enabled=config.run.capture)
    return HybridEnvGroup(
        halves, torch_device(config.run.device), is_stack=gives_stacks(config), capture=capture
    )


def gives_stacks(config: TrainConfig) -> bool:
    """Whether observations are stacks of frames, so that a step adds only one new frame."""
    return is_atari(config.game) and config.env.observations in ("grey", "ram") and config.env.frame_stack > 1


def check_threads_serve(config: TrainConfig, count: int, threads: int) -> None:
    """Refuse more environments than the threads can step before the hang timeout. Errors: UsageError."""
    step_seconds = count * config.env.frame_skip / (threads * SLOWEST_FRAMES_PER_SECOND)
    limits = [config.hang_seconds] if config.hang_seconds else []
    if config.run.overlap:
        limits.append(PLAY_TIMEOUT_SECONDS / config.hyper.unroll_length)
    if limits and step_seconds > min(limits):
        fits = int(min(limits) * threads * SLOWEST_FRAMES_PER_SECOND / config.env.frame_skip)
        raise UsageError(
            f"{count:,} environments on {threads} thread(s) may take {step_seconds:,.0f} s per step, "
            f"more than the {min(limits):,.0f} s after which a process counts as hanging; "
            f"use {fits:,} or fewer per process, or more threads"
        )


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
        return GamesSource(groups, games_per_env, algorithm.policy, num_threads=threads, timer=timer)
    if algorithm.source_kind == "staggered":
        group = make_playing_group(config, first, per_rank, num_threads=threads, timer=timer)
        return StaggeredSource(group, hyper.unroll_length, hyper.num_groups, algorithm.policy)
    if algorithm.source_kind == "population":
        lanes = [make_group(config, first + i, 1, num_threads=1, timer=timer) for i in range(per_rank)]
        evaluator = Evaluator(lanes, algorithm.policy, hyper.sigma, hyper.games_per_member)
        whose = (exchange.rank, exchange.world_size)
        return PopulationSource(
            evaluator, algorithm.policy, config.run.seed, hyper.population, *whose, timer=timer
        )
    if algorithm.source_kind == "replay":
        group = make_playing_group(config, first, per_rank, num_threads=threads, timer=timer)
        share = hyper.batch_size // exchange.world_size
        return make_replay_source(
            config,
            algorithm,
            group,
            exchange.rank,
            exchange.world_size,
            shares_here=exchange.local_size,
            batch_size=share,
            timer=timer,
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


def replay_settings(config: TrainConfig, capacity: int) -> ReplaySettings:
    """Return the settings of a replay with ``capacity`` entries."""
    hyper = config.hyper
    return ReplaySettings(
        capacity=capacity,
        n_step=hyper.n_step,
        gamma=hyper.gamma,
        frame_stack=config.env.frame_stack if gives_stacks(config) else 1,
        alpha=hyper.priority_exponent,
    )


def make_replay(
    config: TrainConfig, capacity: int, num_lanes: int, *, block: int, shares_here: int
) -> Replay | DeviceReplay:
    """Make an empty replay for the observations of the config's game, on the run's device.

    Args:
        block: number of steps stored at once.
        shares_here: number of replays of this size that share this host's memory.

    Errors: UsageError when the replay is too small for its blocks, or memory is too small for the replays.
    """
    env = make_vec(config.game, 1, config.run.backend, settings=config.env)
    space = env.single_observation_space
    env.close()
    settings = replay_settings(config, capacity)
    on_device = config.run.device != "cpu"
    spill = _spill_directory(config)
    what = (space.shape, space.dtype, settings.frame_stack)
    bytes_each = (
        DeviceReplay.bytes_per_transition(*what)
        if on_device
        else Replay.bytes_per_transition(*what, spilled=bool(spill))
    )
    there = free_device_memory(config.run.device) // (1 if on_device else shares_here)
    check_memory(capacity, bytes_each, there)
    least = 2 * block * settings.frame_stack * num_lanes
    if capacity < least:
        raise UsageError(
            f"replay_capacity of {capacity:,} is too small for {num_lanes} environments "
            f"that store {block} steps at once; use {least:,} or more"
        )
    try:
        if on_device:
            dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype
            return DeviceReplay(settings, num_lanes, space.shape, dtype, torch_device(config.run.device))
        return Replay(settings, num_lanes, space.shape, space.dtype, spill)
    except OSError as error:
        raise UsageError(
            f"replay_spill={config.hyper.replay_spill}: {error.strerror}; use another directory"
        ) from error
    except ValueError as error:
        raise UsageError(f"replay_{error}; use a larger --replay-capacity") from error


def _spill_directory(config: TrainConfig) -> Path | None:
    """Return the directory for the replay's frames, or None. Errors: UsageError if it cannot be used."""
    if not config.hyper.replay_spill:
        return None
    directory = Path(config.hyper.replay_spill)
    if not directory.is_dir():
        raise UsageError(f"replay_spill={directory} is not a directory; create it, or use another one")
    if config.run.device != "cpu":
        raise UsageError(
            f"replay_spill={directory}: a replay on device {config.run.device!r} cannot be kept in a file; "
            "leave replay_spill out"
        )
    return directory


def shares_on_a_host(config: TrainConfig, count: int) -> int:
    """Return how many of a topology's replays share a host: 1 on an existing Ray cluster, else all."""
    return count if config.run.engine != "ray" or not config.topology.address else 1


def check_memory(capacity: int, bytes_per_transition: int, there: int) -> None:
    """Refuse a replay that does not fit into ``there`` bytes of free memory. Errors: UsageError."""
    needed = capacity * bytes_per_transition
    if needed > there:
        raise UsageError(
            f"replay_capacity={capacity:,} needs {needed / 2**30:.1f} GiB ({bytes_per_transition:,} bytes "
            f"per transition), but {there / 2**30:.1f} GiB of memory are free; "
            f"use {there * 9 // 10 // bytes_per_transition:,} or fewer"
        )


def make_replay_source(
    config: TrainConfig,
    algorithm: Algorithm,
    group: AnyGroup,
    index: int,
    count: int,
    *,
    shares_here: int,
    batch_size: int,
    timer: Timer,
) -> ReplaySource:
    """Make shard ``index`` of ``count`` of the config's replay, and the source that fills it from ``group``.

    ``shares_here`` is the number of shards on this host.
    """
    hyper = config.hyper
    block = max(hyper.unroll_length, FILL_STEPS)
    replay = make_replay(
        config, hyper.replay_capacity // count, len(group), block=block, shares_here=shares_here
    )
    key = np.random.SeedSequence([config.run.seed, 2**33 + index]).generate_state(1, np.uint64)[0]
    return ReplaySource(
        group,
        replay,
        algorithm.policy,
        unroll_length=hyper.unroll_length,
        batch_size=batch_size,
        learning_starts=max(1, hyper.learning_starts // count),
        sample_key=int(key),
        saves_replay=hyper.save_replay,
        timer=timer,
    )
