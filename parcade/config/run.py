"""How a run is executed: engine, devices, budgets and reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from parcade.durations import parse_duration
from parcade.errors import UsageError, unknown_name
from parcade.machine.threads import UNMANAGED
from parcade.ranges import Count, Natural, Positive, Range, Seed, check_ranges

SHORTEST_HANG_SECONDS = 2
Tracker = Literal["tensorboard", "wandb", "none"]


@dataclass(frozen=True)
class RunConfig:
    """How a run is executed."""

    algorithm: str = "ppo"
    """One of ppo, a2c, pqn, dqn, vtrace, reinforce, es, impala, a3c, ga3c, apex, gorila, async-q, or a
    plugin's."""
    backend: str = "native"
    """The emulator: native is parcade's own, ale is ale-py, with the same games and scores; or a plugin's."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the network and its tensors."""
    env_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the consoles. auto selects the CPU; on a large GPU, cuda can be faster from a few hundred
    environments on (docs/gpu.md). config.json stores the selected device."""
    capture: bool = True
    """On a GPU, record the kernels of an update and of a decision once and replay them as CUDA graphs."""
    engine: Literal["local", "serial", "mpi", "ray"] = "local"
    """local: one process with threads; serial: the same results without threads and overlap; mpi: several
    ranks; ray: actors, learners and other parts on a Ray cluster."""
    ranks: Count = 1
    """Number of ranks (processes) of the mpi engine."""
    hosts: str = ""
    """Host file of the mpi engine, with one line per host: node1 slots=4. Empty uses this host only."""
    network_interface: str = ""
    """Interface, or network such as 10.0.0.0/24, for communication between ranks; empty leaves it to MPI."""
    remote_shell: str = "ssh"
    """Program that runs a command on another host; called with host and command."""
    from_agent: str = ""
    """Start with the weights of this trained agent, a run's directory or zoo:NAME, and take its settings of
    environment, network and algorithm as defaults. Short form: --from. Empty draws weights from the seed."""
    total_frames: Count = 40_000_000
    """Stop after this many emulated frames over all ranks, at the end of the iteration that reaches them; the
    first iteration fills a replay up to --learning-starts. Schedules span this number of frames."""
    target_score: float | None = None
    """Stop when the mean score of the last 100 episodes reaches this value."""
    time_limit: str = ""
    """Stop after this time, e.g. 90s, 10m, 1.5h; empty sets no limit. Time counts from the start of the
    process, over all resumes; the current iteration is completed."""
    hang_timeout: str = "2m"
    """End a job of several ranks when no rank makes progress for this long; 0 disables."""
    seed: Seed = 0
    """Seed of all random numbers."""
    run_dir: str = ""
    """Directory of the results; empty creates runs/GAME-ALGORITHM-sSEED-TIME."""
    overlap: bool = False
    """Split the environments into two groups: one plays while the learner trains on the other's batch. The
    policy lag is one iteration."""
    threads_per_rank: Annotated[int, Range(UNMANAGED)] = 0
    """Threads for emulation and for the network in each process; 0 divides the cores evenly, -1 keeps the
    default of every library, which is one thread per core in every process. Of parts on Ray, only learners
    have several; for them, 0 is as many as --learner-cpus."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """Number format of the network's layers. auto selects bfloat16 on a GPU and on CPUs that support it,
    otherwise float32. config.json stores the selected format."""
    compile: bool = False
    """Compile the network with torch.compile, which fuses its layers. Compilation takes about a minute;
    results differ in the last bits."""
    track: tuple[Tracker, ...] = ("tensorboard",)
    """Destinations of metrics next to metrics.jsonl, separated by spaces; none keeps metrics.jsonl alone."""
    metric_names: Literal["parcade", "sb3", "cleanrl"] = "parcade"
    """Names and x axis of the metrics in TensorBoard and W&B: parcade's, Stable-Baselines3's or CleanRL's."""
    report_seconds: Positive = 5.0
    """Seconds between reports."""
    checkpoint_seconds: Positive = 60.0
    """Seconds between checkpoints, the most progress a killed run can lose."""
    keep_checkpoints: Count = 3
    """Number of checkpoints to keep; older ones are deleted."""
    keep_policy_frames: Natural = 0
    """Frames between policies that are kept for good, for parcade eval --curve and the dashboard; 0 keeps
    none."""

    def __post_init__(self) -> None:
        check_ranges(self)
        self._check_track()
        if self.ranks > 1 and self.engine != "mpi":
            instead = (
                "engine ray has actors and learners instead; use --num-actors and --num-learners"
                if self.engine == "ray"
                else f"engine {self.engine} is one process"
            )
            raise UsageError(f"ranks={self.ranks} needs --engine mpi; {instead}")
        self._check_settings_of_mpi()
        if self.time_limit_seconds == 0:
            raise UsageError(
                f"time_limit={self.time_limit} leaves no time to train; use e.g. 10m, or leave it out"
            )
        if 0 < self.hang_seconds < SHORTEST_HANG_SECONDS:
            raise UsageError(
                f"hang_timeout={self.hang_timeout} is below {SHORTEST_HANG_SECONDS} s; "
                f"use {SHORTEST_HANG_SECONDS}s or more, or 0 to disable"
            )

    def _check_track(self) -> None:
        """Refuse unknown trackers, and make ``none`` an empty tuple. Errors: UsageError."""
        names = tuple(self.track)  # a list in JSON
        for name in names:
            if name not in get_args(Tracker):
                raise unknown_name("tracker", name, get_args(Tracker))
        if "none" in names and len(names) > 1:
            raise UsageError(f"track={' '.join(names)}: none excludes the others; leave it or the others out")
        object.__setattr__(self, "track", () if names == ("none",) else names)

    def _check_settings_of_mpi(self) -> None:
        """Refuse settings of the mpi engine that another one does not read. Errors: UsageError."""
        names = ("hosts", "network_interface", "remote_shell")
        given = [name for name in names if getattr(self, name) != getattr(RunConfig, name)]
        if given and self.engine != "mpi":
            use = "--address and --interface" if self.engine == "ray" else "--engine mpi"
            raise UsageError(
                f"{given[0]}={getattr(self, given[0])} is for --engine mpi; got engine {self.engine}; "
                f"use {use}, or leave it out"
            )

    @property
    def time_limit_seconds(self) -> float | None:
        """The time limit in seconds; None means no limit."""
        return parse_duration(self.time_limit) if self.time_limit else None

    @property
    def hang_seconds(self) -> float:
        """The hang timeout in seconds; 0 means no timeout."""
        return parse_duration(self.hang_timeout)
