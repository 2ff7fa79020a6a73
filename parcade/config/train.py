"""``TrainConfig``: everything that decides a run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch

from parcade.algorithms.base import AlgorithmConfig
from parcade.algorithms.ppo import PPOConfig
from parcade.algorithms.table import ALGORITHMS, algorithm_row, support_matrix
from parcade.config.run import RunConfig
from parcade.config.topology import ON_RAY, TOPOLOGIES, TopologyConfig
from parcade.envs.backends import backend_row, check_supported
from parcade.envs.games import canonical_game, is_atari, settings_of_id
from parcade.envs.make import action_space, refuse_on_gpu
from parcade.envs.settings import EnvSettings, refuse_settings_of_consoles
from parcade.errors import UsageError, check_divides
from parcade.experience.replay import FILL_STEPS
from parcade.machine.devices import torch_device
from parcade.model.actions import BoxActions, actions_of
from parcade.model.networks import build_torso, check_network
from parcade.model.precision import resolve
from parcade.ranges import check_ranges

NOT_GIVEN = EnvSettings()
"""Told from equal settings by identity."""


@dataclass(frozen=True)
class TrainConfig:
    """The complete settings of a run: game, execution, environment, hyper-parameters and topology.

    Defaults that depend on the machine or the game are resolved here. Errors: UsageError for settings that do
    not go together; each part has already checked its own.
    """

    game: str
    run: RunConfig = field(default_factory=RunConfig)
    env: EnvSettings = NOT_GIVEN
    """By default the rules of the game's id, e.g. ALE/Pong-v5. Given settings are taken as they are."""
    hyper: AlgorithmConfig = field(default_factory=PPOConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.env is NOT_GIVEN:
            object.__setattr__(self, "env", dataclasses.replace(self.env, **settings_of_id(self.game)))
        object.__setattr__(self, "game", canonical_game(self.game))
        chosen: dict[str, Any] = {"precision": resolve(self.run.precision, self.run.device)}
        if self.run.env_device == "auto":
            chosen["env_device"] = "cpu"
        object.__setattr__(self, "run", dataclasses.replace(self.run, **chosen))
        check_compatible(self)

    @property
    def consoles_on_device(self) -> bool:
        """Whether the consoles also run on the GPU, so that rollouts never leave it."""
        return self.run.env_device == "cuda"

    @property
    def learner_gpus(self) -> float:
        """GPUs reserved per learner of a topology: as set, or 1 with the network on a GPU, otherwise 0."""
        return self.topology.learner_gpus or (1.0 if torch_device(self.run.device).type == "cuda" else 0.0)

    def on_host(self) -> TrainConfig:
        """Return the config with device ``cpu``, for parts that always use CPU cores."""
        return dataclasses.replace(self, run=dataclasses.replace(self.run, device="cpu"))

    @property
    def is_topology(self) -> bool:
        """Whether the run has parts called by a driver in ``parcade.topology``, not one loop per rank."""
        row = algorithm_row(self.run.algorithm)
        return bool(row.topology) and (self.run.engine == "ray" or "local" not in row.engines)

    @property
    def num_learners(self) -> int:
        """Number of learners: as set, or by default 2 if learners play themselves and 1 otherwise."""
        return self.topology.num_learners or (2 if self.is_bundled else 1)

    @property
    def part_counts(self) -> dict[str, int]:
        """How many parts of each kind the topology of a run has; shards hold parameters or replays."""
        t, reads = self.topology, TOPOLOGIES[self.topology_name].reads
        shards = {"num_shards": t.num_shards, "num_replay_shards": t.num_replay_shards}
        return {
            "actor": t.num_actors if "num_actors" in reads else 0,
            "learner": self.num_learners,
            "shard": sum(count for name, count in shards.items() if name in reads),
        }

    @property
    def is_bundled(self) -> bool:
        """Whether every learner plays its own environments, without separate actors."""
        return self.topology_name == "bundles"

    @property
    def topology_name(self) -> str:
        """The row of ``TOPOLOGIES`` that the algorithm's parts form; empty without parts."""
        name = algorithm_row(self.run.algorithm).topology
        return "bundles apart" if name == "bundles" and not getattr(self.hyper, "bundled", True) else name


def check_compatible(config: TrainConfig) -> None:
    """Refuse settings that do not go together, before anything starts. Errors: UsageError."""
    _check_algorithm(config)
    _check_environments(config)
    if config.run.env_device == "cuda":
        _check_consoles_on_gpu(config)
    if config.topology_name:
        _check_parts(config)
    if config.is_topology:
        _check_topology(config)


def _check_algorithm(config: TrainConfig) -> None:
    """Refuse what the algorithm does not support. Errors: UsageError."""
    run, row = config.run, algorithm_row(config.run.algorithm)
    check_network(config.hyper.network.network)
    if not isinstance(config.hyper, row.config):
        raise UsageError(
            f"algorithm {run.algorithm} takes {row.config.__name__}, got {type(config.hyper).__name__}; "
            "use the hyper-parameters of the algorithm"
        )
    if run.engine not in row.engines:
        raise UsageError(
            f"algorithm {run.algorithm} runs on engines {', '.join(row.engines)}; got {run.engine}; "
            f"supported combinations:\n{support_matrix()}"
        )
    if run.compile and (config.is_topology or row.make.source_kind == "population"):
        raise UsageError(
            f"algorithm {run.algorithm} on engine {run.engine} does not support --compile; leave it out"
        )
    if config.hyper.network.network == "karpathy_mlp" and row.make.needs_critic:
        raise UsageError(
            f"network karpathy_mlp has no critic, which algorithm {run.algorithm} learns from; "
            "use --network mlp, or algorithm reinforce"
        )
    if config.hyper.network.network == "impala_btr" and row.make.source_kind == "games":
        raise UsageError(
            "network impala_btr changes with every pass that learns, and the ranks and --chunk-steps set how "
            f"many passes algorithm {run.algorithm} makes; use --network impala_resnet"
        )
    if config.hyper.network.value_head != "mean" and not row.make.distributional:
        able = ", ".join(name for name, row in ALGORITHMS.items() if row.make.distributional)
        raise UsageError(
            f"algorithm {run.algorithm} does not learn with value_head {config.hyper.network.value_head}; "
            f"use --value-head mean, or one of {able}"
        )
    if config.hyper.network.dueling and row.make.head != "q":
        raise UsageError(f"algorithm {run.algorithm} has no Q values for --dueling; use --no-dueling")
    if run.overlap and getattr(config.hyper, "burn_in", False):
        raise UsageError(
            "--burn-in follows one group of environments, and --overlap plays two in turn; "
            "leave one of them out"
        )
    if row.make.source_kind != "rollout" and (config.hyper.network.lstm or run.overlap):
        raise UsageError(f"algorithm {run.algorithm} supports neither --lstm nor --overlap; leave them out")


def _check_environments(config: TrainConfig) -> None:
    """Refuse environment settings that the game's backend does not support. Errors: UsageError."""
    backend_row(config.run.backend)
    check_supported(config.run.backend, config.game, config.env)
    if is_atari(config.game):
        torso_of_shapes(config)  # a network that does not fit the observations
        if config.env.continuous_actions:
            _check_learns_continuous(config, "continuous_actions")
        return
    refuse_settings_of_consoles(config.game, config.env)
    space = action_space(config.game)
    if isinstance(actions_of(space), BoxActions):
        _check_learns_continuous(config, str(space))


def _check_learns_continuous(config: TrainConfig, actions: str) -> None:
    """Check that the algorithm learns continuous actions, here named. Errors: UsageError."""
    if not algorithm_row(config.run.algorithm).make.continuous:
        able = ", ".join(name for name, row in ALGORITHMS.items() if row.make.continuous)
        raise UsageError(
            f"algorithm {config.run.algorithm} needs Discrete actions; {config.game} has {actions}; "
            f"use one of {able}"
        )


def torso_of_shapes(config: TrainConfig) -> torch.nn.Module:
    """Build the network for an Atari game's observations on the meta device, without allocating memory."""
    with torch.device("meta"):
        return build_torso(config.hyper.network, config.env.observation_shape)


def _check_consoles_on_gpu(config: TrainConfig) -> None:
    """Refuse settings that rule out consoles on a GPU. A run checks for the GPU itself when it starts."""
    run, source_kind = config.run, algorithm_row(config.run.algorithm).make.source_kind
    if run.device != "cuda":
        raise UsageError(
            f"env_device 'cuda' needs the network on a GPU; got device {run.device!r}; use --device cuda"
        )
    if "cuda" not in backend_row(run.backend).supports or not is_atari(config.game):
        raise UsageError(
            "env_device 'cuda' needs an Atari game on parcade's own consoles; "
            f"got {config.game} on backend {run.backend}; use --backend native, or --env-device cpu"
        )
    refuse_on_gpu(config.env)
    if config.is_topology or source_kind not in ("rollout", "staggered", "replay"):
        raise UsageError(
            f"algorithm {run.algorithm} on engine {run.engine} emulates on the CPU; use --env-device cpu"
        )
    if run.overlap:
        raise UsageError(
            "env_device 'cuda' does not support --overlap, since the GPU both plays and learns; "
            "leave it out, or use --env-device cpu"
        )
    steps = max(getattr(config.hyper, "unroll_length", 1), FILL_STEPS if source_kind == "replay" else 1)
    frames = steps * config.env.frame_skip
    if config.env.frame_limit < frames:
        raise UsageError(
            f"frame_limit={config.env.frame_limit} is shorter than an unroll of {frames} frames; "
            f"use {frames} or more"
        )


def _check_parts(config: TrainConfig) -> None:
    """Refuse settings of parts that this run does not have. Errors: UsageError."""
    run = config.run
    read = TOPOLOGIES[config.topology_name].reads if config.is_topology else frozenset()
    for setting in config.topology.changed():
        flag = f"--{setting.replace('_', '-')}"
        if setting in ON_RAY and run.engine != "ray":
            raise UsageError(
                f"{flag} needs engine ray; got engine {run.engine}; use --engine ray, or leave it out"
            )
        if setting not in read.union(ON_RAY) and setting != "num_learners":  # num_learners has its own check
            has = ", ".join(f"--{each.replace('_', '-')}" for each in sorted(read)) or "none of these"
            raise UsageError(
                f"algorithm {run.algorithm} on engine {run.engine} does not read {flag}; it reads {has}"
            )


def _check_topology(config: TrainConfig) -> None:
    """Refuse numbers of parts that do not fit together. Errors: UsageError."""
    run, hyper, topology = config.run, config.hyper, config.topology
    if run.device == "cuda" and topology.actor_gpus:
        raise UsageError(
            f"actor_gpus={topology.actor_gpus:g}: actors use CPU cores with --device cuda; leave it out"
        )
    for name in ("actor_gpus", "learner_gpus"):
        gpus = getattr(topology, name)
        if gpus > 1 and gpus != int(gpus):
            raise UsageError(
                f"{name}={gpus:g}: Ray reserves a share of one GPU or whole GPUs; "
                f"use {int(gpus)} or {int(gpus) + 1}"
            )
    if run.overlap:
        raise UsageError(
            f"algorithm {run.algorithm} does not support --overlap, since its parts always overlap; "
            "leave it out"
        )
    if hyper.network.lstm and algorithm_row(run.algorithm).make.head == "q":
        raise UsageError(f"algorithm {run.algorithm} does not support an LSTM; leave out --lstm")
    what = "num_learners" if config.is_bundled else "num_actors"
    players = config.num_learners if config.is_bundled else topology.num_actors
    check_divides("num_envs", hyper.num_envs, players, f"{what}={players}")
    if TOPOLOGIES[config.topology_name].has_one_learner and config.num_learners > 1:
        raise UsageError(f"algorithm {run.algorithm} has one learner; got num_learners={config.num_learners}")
    needed = getattr(hyper, "unrolls_per_update", 0) * config.num_learners
    if 0 < topology.queue_unrolls < needed:
        raise UsageError(
            f"queue_unrolls={topology.queue_unrolls} is fewer than the {needed} unrolls of one update; "
            f"use {needed} or more"
        )
