"""The settings of a run as frozen dataclasses, the source of the flags and the content of ``config.json``."""

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
from parcade.config.topology import ON_RAY, READ_BY, TopologyConfig
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

SCHEMA_VERSION = 1

WIDEST_LAYER = 1_000_000
# A float32 parameter, its gradient and Adam's two moments.
BYTES_PER_PARAMETER = 16
# Per step of a rollout: action, reward, log-probability, value, version and ends.
BYTES_BESIDE_OBSERVATION = 32

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)\s*(s|m|h)?$")
_SECONDS_PER = {"s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def parse_duration(text: str) -> float:
    """Convert ``90``, ``90s``, ``10m`` or ``1.5h`` to seconds. Errors: UsageError for anything else."""
    match = _DURATION.match(text.strip())
    if match is None:
        raise UsageError(f"time {text!r} is not a duration; expected a number with s, m or h, e.g. 10m")
    return float(match[1]) * _SECONDS_PER[match[2]]


@dataclass(frozen=True)
class RunConfig:
    """How a run is executed."""

    algorithm: str = "ppo"
    """A name from the support matrix, e.g. ppo, dqn or impala."""
    backend: Literal["ale", "native"] = "native"
    """The emulator: ale-py, or parcade's own, with the same games and scores."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the network and its tensors."""
    env_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the consoles. auto selects the CPU, which emulates faster than a GPU at the numbers of
    environments used in training. config.json stores the selected device."""
    capture: bool = True
    """On a GPU, record the kernels of an update and of a decision once and replay them as CUDA graphs."""
    engine: Literal["local", "serial", "mpi", "ray"] = "local"
    """local: one process with threads; serial: the same results without threads and overlap; mpi: several
    ranks; ray: actors, learners and other parts on a Ray cluster."""
    ranks: int = 1
    """Number of ranks (processes) of the mpi engine."""
    hosts: str = ""
    """Host file of the mpi engine, with one line per host: node1 slots=4. Empty uses this host only."""
    network_interface: str = ""
    """Interface, or network such as 10.0.0.0/24, for communication between ranks; empty leaves it to MPI."""
    remote_shell: str = "ssh"
    """Program that runs a command on another host; called with host and command."""
    total_frames: int = 40_000_000
    """Stop after this many emulated frames over all ranks. Schedules span this number of frames."""
    target_score: float | None = None
    """Stop when the mean score of the last 100 episodes reaches this value."""
    time_limit: str = ""
    """Stop after this time, e.g. 90s, 10m, 1.5h; empty sets no limit."""
    hang_timeout: str = "2m"
    """End a job of several ranks when no rank makes progress for this long; 0 disables."""
    seed: int = 0
    """Seed of all random numbers."""
    run_dir: str = ""
    """Directory of the results; empty creates runs/GAME-ALGORITHM-sSEED-TIME."""
    overlap: bool = False
    """Split the environments into two groups: one plays while the learner trains on the other's batch. The
    policy lag is one iteration."""
    threads_per_rank: int = 0
    """Threads for emulation and for the network in each process; 0 divides the cores evenly, -1 keeps the
    default of every library, which is one thread per core in every process."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """Number format of the network's layers. auto selects bfloat16 on a GPU and on CPUs that support it,
    otherwise float32. config.json stores the selected format."""
    compile: bool = False
    """Compile the network with torch.compile, which fuses its layers. Compilation takes about a minute;
    results differ in the last bits."""
    report_seconds: float = 5.0
    """Seconds between reports."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints, the most progress a killed run can lose."""
    keep_checkpoints: int = 3
    """Number of checkpoints to keep; older ones are deleted."""


@dataclass(frozen=True)
class TrainConfig:
    """The complete settings of a run: game, execution, environment, hyper-parameters and topology."""

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
                f"supported combinations:\n{support_matrix()}"
            )
        for name, value in (("total_frames", run.total_frames), ("ranks", run.ranks)):
            if value < 1:
                raise UsageError(f"{name}={value} is below 1; use 1 or more")
        for name, value, least in (("seed", run.seed, 0), ("threads_per_rank", run.threads_per_rank, -1)):
            if value < least:
                raise UsageError(f"{name}={value} is below {least}; use {least} or more")
        if run.target_score is not None and not math.isfinite(run.target_score):
            raise UsageError(
                f"target_score={run.target_score} is not finite; use a finite number, or leave it out"
            )
        if not (run.report_seconds > 0 and run.checkpoint_seconds > 0 and run.keep_checkpoints >= 1):
            raise UsageError(
                f"report_seconds={run.report_seconds}, checkpoint_seconds={run.checkpoint_seconds}, "
                f"keep_checkpoints={run.keep_checkpoints}: expected times above 0 and 1 or more checkpoints"
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
                f"actor_gpus={self.topology.actor_gpus:g}: actors use CPU cores with --device cuda; "
                "leave it out"
            )
        if run.compile and (self.is_topology or row.make.source_kind == "population"):
            raise UsageError(
                f"algorithm {run.algorithm} on engine {run.engine} does not support --compile; leave it out"
            )
        if row.make.source_kind != "rollout" and (self.hyper.network.lstm or run.overlap):
            raise UsageError(
                f"algorithm {run.algorithm} supports neither --lstm nor --overlap; leave them out"
            )
        self._check_hyper()
        if self.env.start_states != "exact" and not (is_atari(self.game) and run.backend == "native"):
            raise UsageError(
                f"start_states={self.env.start_states} needs parcade's own consoles; "
                "use --backend native, or leave it out"
            )
        if self.env.warm_up_steps and not (is_atari(self.game) and run.backend == "native"):
            raise UsageError(
                f"warm_up_steps={self.env.warm_up_steps} needs consoles that can pause individually; "
                "use --backend native, or leave it out"
            )
        if is_atari(self.game):
            if run.backend == "native":
                native.check_switches(load_games()[snake_case(self.game)], self.env)
            else:
                ale.check_settings(self.env)
            # Reject a network that does not fit the observations before anything starts.
            _torso_of_shapes(self)
        if run.time_limit and parse_duration(run.time_limit) <= 0:
            raise UsageError(
                f"time_limit={run.time_limit} leaves no time to train; use e.g. 10m, or leave it out"
            )
        if 0 < self.hang_seconds < 2:
            raise UsageError(f"hang_timeout={run.hang_timeout} is below 2 s; use 2s or more, or 0 to disable")

        if algorithm_row(run.algorithm).topology:
            self._check_parts()
        if self.is_topology:
            self._check_topology()

    def _check_consoles_on_gpu(self) -> None:
        """Reject settings that rule out consoles on a GPU. Whether a GPU exists is checked when a run starts.

        Errors: UsageError.
        """
        run, row = self.run, algorithm_row(self.run.algorithm)
        if run.device != "cuda":
            raise UsageError(
                f"env_device 'cuda' needs the network on a GPU; got device {run.device!r}; use --device cuda"
            )
        if run.backend != "native" or not is_atari(self.game):
            raise UsageError(
                "env_device 'cuda' needs an Atari game on parcade's own consoles; "
                f"got {self.game} on backend {run.backend}; use --backend native, or --env-device cpu"
            )
        if self.is_topology or row.make.source_kind not in ("rollout", "staggered", "replay"):
            raise UsageError(
                f"algorithm {run.algorithm} on engine {run.engine} emulates on the CPU; use --env-device cpu"
            )
        if run.overlap:
            raise UsageError(
                "env_device 'cuda' does not support --overlap, since the GPU both plays and learns; "
                "leave it out, or use --env-device cpu"
            )
        frames = (
            max(
                getattr(self.hyper, "unroll_length", 1), FILL_STEPS if row.make.source_kind == "replay" else 1
            )
            * self.env.frame_skip
        )
        if self.env.frame_limit < frames:
            raise UsageError(
                f"frame_limit={self.env.frame_limit} is shorter than an unroll of {frames} frames; "
                f"use {frames} or more"
            )

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
    def is_bundled(self) -> bool:
        """Whether every learner plays its own environments, without separate actors."""
        return algorithm_row(self.run.algorithm).topology == "bundles" and getattr(
            self.hyper, "bundled", True
        )

    def _check_parts(self) -> None:
        """Reject settings of parts that this run does not have. Errors: UsageError."""
        run, name = self.run, algorithm_row(self.run.algorithm).topology
        apart = name == "bundles" and not self.is_bundled
        read = READ_BY["bundles apart" if apart else name] if self.is_topology else set()
        for setting in self.topology.changed():
            flag = f"--{setting.replace('_', '-')}"
            if setting in ON_RAY and run.engine != "ray":
                raise UsageError(
                    f"{flag} needs engine ray; got engine {run.engine}; use --engine ray, or leave it out"
                )
            if setting not in read | ON_RAY and setting != "num_learners":  # num_learners has its own check
                has = ", ".join(f"--{each.replace('_', '-')}" for each in sorted(read)) or "none of these"
                raise UsageError(
                    f"algorithm {run.algorithm} on engine {run.engine} does not read {flag}; it reads {has}"
                )

    def _check_topology(self) -> None:
        """Reject numbers of parts that do not fit together. Errors: UsageError."""
        row, hyper, players = algorithm_row(self.run.algorithm), self.hyper, self.topology.num_actors
        if self.run.overlap:
            raise UsageError(
                f"algorithm {self.run.algorithm} does not support --overlap, since its parts always overlap; "
                "leave it out"
            )
        if hyper.network.lstm and (row.make.head == "q" or row.topology == "replayed"):
            raise UsageError(f"algorithm {self.run.algorithm} does not support an LSTM; leave out --lstm")
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
                    f"queue_unrolls={self.topology.queue_unrolls} is fewer than the {needed} unrolls of one "
                    f"update; use {needed} or more"
                )

    def _check_hyper(self) -> None:
        """Reject hyper-parameters out of range; a name has the same range in all algorithms.

        Errors: UsageError.
        """
        at_least_one = ("num_envs", "unroll_length", "epochs", "num_minibatches", "games_per_update",
                        "chunk_steps", "num_groups")  # fmt: skip
        at_least_one += ("batch_size", "replay_capacity", "n_step", "target_period", "unrolls_per_update",
                         "games_per_member")  # fmt: skip
        shares = ("gamma", "gae_lambda", "q_lambda", "epsilon_start", "epsilon_end", "rmsprop_decay")
        shares += ("priority_exponent", "importance_exponent")
        above_zero = ("learning_rate", "clip", "max_grad_norm", "epsilon_until", "schedule_share",
                      "target_kl")  # fmt: skip
        above_zero += ("steps_per_update", "rho_clip", "c_clip", "epsilon_base", "sigma")
        not_below_zero = ("final_learning_rate", "value_weight", "entropy_weight", "final_entropy_weight",
                          "weight_decay")  # fmt: skip
        not_below_zero += ("learning_starts", "epsilon_exponent")
        for name, value in vars(self.hyper).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"{name}={value} is not finite; use a finite number")
            if name in not_below_zero and value is not None and value < 0:
                raise UsageError(f"{name}={value} is below 0; use 0 or more")
            if name in at_least_one and value < 1:
                raise UsageError(f"{name}={value} is below 1; use 1 or more")
            if name in shares and not 0 <= value <= 1:
                raise UsageError(f"{name}={value} is not in [0, 1]; use a number from 0 to 1")
            if name in above_zero and value is not None and value <= 0:
                raise UsageError(f"{name}={value} is not above 0; use a positive number")
        if self.hyper.network.hidden < 1 or self.hyper.network.lstm < 0 or self.hyper.network.input_clip <= 0:
            raise UsageError(
                f"hidden={self.hyper.network.hidden}, lstm={self.hyper.network.lstm}, "
                f"input_clip={self.hyper.network.input_clip}: "
                "expected hidden >= 1, lstm >= 0 and input_clip > 0"
            )
        for name, width in (("hidden", self.hyper.network.hidden), ("lstm", self.hyper.network.lstm)):
            if width > WIDEST_LAYER:
                raise UsageError(
                    f"{name}={width:,} is above {WIDEST_LAYER:,}, too large for any memory; use a few hundred"
                )

    @property
    def time_limit_seconds(self) -> float | None:
        """The time limit in seconds; None means no limit."""
        return parse_duration(self.run.time_limit) if self.run.time_limit else None

    @property
    def hang_seconds(self) -> float:
        """The hang timeout in seconds; 0 means no timeout."""
        return parse_duration(self.run.hang_timeout)


