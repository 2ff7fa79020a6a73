"""Running the same job at several sizes, interleaved and repeated, each under the recorder without barriers.

Rates are of the recorded window: start-up, imports and the making of consoles are not in them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from parcade.profile.data import Profile
from parcade.profile.take import take, workspace
from parcade.scale.jobs import Job, Scaling, Size


@dataclass(frozen=True)
class Series:
    """What is compared with one another: one kind of scaling, one number of threads, one number of environments at the
    start."""

    scaling: Scaling
    threads: int
    num_envs: int
    unit: str = "environments"

    @property
    def title(self) -> str:
        """For headings."""
        envs = f"{self.num_envs} {self.unit}" + (
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


def measure(
    job: Job,
    points: list[Point],
    folder: Path,
    *,
    repeats: int,
    seconds: float,
    limit_seconds: float,
    say: Callable[[str], None],
) -> None:
    """Fill the points: every size once, then every size again, so that a machine that slows down slows all of them.

    ``folder`` keeps nothing of it, unless a run fails: then the log that the error names.
    """
    kept = Path(tempfile.mkdtemp(prefix=".scale-", dir=folder))
    for repeat in range(repeats):
        for point in points:
            with workspace(kept) as made:
                profile = take(job.recording(point.size, made / "run", seconds, limit_seconds), kept, made)
            add(point, profile)
            say(
                f"repeat {repeat + 1} of {repeats}: {point.size.scaling}, {point.size.ranks} rank(s) x "
                f"{point.size.threads} thread(s), "
                f"{point.size.num_envs} {job.unit}: {profile.steps_per_second:,.0f} steps/s"
            )
    shutil.rmtree(kept)


def add(point: Point, profile: Profile) -> None:
    """Take one profile into a point."""
    point.profiles.append(profile)
    point.steps_per_second.append(profile.steps_per_second)
    point.steps_per_cpu_second.append(profile.steps_per_second / max(profile.cores_used, 1e-9))
    point.communicate_share.append(profile.share("communicate", "wait"))
