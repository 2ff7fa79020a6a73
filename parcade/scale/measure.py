"""Running the same job at several sizes, interleaved and repeated, each under the recorder without barriers.

Rates are of the recorded window: start-up, imports and the making of consoles are not in them.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from parcade.config import TrainConfig, check_divisible
from parcade.errors import UsageError
from parcade.flags import parse_training
from parcade.profile.data import Profile
from parcade.profile.take import Recording, take, train_command

Scaling = Literal["strong", "weak"]


@dataclass(frozen=True)
class Size:
    """One job: how many ranks with how many threads play how many environments together."""

    scaling: Scaling
    ranks: int
    threads: int
    num_envs: int

    @property
    def cores(self) -> int:
        """Cores the job asks for."""
        return self.ranks * self.threads


@dataclass(frozen=True)
class Series:
    """What is compared with one another: one kind of scaling, one number of threads, one number of environments at the
    start."""

    scaling: Scaling
    threads: int
    num_envs: int

    @property
    def title(self) -> str:
        """For headings."""
        envs = f"{self.num_envs} environments" + (
            " in all" if self.scaling == "strong" else " for the smallest size, growing with it"
        )
        return f"{self.scaling} scaling, {envs}, {self.threads} thread(s) a rank"


@dataclass
class Point:
    """A size of a series and what was measured there, one entry a repeat.

    ``kind``: measured; synthetic: compute replaced by sleeps, Allreduce real. ``shares_cores``: more ranks x threads
    than the machine has cores, so that they take turns.
    """

    size: Size
    kind: Literal["measured", "synthetic"]
    shares_cores: bool
    steps_per_second: list[float] = field(default_factory=list)
    steps_per_cpu_second: list[float] = field(default_factory=list)
    communicate_share: list[float] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)


def sizes_of(series: Series, ranks: list[int]) -> list[Size]:
    """The sizes of a series. Under weak scaling environments grow with the ranks."""
    smallest = min(ranks)
    grow = series.scaling == "weak"
    return [
        Size(series.scaling, n, series.threads, series.num_envs * n // smallest if grow else series.num_envs)
        for n in ranks
    ]


def job_arguments(arguments: list[str], config: TrainConfig, size: Size) -> list[str]:
    """``parcade train``'s arguments for a size: the user's, then those the size decides, which win."""
    flags = [f"--engine mpi --ranks {size.ranks} --threads-per-rank {size.threads} --num-envs {size.num_envs}"]
    if hasattr(config.hyper, "games_per_update"):
        games = config.hyper.games_per_update * size.num_envs // config.hyper.num_envs
        flags.append(f"--games-per-update {max(games, size.num_envs)}")
    # A save in the middle of a window would be in one size's rate and not in another's.
    flags.append("--checkpoint-seconds 86400")
    return [*arguments, *shlex.split(" ".join(flags))]


def check_sizes(arguments: list[str], config: TrainConfig, sizes: list[Size]) -> None:
    """Refuse what cannot be shared out before anything runs. Errors: UsageError naming the size."""
    for size in sizes:
        try:
            check_divisible(parse_training(job_arguments(arguments, config, size)), size.ranks)
        except UsageError as error:
            raise UsageError(f"size of {size.ranks} ranks ({size.scaling} scaling): {error}") from None


def measure(
    arguments: list[str],
    config: TrainConfig,
    points: list[Point],
    folder: Path,
    *,
    repeats: int,
    seconds: float,
    limit_seconds: float,
    say: Callable[[str], None],
) -> None:
    """Fill the points: every size once, then every size again, so that a machine that slows down slows all of them."""
    for repeat in range(repeats):
        for point in points:
            words = job_arguments(arguments, config, point.size)
            run = folder / "run"
            shown = shlex.join(["parcade", "train", *words])
            recording = Recording(train_command(words, run), shown, seconds, barrier=False, limit_seconds=limit_seconds)
            profile = take(recording, folder, run)
            shutil.rmtree(run, ignore_errors=True)
            add(point, profile)
            say(
                f"repeat {repeat + 1} of {repeats}: {point.size.scaling}, {point.size.ranks} rank(s) x "
                f"{point.size.threads} thread(s), "
                f"{point.size.num_envs} environments: {profile.steps_per_second:,.0f} steps/s"
            )
    for name in ("output.log", "profile.json"):
        (folder / name).unlink(missing_ok=True)


def add(point: Point, profile: Profile) -> None:
    """Take one profile into a point."""
    point.profiles.append(profile)
    point.steps_per_second.append(profile.steps_per_second)
    point.steps_per_cpu_second.append(profile.steps_per_second / max(profile.cores_used, 1e-9))
    point.communicate_share.append(profile.share("communicate", "wait"))
