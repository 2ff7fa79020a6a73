"""Everything that decides a run, in frozen dataclasses: what the flags are made from and what ``config.json`` holds."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from parcade.algorithms.base import AlgorithmConfig
from parcade.algorithms.ppo import PPOConfig
from parcade.algorithms.table import algorithm_row, support_matrix
from parcade.atari.games import load_games, snake_case
from parcade.devices import check_gpu, free_device_memory, torch_device
from parcade.envs import ale, native
from parcade.envs.games import canonical_game, is_atari, settings_of_id
from parcade.envs.settings import RENAMED, EnvSettings
from parcade.errors import UsageError
from parcade.experience.replay import FILL_STEPS
from parcade.networks import build_torso
from parcade.policy import NetworkConfig
from parcade.precision import resolve
from parcade.threads import check_threads
from parcade.topology.settings import ON_RAY, READ_BY, TopologyConfig

SCHEMA_VERSION = 1

WIDEST_LAYER = 1_000_000
# A float32, its gradient and the two averages of Adam.
BYTES_PER_PARAMETER = 16
# Of a step in a rollout: action, reward, log-probability, value, version and ends.
BYTES_BESIDE_OBSERVATION = 32

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)\s*(s|m|h)?$")
_SECONDS_PER = {"s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def parse_duration(text: str) -> float:
    """Seconds in ``90``, ``90s``, ``10m`` or ``1.5h``. Errors: UsageError for anything else."""
    match = _DURATION.match(text.strip())
    if match is None:
        raise UsageError(f"time {text!r} is not a duration; expected a number with s, m or h, e.g. 10m")
    return float(match[1]) * _SECONDS_PER[match[2]]


@dataclass(frozen=True)
class RunConfig:
    """How a run is carried out."""

    algorithm: str = "ppo"
    """A name of the support matrix, e.g. ppo, dqn or impala."""
    backend: Literal["ale", "native"] = "native"
    """Who emulates the console: ale-py, or parcade's own, with the same games and scores."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the network and its tensors live."""
    env_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the consoles live; auto: on the CPU, which emulates faster than the GPU at the sizes that training takes. The
    run keeps what was chosen."""
    capture: bool = True
    """On a GPU, record the kernels of an update and of a decision once and replay them as CUDA graphs."""
    engine: Literal["local", "serial", "mpi", "ray"] = "local"
    """local: one process with threads; serial: the same results with neither threads nor overlap; mpi: many ranks;
    ray: parts on a cluster."""
    ranks: int = 1
    """Processes of the mpi engine."""
    hosts: str = ""
    """A host file for the mpi engine, a line a host: node1 slots=4; empty is this host alone."""
    network_interface: str = ""
    """What ranks talk over: an interface, or a network such as 10.0.0.0/24; empty leaves it to MPI."""
    remote_shell: str = "ssh"
    """What starts a command on another host; called with host and command."""
    total_frames: int = 40_000_000
    """Stop after this many emulated frames over all ranks; schedules run over it."""
    target_score: float | None = None
    """Stop when the mean score of the last 100 games reaches this."""
    time_limit: str = ""
    """Stop after this time, e.g. 90s, 10m, 1.5h."""
    hang_timeout: str = "2m"
    """End a job of several ranks when none of them gets on for this long; 0 never."""
    seed: int = 0
    """Everything random follows from it."""
    run_dir: str = ""
    """Where results go; empty makes runs/GAME-ALGORITHM-SEED-TIME."""
    overlap: bool = False
    """Two groups of environments: one plays while the other is learned from, the policy's lag one iteration."""
    threads_per_rank: int = 0
    """Threads for emulation and for the network in each process; 0 shares the cores out evenly, -1 leaves every library
    its own default, which is a thread a core in every process."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """What the network computes in; auto: bfloat16 where the CPU has it, else float32. The run keeps what was chosen."""
    compile: bool = False
    """Compile the network with torch.compile, which fuses its layers; takes about a minute first, changes last bits."""
    report_seconds: float = 5.0
    """Time between reports."""
    checkpoint_seconds: float = 60.0
    """Time between checkpoints: what a kill can cost at most."""
    keep_checkpoints: int = 3
    """Older ones are deleted."""


@dataclass(frozen=True)
class TrainConfig:
    """A whole run: the game, how it is carried out, what the agent sees, and the algorithm's hyper-parameters."""

    game: str
    run: RunConfig = field(default_factory=RunConfig)
    env: EnvSettings = field(default_factory=EnvSettings)
    hyper: AlgorithmConfig = field(default_factory=PPOConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)

    def __post_init__(self) -> None:
        if self.env == EnvSettings():
            object.__setattr__(self, "env", dataclasses.replace(self.env, **settings_of_id(self.game)))
        object.__setattr__(self, "game", canonical_game(self.game))
        chosen = {"precision": resolve(self.run.precision, self.run.device)}
        if self.run.env_device == "auto":
            chosen["env_device"] = "cpu"
        object.__setattr__(self, "run", dataclasses.replace(self.run, **chosen))
        run, row = self.run, algorithm_row(self.run.algorithm)
        if not isinstance(self.hyper, row.config):
            raise UsageError(
                f"algorithm {run.algorithm} takes {row.config.__name__}, got {type(self.hyper).__name__}; "
                "use the hyper-parameters of the algorithm"
            )
        if run.engine not in row.engines:
            raise UsageError(
                f"algorithm {run.algorithm} runs on engines {', '.join(row.engines)}; got {run.engine}; "
                f"this is what there is:\n{support_matrix()}"
            )
        for name, value in (("total_frames", run.total_frames), ("ranks", run.ranks)):
            if value < 1:
                raise UsageError(f"{name}={value} is below 1; use 1 or more")
        for name, value, least in (("seed", run.seed, 0), ("threads_per_rank", run.threads_per_rank, -1)):
            if value < least:
                raise UsageError(f"{name}={value} is below {least}; use {least} or more")
        if run.target_score is not None and not math.isfinite(run.target_score):
            raise UsageError(
                f"target_score={run.target_score} is not a finite number; use one that is, or leave it out"
            )
        if not (run.report_seconds > 0 and run.checkpoint_seconds > 0 and run.keep_checkpoints >= 1):
            raise UsageError(
                f"report_seconds={run.report_seconds}, checkpoint_seconds={run.checkpoint_seconds}, "
                f"keep_checkpoints={run.keep_checkpoints}: expected times above 0 and 1 checkpoint or more"
            )
        if run.ranks > 1 and run.engine != "mpi":
            raise UsageError(f"ranks={run.ranks} needs --engine mpi; engine {run.engine} is one process")
        if (run.hosts or run.network_interface) and run.engine != "mpi":
            raise UsageError(
                f"hosts and network_interface are for --engine mpi; engine {run.engine} is one process"
            )
        if run.env_device == "cuda":
            self._check_consoles_on_gpu()
        if self.is_topology and run.device == "cuda" and self.topology.actor_gpus:
            raise UsageError(
                f"actor_gpus={self.topology.actor_gpus:g}: actors act on CPU cores with --device cuda; leave it out"
            )
        if run.compile and (self.is_topology or row.make.source_kind == "population"):
            raise UsageError(
                f"algorithm {run.algorithm} on engine {run.engine} takes no --compile; leave it out"
            )
        if row.make.source_kind != "rollout" and (self.hyper.network.lstm or run.overlap):
            raise UsageError(f"algorithm {run.algorithm} takes neither --lstm nor --overlap; leave them out")
        self._check_hyper()
        if self.env.start_states != "exact" and not (is_atari(self.game) and run.backend == "native"):
            raise UsageError(
                f"start_states={self.env.start_states} is for parcade's own consoles; use --backend native, or leave it out"
            )
        if self.env.warm_up_steps and not (is_atari(self.game) and run.backend == "native"):
            raise UsageError(
                f"warm_up_steps={self.env.warm_up_steps} needs consoles that rest singly; use --backend native, or leave it out"
            )
        if is_atari(self.game):
            if run.backend == "native":
                native.check_switches(load_games()[snake_case(self.game)], self.env)
            else:
                ale.check_settings(self.env)
            _torso_of_shapes(
                self
            )  # a network that does not fit the observations is refused before anything starts
        if run.time_limit and parse_duration(run.time_limit) <= 0:
            raise UsageError(
                f"time_limit={run.time_limit} leaves no time to train; use e.g. 10m, or leave it out for none"
            )
        if 0 < self.hang_seconds < 2:
            raise UsageError(f"hang_timeout={run.hang_timeout} is below 2 s; use 2s or more, or 0 for never")

        if algorithm_row(run.algorithm).topology:
            self._check_parts()
        if self.is_topology:
            self._check_topology()

    def _check_consoles_on_gpu(self) -> None:
        """Refuse consoles on a GPU where they cannot be. Whether there is a GPU is asked when a run starts. Errors: UsageError."""
        run, row = self.run, algorithm_row(self.run.algorithm)
        if run.device != "cuda":
            raise UsageError(
                f"env_device 'cuda' needs the network there too; got device {run.device!r}; use --device cuda"
            )
        if run.backend != "native" or not is_atari(self.game):
            raise UsageError(
                f"env_device 'cuda' is for Atari games on parcade's own consoles; got {self.game} on backend {run.backend}; "
                "use --backend native, or --env-device cpu"
            )
        if self.is_topology or row.make.source_kind not in ("rollout", "staggered", "replay"):
            raise UsageError(
                f"algorithm {run.algorithm} on engine {run.engine} plays on CPU cores; use --env-device cpu"
            )
        if run.overlap:
            raise UsageError(
                "env_device 'cuda' takes no --overlap: the GPU both plays and learns; leave it out, or use --env-device cpu"
            )
        frames = (
            max(
                getattr(self.hyper, "unroll_length", 1), FILL_STEPS if row.make.source_kind == "replay" else 1
            )
            * self.env.frame_skip
        )
        if self.env.frame_limit < frames:
            raise UsageError(
                f"frame_limit={self.env.frame_limit} is shorter than an unroll of {frames} frames; use {frames} or more"
            )

    @property
    def consoles_on_device(self) -> bool:
        """Whether the consoles too run on the GPU, so that a rollout never leaves it."""
        return self.run.env_device == "cuda"

    @property
    def learner_gpus(self) -> float:
        """GPUs that each learner of a system of parts reserves: as asked for, or one where the network lives on one."""
        return self.topology.learner_gpus or (1.0 if torch_device(self.run.device).type == "cuda" else 0.0)

    def on_host(self) -> TrainConfig:
        """The same run for a part that stays on CPU cores, whatever the learners compute on."""
        return dataclasses.replace(self, run=dataclasses.replace(self.run, device="cpu"))

    @property
    def is_topology(self) -> bool:
        """Whether the run has parts that a driver of ``parcade.topology`` calls, instead of one loop on every rank."""
        row = algorithm_row(self.run.algorithm)
        return bool(row.topology) and (self.run.engine == "ray" or "local" not in row.engines)

    @property
    def num_learners(self) -> int:
        """Learners: as asked for, or 2 where each plays for itself and 1 elsewhere."""
        return self.topology.num_learners or (2 if self.is_bundled else 1)

    @property
    def is_bundled(self) -> bool:
        """Whether learners play for themselves."""
        return algorithm_row(self.run.algorithm).topology == "bundles" and getattr(
            self.hyper, "bundled", True
        )

    def _check_parts(self) -> None:
        """Refuse settings of parts that this run does not have. Errors: UsageError."""
        run, name = self.run, algorithm_row(self.run.algorithm).topology
        apart = name == "bundles" and not self.is_bundled
        read = READ_BY["bundles apart" if apart else name] if self.is_topology else set()
        for setting in self.topology.changed():
            flag = f"--{setting.replace('_', '-')}"
            if setting in ON_RAY and run.engine != "ray":
                raise UsageError(
                    f"{flag} is for engine ray; got engine {run.engine}; use --engine ray, or leave it out"
                )
            if setting not in read | ON_RAY and setting != "num_learners":  # which has a line of its own
                has = ", ".join(f"--{each.replace('_', '-')}" for each in sorted(read)) or "none of these"
                raise UsageError(
                    f"algorithm {run.algorithm} on engine {run.engine} does not read {flag}; it has {has}"
                )

    def _check_topology(self) -> None:
        """Refuse counts that do not fit one another. Errors: UsageError."""
        row, hyper, players = algorithm_row(self.run.algorithm), self.hyper, self.topology.num_actors
        if self.run.overlap:
            raise UsageError(
                f"algorithm {self.run.algorithm} takes no --overlap: its parts overlap by themselves"
            )
        if hyper.network.lstm and (row.make.head == "q" or row.topology == "replayed"):
            raise UsageError(f"algorithm {self.run.algorithm} has no form with an LSTM; leave out --lstm")
        if self.is_bundled:
            players = self.num_learners
        if hyper.num_envs % players:
            what = "num_learners" if self.is_bundled else "num_actors"
            below, above = hyper.num_envs // players * players, (hyper.num_envs // players + 1) * players
            choice = f"{below} or {above}" if below else f"{above}"
            raise UsageError(f"num_envs={hyper.num_envs} is not divisible by {what}={players}; use {choice}")
        if row.topology in ("replayed", "predicted", "population") and self.num_learners > 1:
            raise UsageError(
                f"algorithm {self.run.algorithm} has one learner; got num_learners={self.num_learners}"
            )
        if row.topology == "unrolls":
            needed = hyper.unrolls_per_update * self.num_learners
            if 0 < self.topology.queue_unrolls < needed:
                raise UsageError(
                    f"queue_unrolls={self.topology.queue_unrolls} is fewer than the {needed} unrolls of one update; "
                    f"use {needed} or more"
                )

    def _check_hyper(self) -> None:
        """Refuse hyper-parameters that mean nothing, whatever the algorithm: each name has one range."""
        at_least_one = (
            "num_envs",
            "unroll_length",
            "epochs",
            "num_minibatches",
            "games_per_update",
            "chunk_steps",
            "num_groups",
        )
        at_least_one += (
            "batch_size",
            "replay_capacity",
            "n_step",
            "target_period",
            "unrolls_per_update",
            "games_per_member",
        )
        shares = ("gamma", "gae_lambda", "q_lambda", "epsilon_start", "epsilon_end", "rmsprop_decay")
        shares += ("priority_exponent", "importance_exponent")
        above_zero = (
            "learning_rate",
            "clip",
            "max_grad_norm",
            "epsilon_until",
            "schedule_share",
            "target_kl",
        )
        above_zero += ("steps_per_update", "rho_clip", "c_clip", "epsilon_base", "sigma")
        not_below_zero = (
            "final_learning_rate",
            "value_weight",
            "entropy_weight",
            "final_entropy_weight",
            "weight_decay",
        )
        not_below_zero += ("learning_starts", "epsilon_exponent")
        for name, value in vars(self.hyper).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"{name}={value} is not a finite number; use one that is")
            if name in not_below_zero and value is not None and value < 0:
                raise UsageError(f"{name}={value} is below 0; use 0 or more")
            if name in at_least_one and value < 1:
                raise UsageError(f"{name}={value} is below 1; use 1 or more")
            if name in shares and not 0 <= value <= 1:
                raise UsageError(f"{name}={value} is not in [0, 1]; use a number between them")
            if name in above_zero and value is not None and value <= 0:
                raise UsageError(f"{name}={value} is not above 0; use a positive number")
        if self.hyper.network.hidden < 1 or self.hyper.network.lstm < 0 or self.hyper.network.input_clip <= 0:
            raise UsageError(
                f"hidden={self.hyper.network.hidden}, lstm={self.hyper.network.lstm}, "
                f"input_clip={self.hyper.network.input_clip}: expected hidden >= 1, lstm >= 0 and input_clip > 0"
            )
        for name, width in (("hidden", self.hyper.network.hidden), ("lstm", self.hyper.network.lstm)):
            if width > WIDEST_LAYER:
                raise UsageError(
                    f"{name}={width:,} is above {WIDEST_LAYER:,}, which no memory holds; use a few hundred"
                )

    @property
    def time_limit_seconds(self) -> float | None:
        """The time limit in seconds, None without one."""
        return parse_duration(self.run.time_limit) if self.run.time_limit else None

    @property
    def hang_seconds(self) -> float:
        """How long no rank may make progress, in seconds; 0: for ever."""
        return parse_duration(self.run.hang_timeout)


