"""Groups of environments of a config: which of the run's environments, on which device, with which seeds."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from parcade.capture import make_capture
from parcade.config import TrainConfig
from parcade.config.sizes import envs_of_a_process
from parcade.envs import make_vec
from parcade.envs.backends import backend_row
from parcade.envs.games import action_ids, is_atari
from parcade.envs.native import read_start_file
from parcade.envs.views import check_subset
from parcade.errors import UsageError
from parcade.experience.device_group import DeviceEnvGroup
from parcade.experience.env_group import EnvGroup
from parcade.experience.hybrid_group import HybridEnvGroup
from parcade.experience.rollout import PLAY_TIMEOUT_SECONDS
from parcade.experience.source import AnyGroup
from parcade.machine.devices import torch_device
from parcade.machine.timing import Timer
from parcade.model.precision import Precision
from parcade.random import env_seeds

# A thread emulates every game on every backend faster than this, with a margin for a busy machine.
SLOWEST_FRAMES_PER_SECOND = 4000


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


def check_environments(config: TrainConfig) -> None:
    """Check what the environments of a run would refuse at its start, without making any. Errors: UsageError.

    The memory of the consoles counts for one process, and not for a cluster or a GPU.
    """
    env = config.env
    if not is_atari(config.game):
        return
    check_subset(env.action_subset, len(action_ids(config.game, replace(env, action_subset=()))))
    if env.starts_from_file:
        read_start_file(config.game, env)
    if not config.consoles_on_device and not config.topology.address:
        # Each group is checked alone when it is made, so this checks one of at least this many groups.
        groups = 2 if config.run.overlap or config.run.device == "cuda" else 1
        count = max(1, envs_of_a_process(config) // groups)
        backend_row(config.run.backend).check_fits(count, env)


def check_threads_serve(config: TrainConfig, count: int, threads: int) -> None:
    """Refuse more environments than the threads can step before the hang timeout. Errors: UsageError."""
    step_seconds = count * config.env.most_frame_skip / (threads * SLOWEST_FRAMES_PER_SECOND)
    limits = [config.run.hang_seconds] if config.run.hang_seconds else []
    if config.run.overlap:
        limits.append(PLAY_TIMEOUT_SECONDS / config.hyper.unroll_length)
    if limits and step_seconds > min(limits):
        fits = int(min(limits) * threads * SLOWEST_FRAMES_PER_SECOND / config.env.most_frame_skip)
        raise UsageError(
            f"{count:,} environments on {threads} thread(s) may take {step_seconds:,.0f} s per step, "
            f"more than the {min(limits):,.0f} s after which a process counts as hanging; "
            f"use {fits:,} or fewer per process, or more threads"
        )
