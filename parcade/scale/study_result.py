"""Results of ``parcade scale``: points, Allreduce timings and simulated sizes, stored as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from parcade.profile.data import fields_of, rounded
from parcade.scale.allreduce_model import Link, Timing
from parcade.scale.jobs import JobSize
from parcade.scale.measure import Point, Series
from parcade.scale.simulate import Simulated

SCHEMA_VERSION = 1


@dataclass
class SeriesResult:
    """One series: its points, and simulated sizes.

    ``validation`` are simulations of sizes that were run, ``simulated`` those of other sizes, and
    ``stands_on`` describes the measurements they use.
    """

    series: Series
    points: list[Point]
    validation: list[Simulated] = field(default_factory=list)
    simulated: list[Simulated] = field(default_factory=list)
    stands_on: str = ""

    @property
    def run_points(self) -> list[Point]:
        """The points with at least one measurement."""
        return [point for point in self.points if point.steps_per_second]

    def sizes(self, *, shared: bool = False) -> dict[int, Point]:
        """Return points by number of required cores. Measured points override synthetic ones.

        With ``shared``, include sizes whose ranks share cores.
        """
        found: dict[int, Point] = {}
        for point in sorted(self.run_points, key=lambda point: point.kind, reverse=True):
            if shared or not point.shares_cores:
                found[point.size.cores] = point
        return dict(sorted(found.items()))

    def samples(self, *, shared: bool = False) -> dict[int, list[float]]:
        """Return the rates of ``sizes``."""
        return {n: point.steps_per_second for n, point in self.sizes(shared=shared).items()}


@dataclass
class ScaleResult:
    """All data of the report."""

    command: str
    title: str
    machine: dict[str, Any]
    commit: str | None
    cores: int
    load: float
    series: list[SeriesResult]
    timings: list[Timing] = field(default_factory=list)
    link: Link | None = None
    ranks_per_host: int = 1
    """Ranks of a simulated host; 0 gives every thread a core."""

    def ranks_on_a_host(self, threads: int) -> int:
        """Return the number of ranks, of this many threads each, on a simulated host."""
        return self.ranks_per_host or max(1, self.cores // threads)


def to_json(result: ScaleResult) -> dict[str, Any]:
    """Return plain JSON values with six significant digits, without the profiles, which are large."""
    data = asdict(result)
    for series in data["series"]:
        for point in series["points"]:
            del point["profiles"]
    return {"schema_version": SCHEMA_VERSION, **rounded(data)}


def from_json(data: dict[str, Any]) -> ScaleResult:
    """Invert ``to_json``. Errors: UsageError if the version does not match."""
    fields = fields_of(data, SCHEMA_VERSION, "the file", "rerun the study")
    fields["series"] = [
        SeriesResult(
            Series(**row["series"]),
            [Point(**{**point, "size": JobSize(**point["size"])}) for point in row["points"]],
            [Simulated(**simulated) for simulated in row["validation"]],
            [Simulated(**simulated) for simulated in row["simulated"]],
            row["stands_on"],
        )
        for row in fields["series"]
    ]
    fields["timings"] = [Timing(**timing) for timing in fields["timings"]]
    fields["link"] = Link(**fields["link"]) if fields["link"] else None
    return ScaleResult(**fields)