def check_device(config: TrainConfig) -> None:
    """Refuse what this machine does not have: the device, cores for the threads, or memory. Errors: UsageError."""
    check_threads("threads_per_rank", config.run.threads_per_rank)
    if config.run.device == "cpu":
        check_process_memory(config, free_device_memory("cpu"))
    elif (
        config.run.engine != "ray" or not config.topology.address
    ):  # of a cluster that is joined Ray knows the GPUs
        check_gpu("device 'cuda'")


def _torso_of_shapes(config: TrainConfig) -> torch.nn.Module:
    """The network's body for the observations of an Atari game, without the memory of its parameters."""
    with torch.device("meta"):
        return build_torso(
            config.hyper.network.network, config.env.observation_shape, config.hyper.network.hidden
        )


def check_process_memory(config: TrainConfig, there: int) -> None:
    """Refuse a network, a rollout or a minibatch of one process that cannot fit into the bytes that are there.

    What is counted is the least that each takes, so that nothing is refused that might run. Errors: UsageError.
    """
    hyper, network = config.hyper, config.hyper.network
    is_console = is_atari(config.game)
    hidden = network.hidden
    weights = hidden * hidden if network.network in ("mlp", "auto") else hidden
    if is_console:
        weights = sum(parameter.numel() for parameter in _torso_of_shapes(config).parameters())
    weights += 4 * network.lstm * (hidden + network.lstm)
    if weights * BYTES_PER_PARAMETER > there:
        raise UsageError(
            f"hidden={hidden:,}, lstm={network.lstm:,}: the network's {weights:,} parameters need "
            f"{weights * BYTES_PER_PARAMETER / 2**30:.1f} GiB with their optimiser, but {there / 2**30:.1f} GiB of memory are free; "
            "use narrower layers"
        )
    if config.is_topology:
        processes = config.num_learners if config.is_bundled else config.topology.num_actors
    else:  # under a user's own launcher the config does not say how many ranks share the environments
        processes = (
            hyper.num_envs if config.run.engine == "mpi" and config.run.ranks == 1 else config.run.ranks
        )
    num_envs = max(1, hyper.num_envs // processes)
    observed = math.prod(config.env.observation_shape) if is_console else 0
    for name, each, of in (
        ("unroll_length", num_envs, f" for the {num_envs:,} environment(s) of a process"),
        ("batch_size", 1, ""),
    ):
        count, bytes_each = getattr(hyper, name, 0), each * (observed + BYTES_BESIDE_OBSERVATION)
        if count * bytes_each > there:
            fits = there // 2 // bytes_each
            advice = (
                f"use {fits:,} or fewer"
                if fits
                else f"use {there // 2 // (bytes_each // each) // count:,} or fewer environments"
            )
            raise UsageError(
                f"{name}={count:,} needs {count * bytes_each / 2**30:.1f} GiB{of}, but {there / 2**30:.1f} GiB of memory are free; {advice}"
            )


def check_divisible(config: TrainConfig, world_size: int) -> None:
    """Refuse sizes that do not share out evenly over ranks, groups and minibatches, before anything starts."""
    hyper = config.hyper
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
                f"learning_starts={hyper.learning_starts} is more than half of replay_capacity={hyper.replay_capacity}; "
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
    for name, value, divisor, reason in parts:
        if value % divisor:
            below, above = value // divisor * divisor, (value // divisor + 1) * divisor
            choice = f"{below} or {above}" if below else f"{above}"
            raise UsageError(f"{name}={value} is not divisible by {reason}; use {choice}")


def to_json(config: TrainConfig) -> dict[str, Any]:
    """The config as plain JSON values, with a ``schema_version``."""
    return {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(config)}


def _with_env_device(data: dict[str, Any]) -> dict[str, Any]:
    """The run's settings; in files of before there was ``env_device`` native consoles lived where the network did."""
    run = data["run"]
    if "env_device" in run:
        return run
    plays = algorithm_row(run["algorithm"]).make.source_kind in ("rollout", "staggered", "replay")
    on_gpu = run["device"] == "cuda" and run["backend"] == "native" and is_atari(data["game"]) and plays
    return {**run, "env_device": "cuda" if on_gpu else "cpu"}


def _with_new_names(env: dict[str, Any]) -> dict[str, Any]:
    """The environment's settings; in older files some have the names they had then."""
    return {RENAMED.get(name, name): value for name, value in env.items()}


def _network_of(data: dict[str, Any]) -> dict[str, Any]:
    """The network's settings; in files of before there was ``observations`` auto took an MLP for pictures in colour."""
    network = data["hyper"]["network"]
    return (
        {**network, "network": "mlp"}
        if data["env"].get("view") == "rgb" and network["network"] == "auto"
        else network
    )


def from_json(data: dict[str, Any]) -> TrainConfig:
    """The inverse of ``to_json``. Errors: UsageError naming what does not fit."""
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"config.json has schema_version {version!r}, expected {SCHEMA_VERSION}; "
            "it was written by another version of parcade; use that version"
        )
    try:
        run = RunConfig(**_with_env_device(data))
        env = EnvSettings(
            **{**_with_new_names(data["env"]), "action_subset": tuple(data["env"]["action_subset"])}
        )
        hyper = {**data["hyper"], "network": NetworkConfig(**_network_of(data))}
        topology = TopologyConfig(**data.get("topology", {}))
        return TrainConfig(data["game"], run, env, algorithm_row(run.algorithm).config(**hyper), topology)
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"config.json does not fit this version of parcade: {error}; use the version that wrote it"
        ) from error
