"""Results of ``parcade scale``: points, Allreduce timings and simulated sizes, stored as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from parcade.files.reading import fits
from parcade.profile.data import fields_of, rounded
from parcade.scale.allreduce_model import Link, Timing
from parcade.scale.jobs import JobSize
from parcade.scale.measure import Point, Series
from parcade.scale.simulate import Simulated

T = TypeVar("T")
SCHEMA_VERSION = 1
MOST = 10**18  # above every number of ranks, threads, bytes or steps


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
    """Invert ``to_json``.

    Errors: UsageError if the version does not match; ValueError, KeyError, TypeError or AttributeError if the
    data is no study.
    """
    fields = fields_of(data, SCHEMA_VERSION, "the file", "rerun the study")
    series = [_series(row) for row in fields.pop("series")]
    timings = [_record(Timing, timing) for timing in fields.pop("timings")]
    for timing in timings:
        _check_above_zero("timings", [timing.ranks, timing.num_bytes, timing.seconds])
    link = fields.pop("link")
    link = _record(Link, link) if link else None
    return _record(ScaleResult, fields, series=series, timings=timings, link=link)


def _series(row: dict[str, Any]) -> SeriesResult:
    """Return a series and check that its parts belong together."""
    points = [
        _record(Point, {name: value for name, value in point.items() if name != "size"}, size=_size(point))
        for point in row["points"]
    ]
    validation, simulated = (
        [_record(Simulated, each) for each in row[name]] for name in ("validation", "simulated")
    )
    found = SeriesResult(
        _record(Series, row["series"]), points, validation, simulated, stands_on=row["stands_on"]
    )
    if not found.run_points:
        raise ValueError("a series has no measured size")
    if validation and len(validation) != len(found.run_points):
        raise ValueError(f"{len(validation)} validations of {len(found.run_points)} sizes")
    for point in found.run_points:
        _check_above_zero("steps_per_second", point.steps_per_second)
        _check_above_zero("steps_per_cpu_second", point.steps_per_cpu_second)
        if not point.communicate_share:
            raise ValueError("communicate_share is empty")
    for each in simulated:
        _check_above_zero("simulated", [each.ranks, each.steps_per_second])
    return found


def _size(point: dict[str, Any]) -> JobSize:
    size = _record(JobSize, point["size"])
    _check_above_zero("size", [size.ranks, size.threads, size.num_envs])
    return size


def _record(kind: type[T], plain: dict[str, Any], **made: Any) -> T:
    """Return a record of JSON values and of ``made`` fields. Errors: TypeError that names a field."""
    hints = get_type_hints(kind)
    for name, value in plain.items():
        known = get_args(hints[name]) if get_origin(hints[name]) is Literal else None
        if not (value in known if known else fits(value, hints[name])):
            raise TypeError(f"{name} is {value!r:.60}")
    return kind(**plain, **made)


def _check_above_zero(name: str, values: list[float]) -> None:
    """Check numbers. Errors: ValueError."""
    if not all(0 < value < MOST for value in values):
        raise ValueError(f"{name} is {values!r:.60}")
