"""Sizes against the machine and against each other: devices, memory, even division."""

from __future__ import annotations

import math
from typing import Any

from parcade.config.train import TrainConfig, torso_of_shapes
from parcade.envs.games import is_atari
from parcade.errors import UsageError, check_divides
from parcade.machine.devices import check_gpu, free_device_memory
from parcade.machine.threads import check_threads

# Of a parameter: float32, gradient and the two averages of Adam.
BYTES_PER_PARAMETER = 16
# Of a step in a rollout, without its observation: action, reward, log-probability, value, version and ends.
BYTES_BESIDE_OBSERVATION = 32
BYTES_PER_MEMBER = 24  # seed, sign and score


def check_device(config: TrainConfig) -> None:
    """Check that this machine has the device, cores for the threads, and memory. Errors: UsageError."""
    check_threads("threads_per_rank", config.run.threads_per_rank)
    if config.run.device == "cpu":
        check_process_memory(config, free_device_memory("cpu"))
    elif config.run.engine != "ray" or not config.topology.address:  # Ray knows the GPUs of its cluster
        check_gpu("device 'cuda'")


def check_process_memory(config: TrainConfig, free_bytes: int) -> None:
    """Reject a network, rollout or minibatch of one process that cannot fit into free memory.

    The estimates are lower bounds, so that no run that might fit is rejected. Errors: UsageError.
    """
    hyper, network = config.hyper, config.hyper.network
    is_console = is_atari(config.game)
    hidden = network.hidden
    weights = hidden * hidden if network.network in ("mlp", "auto") else hidden
    if is_console:
        weights = sum(parameter.numel() for parameter in torso_of_shapes(config).parameters())
    weights += 4 * network.lstm * (hidden + network.lstm)
    if weights * BYTES_PER_PARAMETER > free_bytes:
        raise UsageError(
            f"hidden={hidden:,}, lstm={network.lstm:,}: the network's {weights:,} parameters need "
            f"{weights * BYTES_PER_PARAMETER / 2**30:.1f} GiB including the optimiser's state, but only "
            f"{free_bytes / 2**30:.1f} GiB of memory are free; use narrower layers"
        )
    num_envs = envs_of_a_process(config)
    observed = math.prod(config.env.observation_shape) if is_console else 0
    bytes_of_step = observed + BYTES_BESIDE_OBSERVATION
    for name, each, size, of in (
        ("unroll_length", num_envs, bytes_of_step, f" for the {num_envs:,} environment(s) of a process"),
        ("batch_size", 1, bytes_of_step, ""),
        ("population", 1, BYTES_PER_MEMBER, ""),
    ):
        count, bytes_each = getattr(hyper, name, 0), each * size
        if count * bytes_each > free_bytes:
            fits = free_bytes // 2 // bytes_each
            fewer = free_bytes // 2 // (bytes_each // each) // count
            advice = "use smaller images or a shorter --frame-stack"
            if fits or fewer:
                advice = f"use {fits:,} or fewer" if fits else f"use {fewer:,} or fewer environments"
            raise UsageError(
                f"{name}={count:,} needs {count * bytes_each / 2**30:.1f} GiB{of}, but only "
                f"{free_bytes / 2**30:.1f} GiB of memory are free; {advice}"
            )


def envs_of_a_process(config: TrainConfig) -> int:
    """Return how many environments each process of a run has, at least; one where that is not known."""
    if config.is_topology:
        processes = config.num_learners if config.is_bundled else config.topology.num_actors
    else:  # with the user's own launcher, the config does not hold the number of ranks
        processes = config.run.ranks
        if config.run.engine == "mpi" and processes == 1:
            return 1
    return max(1, config.hyper.num_envs // processes)


def check_divisible(config: TrainConfig, world_size: int) -> None:
    """Reject sizes that do not divide evenly into ranks, groups and minibatches. Errors: UsageError."""
    hyper: Any = config.hyper  # its fields are the algorithm's
    groups = 2 if config.run.overlap else 1
    if world_size * groups > hyper.num_envs:
        raise UsageError(
            f"num_envs={hyper.num_envs} is fewer than world_size={world_size} x {groups} group(s); "
            f"use --ranks {max(1, hyper.num_envs // groups)} or fewer, or --num-envs {world_size * groups}"
        )
    parts = [
        ("num_envs", hyper.num_envs, world_size * groups, f"world_size={world_size} x {groups} group(s)")
    ]
    if hasattr(hyper, "num_groups"):
        parts[0] = (
            "num_envs",
            hyper.num_envs,
            world_size * hyper.num_groups,
            f"world_size={world_size} x num_groups={hyper.num_groups}",
        )
        parts.append(
            ("unroll_length", hyper.unroll_length, hyper.num_groups, f"num_groups={hyper.num_groups}")
        )
    if hasattr(hyper, "games_per_update"):
        parts.append(
            ("games_per_update", hyper.games_per_update, hyper.num_envs, f"num_envs={hyper.num_envs}")
        )
    if hasattr(hyper, "replay_capacity"):
        parts.append(("batch_size", hyper.batch_size, world_size, f"world_size={world_size}"))
        if 2 * hyper.learning_starts > hyper.replay_capacity:
            raise UsageError(
                f"learning_starts={hyper.learning_starts} is more than half of "
                f"replay_capacity={hyper.replay_capacity}; "
                f"use a replay_capacity of {2 * hyper.learning_starts} or more"
            )
    if hasattr(hyper, "population"):
        parts.append(("population", hyper.population, 2 * world_size, f"2 x world_size={world_size}"))
    if hasattr(hyper, "num_minibatches"):
        per_group = hyper.num_envs // (world_size * groups)
        items = per_group if hyper.network.lstm else per_group * hyper.unroll_length
        what = "environments" if hyper.network.lstm else "steps"
        if items < hyper.num_minibatches:
            raise UsageError(
                f"num_minibatches={hyper.num_minibatches} is more than the {items} {what} of a rank's batch; "
                f"use {max(items, 1)} or fewer"
            )
    for part in parts:
        check_divides(*part)


def check_actors(config: TrainConfig, count: int) -> None:
    """Check that a run can go on with this number of actors. Errors: UsageError.

    A global replay has lanes for the actors that the run began with, and those of removed actors are empty.
    """
    began = config.topology.num_actors
    hyper: Any = config.hyper
    if config.topology_name not in ("replayed", "bundles apart") or count == began:
        return
    if count > began:
        raise UsageError(
            f"actors={count} is more than the {began} for which this run's replay has room; "
            f"use {began} or fewer, or start a run with --num-actors {count}"
        )
    least = math.ceil(2 * hyper.learning_starts * began / hyper.replay_capacity)
    if count < least:
        raise UsageError(
            f"actors={count} fill too small a part of the replay for "
            f"learning_starts={hyper.learning_starts:,}; use {least} or more"
        )
