"""The jobs of a scaling study: ``parcade train`` or any program that records itself, at a given size."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from parcade.cluster import mpi
from parcade.config import TrainConfig, check_divisible
from parcade.errors import UsageError
from parcade.profile.recorded_command import RecordedCommand, train_command
from parcade.training_flags import parse_training

Scaling = Literal["strong", "weak"]


@dataclass(frozen=True)
class JobSize:
    """The size of a job: ranks, threads per rank, and environments in total (1 for the job of a program)."""

    scaling: Scaling
    ranks: int
    threads: int
    num_envs: int

    @property
    def cores(self) -> int:
        """Cores the job requires."""
        return self.ranks * self.threads


class ScaledJob(Protocol):
    """A job of a scaling study.

    ``title`` is its name in the report, ``num_envs`` the amount of work at the smallest size, ``unit`` the
    unit of ``num_envs``. ``overlaps`` says that a rank works in two threads at once, and ``groups`` into how
    many groups of one size it divides its environments. ``bytes_of_a_rank`` is the least memory of a rank.
    """

    title: str
    num_envs: int
    unit: str
    overlaps: bool
    groups: int
    bytes_of_a_rank: int

    def check(self, size: JobSize) -> None:
        """Reject a size whose work cannot be divided among its ranks. Errors: UsageError."""

    def recording(self, size: JobSize, run: Path, seconds: float, limit_seconds: float) -> RecordedCommand:
        """Return the recording of a size, without barriers. ``run`` is a directory for its files."""


class TrainJob:
    """``parcade train`` with these arguments."""

    unit = "environments"
    bytes_of_a_rank = mpi.TRAINING_RANK_BYTES

    def __init__(self, arguments: list[str], config: TrainConfig) -> None:
        self.arguments, self.config = arguments, config
        self.title = f"Scaling of {config.run.algorithm} on {config.game}"
        self.num_envs = config.hyper.num_envs
        self.overlaps = config.run.overlap
        self.groups = getattr(config.hyper, "num_groups", 2 if self.overlaps else 1)

    def arguments_at(self, size: JobSize) -> list[str]:
        """Return the user's arguments followed by those of the size, which override them."""
        flags = f"--engine mpi --ranks {size.ranks} --threads-per-rank {size.threads} "
        flags += f"--num-envs {size.num_envs} "
        # What an update of reinforce, dqn and es learns from grows with the environments, as a rollout does.
        for name in ("games_per_update", "batch_size", "population"):
            at_smallest = getattr(self.config.hyper, name, None)
            if at_smallest is not None:
                flags += f"--{name.replace('_', '-')} {at_smallest * size.num_envs // self.num_envs} "
        # Never save: a save inside the window would affect the rate of some sizes only.
        return [*self.arguments, *f"{flags}--checkpoint-seconds 86400".split()]

    def check(self, size: JobSize) -> None:
        try:
            check_divisible(parse_training(self.arguments_at(size)), size.ranks)
        except UsageError as error:
            raise UsageError(f"size of {size.ranks} ranks ({size.scaling} scaling): {error}") from None

    def recording(self, size: JobSize, run: Path, seconds: float, limit_seconds: float) -> RecordedCommand:
        words = self.arguments_at(size)
        shown = shlex.join(["parcade", "train", *words])
        return RecordedCommand(
            train_command(words, run), shown, seconds, barrier=False, limit_seconds=limit_seconds
        )


class ProgramJob:
    """Any program that records itself (as ``parcade.data_parallel`` does), started on every rank by mpiexec.

    Its ranks divide one fixed job, such as a batch of a fixed size, so only strong scaling is possible.
    """

    unit = "job"
    num_envs = 1
    overlaps = False
    groups = 1
    bytes_of_a_rank = mpi.BARE_RANK_BYTES

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.title = f"Scaling of {shlex.join(words)}"

    def check(self, size: JobSize) -> None:
        if size.scaling == "weak":
            raise UsageError("a program's job does not grow with its ranks; use --scaling strong")

    def recording(self, size: JobSize, run: Path, seconds: float, limit_seconds: float) -> RecordedCommand:
        command = [mpi.find_mpiexec(), "-n", str(size.ranks), *self.words]
        environment = mpi.rank_environment(size.threads)
        return RecordedCommand(
            command,
            shlex.join(self.words),
            seconds,
            barrier=False,
            limit_seconds=limit_seconds,
            environment=environment,
        )
