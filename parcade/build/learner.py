"""The learning side of a config: the policy with its initial weights, algorithm and gradient exchange."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Space

from parcade.algorithms.base import Algorithm, AlgorithmContext, checked_optimizer
from parcade.algorithms.table import algorithm_row
from parcade.capture import make_capture
from parcade.checkpoint import misfit, read_policy
from parcade.cluster import torchrun
from parcade.cluster.watchdog import patience_seconds
from parcade.config import TrainConfig
from parcade.envs import make_vec
from parcade.envs.games import action_ids, is_atari
from parcade.envs.native import action_space_of
from parcade.errors import UsageError
from parcade.exchange.base import Exchange, LocalExchange
from parcade.exchange.choice import exchange_of_ranks
from parcade.machine.devices import make_repeatable, torch_device
from parcade.machine.heap import keep_freed_memory
from parcade.machine.timing import Timer
from parcade.model import pixels
from parcade.model.actions import actions_of
from parcade.model.compiled import compile_network
from parcade.model.policy import Policy
from parcade.model.precision import Precision
from parcade.random import env_seeds, rank_seed
from parcade.zoo import agent_directory

# Evolution strategies gather no input statistics while learning. They normalise inputs by a reference batch
# of random play, from environments that no rank plays.
REFERENCE_ENV = 1 << 39
REFERENCE_ENVS = 4
REFERENCE_STEPS = 256


def make_policy(config: TrainConfig) -> Policy:
    """Make the policy for the config's game.

    Its initial weights are drawn from the run's seed, or are those of ``from_agent``.
    Errors: UsageError when that agent's weights do not fit.
    """
    env = make_vec(config.game, 1, config.run.backend, settings=config.env)
    observation, actions = env.single_observation_space, env.single_action_space
    env.close()
    if config.run.backend == "native" and is_atari(config.game):
        pixels.use_compiled()  # loaded with the console above
    torch.manual_seed(config.run.seed)
    policy = _policy_for(config, observation, actions)
    is_population = algorithm_row(config.run.algorithm).make.source_kind == "population"
    if is_population and policy.statistics is not None:
        policy.statistics.merge(policy.input_moments(_reference_batch(config)))
    if config.run.from_agent:
        # The version counts the updates of this run; epsilon follows its schedule.
        own, trained = policy.state_dict(), _weights_of(config.run.from_agent, policy)
        policy.load_state_dict({**trained, "version": own["version"], "epsilon": own["epsilon"]})
    return policy


def check_agent(config: TrainConfig) -> None:
    """Check that the weights of ``from_agent`` fit, without a console. Errors: UsageError."""
    if not config.run.from_agent:
        return
    if not is_atari(config.game):
        make_policy(config)
        return
    dtype = np.int8 if config.env.observations == "karpathy_2016" else np.uint8
    observation = Box(0, 127, config.env.observation_shape, dtype)
    with torch.device("meta"):
        actions = action_space_of(config.env, len(action_ids(config.game, config.env)))
        policy = _policy_for(config, observation, actions)
    _weights_of(config.run.from_agent, policy)


def _policy_for(config: TrainConfig, observation: Space[Any], actions: Space[Any]) -> Policy:
    """Make a policy for these spaces, with weights drawn from torch's generator."""
    return Policy(
        observation.shape,
        observation.dtype,
        actions,
        config.hyper.network,
        algorithm_row(config.run.algorithm).make.head,
        is_stack=is_atari(config.game),
    )


def _weights_of(agent: str, policy: Policy) -> dict[str, torch.Tensor]:
    """Return the weights and input statistics of a trained agent. Errors: UsageError when they do not fit."""
    trained, _ = read_policy(agent_directory(agent))
    reason = misfit(policy, trained)
    if reason:
        raise UsageError(
            f"the weights of {agent} do not fit this run: {reason}; "
            "use its number of actions, image size and network settings"
        )
    return trained


def _reference_batch(config: TrainConfig) -> torch.Tensor:
    """Return observations ``[T, B, ...]`` of random play, the same in every process of a run."""
    console_seeds, _ = env_seeds(config.run.seed, REFERENCE_ENV, REFERENCE_ENVS)
    generator = np.random.default_rng([config.run.seed, REFERENCE_ENV])
    env = make_vec(config.game, REFERENCE_ENVS, config.run.backend, settings=config.env)
    actions = actions_of(env.single_action_space)
    observations = [env.reset(seed=console_seeds)[0].copy()]
    for _ in range(REFERENCE_STEPS - 1):
        observations.append(env.step(actions.random(generator, REFERENCE_ENVS))[0].copy())
    env.close()
    return torch.from_numpy(np.stack(observations))


def make_algorithm(config: TrainConfig, exchange: Exchange) -> Algorithm:
    """Return the algorithm, attached to the exchange. Every rank starts from the same parameters."""
    keep_freed_memory()
    policy = make_policy(config)
    device = torch_device(config.run.device)
    if config.run.device == "cuda":
        make_repeatable(compiles=config.run.compile)
    policy.to(device)
    if config.run.compile:
        compile_network(policy)
    generator = torch.Generator().manual_seed(rank_seed(config.run.seed, exchange.rank))
    context = AlgorithmContext(policy, Precision(config.run.precision), device.type, generator)
    algorithm = algorithm_row(config.run.algorithm).make(context, config.hyper)
    capture = make_capture(config.run.device, enabled=config.run.capture)
    exchange.attach(policy, checked_optimizer(algorithm), config.hyper.max_grad_norm, capture)
    return algorithm


def make_exchange(config: TrainConfig, timer: Timer) -> Exchange:
    """Return the gradient exchange of the config's engine."""
    if config.run.engine != "mpi":
        return LocalExchange(timer)
    exchange = exchange_of_ranks(
        timer,
        gloo=torchrun.launched_by_torchrun(),
        cuda=config.run.device == "cuda",
        timeout_seconds=patience_seconds(config.run.hang_seconds),
        network_interface=config.run.network_interface,
    )
    if config.run.ranks > 1 and exchange.world_size != config.run.ranks:
        raise UsageError(
            f"--ranks {config.run.ranks}, but {exchange.world_size} ranks were started; make them the same, "
            f"e.g. with --ranks {exchange.world_size}"
        )
    return exchange
