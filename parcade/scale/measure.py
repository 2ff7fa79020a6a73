"""Run the same job at several sizes, interleaved and repeated, each under the recorder without barriers.

Rates are those of the recorded window. They exclude start-up, imports and the creation of consoles.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from parcade.ending import interrupts_on_end
from parcade.errors import UsageError
from parcade.profile.data import Profile
from parcade.profile.recorded_command import record, workspace
from parcade.scale.jobs import JobSize, ScaledJob, Scaling


@dataclass(frozen=True)
class Series:
    """Comparable sizes: one kind of scaling, threads per rank, and environments at the smallest size.

    The environments of every rank form ``groups`` of one size, such as the two of ``--overlap``.
    """

    scaling: Scaling
    threads: int
    num_envs: int
    unit: str = "environments"
    groups: int = 1

    @property
    def title(self) -> str:
        """The title of the series in headings."""
        envs = f"{self.num_envs} {self.unit}" + (
            " in total" if self.scaling == "strong" else " at the smallest size, growing with the ranks"
        )
        return f"{self.scaling} scaling, {envs}, {self.threads} thread(s) per rank"

    def size(self, ranks: int, smallest: int) -> JobSize:
        """Return the size with this number of ranks. Under weak scaling, environments grow with the ranks."""
        num_envs = self.num_envs * ranks // smallest if self.scaling == "weak" else self.num_envs
        return JobSize(self.scaling, ranks, self.threads, num_envs)


@dataclass
class Point:
    """A size of a series and its measurements, one entry per repeat.

    ``kind`` is "measured" or "synthetic" (sleeps instead of compute, real Allreduce). ``shares_cores`` says
    that its ranks have more busy threads than there are cores.
    """

    size: JobSize
    kind: Literal["measured", "synthetic"]
    shares_cores: bool
    steps_per_second: list[float] = field(default_factory=list)
    steps_per_cpu_second: list[float] = field(default_factory=list)
    communicate_share: list[float] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Median steps per second."""
        return median(self.steps_per_second)

    def add(self, profile: Profile) -> None:
        """Add the rates of one profile."""
        self.profiles.append(profile)
        self.steps_per_second.append(profile.steps_per_second)
        self.steps_per_cpu_second.append(profile.steps_per_second / max(profile.cores_used, 1e-9))
        # Without barriers, ranks wait for each other inside calls. The scope wait is for an actor's thread.
        self.communicate_share.append(profile.share("communicate"))


def measure(
    job: ScaledJob,
    points: list[Point],
    folder: Path,
    *,
    repeats: int,
    seconds: float,
    limit_seconds: float,
    say: Callable[[str], None],
    keep: Callable[[], object],
) -> None:
    """Fill the points by running every size once, then every size again, and so on.

    A slowdown of the machine then affects all sizes. ``keep`` stores the points after every complete repeat.
    Nothing stays in ``folder``, unless a run fails: then the log named by the error is kept.
    """
    kept = Path(tempfile.mkdtemp(prefix=".scale-", dir=folder))
    try:
        with interrupts_on_end():
            for repeat in range(repeats):
                for point in points:
                    with workspace(kept) as made:
                        recording = job.recording(point.size, made / "run", seconds, limit_seconds)
                        point.add(record(recording, kept, made))
                    size = point.size
                    say(
                        f"repeat {repeat + 1} of {repeats}: {size.scaling}, {size.ranks} rank(s) x "
                        f"{size.threads} thread(s), {size.num_envs} {job.unit}: "
                        f"{point.steps_per_second[-1]:,.0f} steps/s"
                    )
                keep()
    except (KeyboardInterrupt, UsageError, OSError):
        shutil.rmtree(kept)
        raise
    shutil.rmtree(kept)
