"""The replay of a config, on the host or on the GPU, and the source that plays into it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from parcade.algorithms.base import Algorithm
from parcade.build.groups import gives_stacks
from parcade.config import TrainConfig
from parcade.envs import make_vec
from parcade.errors import UsageError
from parcade.experience.device_replay import DeviceReplay
from parcade.experience.replay import FILL_STEPS, Replay, ReplaySettings
from parcade.experience.replay_source import ReplaySource
from parcade.experience.source import AnyGroup
from parcade.machine.devices import free_device_memory, torch_device


def make_replay_source(
    config: TrainConfig,
    algorithm: Algorithm,
    group: AnyGroup,
    *,
    index: int,
    count: int,
    replays_here: int,
    batch_size: int,
) -> ReplaySource:
    """Make shard ``index`` of ``count`` of the config's replay, and the source that fills it from ``group``.

    ``replays_here`` is the number of shards on this host.
    """
    hyper = config.hyper
    block = max(hyper.unroll_length, FILL_STEPS)
    replay = make_replay(config, count, len(group), block=block, replays_here=replays_here)
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
    )


def make_replay(
    config: TrainConfig, count: int, num_lanes: int, *, block: int, replays_here: int
) -> Replay | DeviceReplay:
    """Make one of ``count`` empty replays that have the config's capacity together, on the run's device.

    Args:
        num_lanes: number of environments whose steps this replay stores.
        block: number of steps stored at once.
        replays_here: number of replays of this size that share this host's memory.

    Errors: UsageError when the replay is too small for its blocks, or memory is too small for the replays.
    """
    total = config.hyper.replay_capacity
    capacity = total // count
    env = make_vec(config.game, 1, config.run.backend, settings=config.env)
    space = env.single_observation_space
    env.close()
    settings = replay_settings(config, capacity)
    on_device = config.run.device != "cpu"
    spill = _spill_directory(config)
    layout = (space.shape, space.dtype, settings.frame_stack)
    bytes_each = (
        DeviceReplay.bytes_per_transition(*layout)
        if on_device
        else Replay.bytes_per_transition(*layout, spilled=bool(spill))
    )
    free_bytes = free_device_memory(config.run.device) // (1 if on_device else replays_here)
    check_memory(total, bytes_each, free_bytes, count)
    least = 2 * block * settings.frame_stack * num_lanes
    of = f", in each of {count} replays," if count > 1 else ""
    if capacity < least:
        raise UsageError(
            f"replay_capacity of {total:,} is too small for {num_lanes} environments{of} "
            f"that store {block} steps at once; use {least * count:,} or more"
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
        what = f"replay_capacity={total:,} for {count} replays: " if count > 1 else "replay_"
        raise UsageError(f"{what}{error}; use a larger --replay-capacity") from error


def replay_settings(config: TrainConfig, capacity: int) -> ReplaySettings:
    """Return the settings of a replay with ``capacity`` entries."""
    hyper = config.hyper
    return ReplaySettings(
        capacity=capacity,
        n_step=hyper.n_step,
        gamma=hyper.gamma,
        frame_stack=config.env.frame_stack if gives_stacks(config) else 1,
        alpha=hyper.priority_exponent,
        new_is_largest=hyper.network.value_head != "mean",
    )


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


def replays_on_a_host(config: TrainConfig, count: int) -> int:
    """Return how many of a topology's replays share a host: 1 on an existing Ray cluster, else all."""
    return count if config.run.engine != "ray" or not config.topology.address else 1


def check_memory(capacity: int, bytes_per_transition: int, free_bytes: int, count: int = 1) -> None:
    """Refuse replays that do not fit into memory. Errors: UsageError.

    ``count`` replays have ``capacity`` entries together, and each of them ``free_bytes`` of memory.
    """
    needed = capacity // count * bytes_per_transition
    if needed > free_bytes:
        shared, each = (f" in {count} replays", " for each") if count > 1 else ("", "")
        raise UsageError(
            f"replay_capacity={capacity:,}{shared} needs {needed / 2**30:.1f} GiB{each} "
            f"({bytes_per_transition:,} bytes per transition), but {free_bytes / 2**30:.1f} GiB of memory "
            f"are free{each}; "
            f"use {free_bytes * 9 // 10 // bytes_per_transition * count:,} or fewer"
        )