def check_device(config: TrainConfig) -> None:
    """Check that this machine has the device, cores for the threads, and memory. Errors: UsageError."""
    check_threads("threads_per_rank", config.run.threads_per_rank)
    if config.run.device == "cpu":
        check_process_memory(config, free_device_memory("cpu"))
    elif config.run.engine != "ray" or not config.topology.address:  # Ray knows the GPUs of its cluster
        check_gpu("device 'cuda'")


def _torso_of_shapes(config: TrainConfig) -> torch.nn.Module:
    """Build the network for an Atari game's observations on the meta device, without allocating memory."""
    with torch.device("meta"):
        return build_torso(
            config.hyper.network.network, config.env.observation_shape, config.hyper.network.hidden
        )


def check_process_memory(config: TrainConfig, there: int) -> None:
    """Reject a network, rollout or minibatch of one process that cannot fit into ``there`` bytes of memory.

    The estimates are lower bounds, so that no run that might fit is rejected. Errors: UsageError.
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
            f"{weights * BYTES_PER_PARAMETER / 2**30:.1f} GiB including the optimiser's state, but only "
            f"{there / 2**30:.1f} GiB of memory are free; use narrower layers"
        )
    if config.is_topology:
        processes = config.num_learners if config.is_bundled else config.topology.num_actors
    else:  # with the user's own launcher, the config does not hold the number of ranks
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
                f"{name}={count:,} needs {count * bytes_each / 2**30:.1f} GiB{of}, but only "
                f"{there / 2**30:.1f} GiB of memory are free; {advice}"
            )


def check_divisible(config: TrainConfig, world_size: int) -> None:
    """Reject sizes that do not divide evenly into ranks, groups and minibatches. Errors: UsageError."""
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
    for name, value, divisor, reason in parts:
        if value % divisor:
            below, above = value // divisor * divisor, (value // divisor + 1) * divisor
            choice = f"{below} or {above}" if below else f"{above}"
            raise UsageError(f"{name}={value} is not divisible by {reason}; use {choice}")


def to_json(config: TrainConfig) -> dict[str, Any]:
    """Convert the config to plain JSON values, with a ``schema_version``."""
    return {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(config)}


def _with_env_device(data: dict[str, Any]) -> dict[str, Any]:
    """Return the run's settings; in files without ``env_device``, native consoles use ``device``."""
    run = data["run"]
    if "env_device" in run:
        return run
    plays = algorithm_row(run["algorithm"]).make.source_kind in ("rollout", "staggered", "replay")
    on_gpu = run["device"] == "cuda" and run["backend"] == "native" and is_atari(data["game"]) and plays
    return {**run, "env_device": "cuda" if on_gpu else "cpu"}


def _with_new_names(env: dict[str, Any]) -> dict[str, Any]:
    """Return the environment's settings, with names from older files replaced."""
    return {RENAMED.get(name, name): value for name, value in env.items()}


def _network_of(data: dict[str, Any]) -> dict[str, Any]:
    """Return the network's settings; in files without ``observations``, auto is an MLP for colour."""
    network = data["hyper"]["network"]
    return (
        {**network, "network": "mlp"}
        if data["env"].get("view") == "rgb" and network["network"] == "auto"
        else network
    )


def from_json(data: dict[str, Any]) -> TrainConfig:
    """Convert JSON values back to a config. Errors: UsageError naming the mismatch."""
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
