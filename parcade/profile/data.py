"""Data of a profile: one record per rank, and a description of the run. Plain dataclasses, stored as JSON.

Unless a name says otherwise, seconds are wall-clock seconds within the recorded window. A rank's ``seconds``
add up to its window. The seconds of an actor thread are separate, because the two threads overlap.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from parcade.errors import UsageError
from parcade.files.reading import fits
from parcade.machine.timing import SCOPES

T = TypeVar("T")
SCHEMA_VERSION = 1
WAITING = ("communicate", "wait")
"""Scopes that are not a rank's own work."""


@dataclass(frozen=True)
class RankProfile:
    """One rank's window.

    | field | shape, unit |
    |---|---|
    | iteration_seconds, iteration_cpu_seconds | ``[I]`` |
    | segments | ``[i][k + 1]`` seconds of own work around the k collective calls of the newest iterations i |
    | cpu_segments | the same by the process's CPU clock, which other programs do not affect |
    | segment_bytes | ``[k]`` bytes of these calls |
    | device_seconds | by kind of GPU work, ``busy`` (any kind) and ``idle``; empty without a GPU |
    | timeline_start_seconds | start of the first bin, on a clock that all ranks started together |
    | timeline | ``[b][scope]`` share of each bin of ``timeline_bin_seconds``, in the order of SCOPES |
    """

    rank: int
    local_size: int
    seconds: dict[str, float]
    actor_seconds: dict[str, float]
    iteration_seconds: list[float]
    iteration_cpu_seconds: list[float]
    steps: int
    frames: int
    updates: int
    scopes: int
    scope_cost_seconds: float
    threads: int
    busy_threads: int
    pools: list[list[Any]]
    affinity: list[int]
    memory_bytes: int
    voluntary_switches: int
    involuntary_switches: int
    gradient_bytes: int
    bytes_moved: int
    allreduce_seconds: float
    ceiling_seconds: list[float]
    checkpoint_save_seconds: float
    segments: list[list[float]] = field(default_factory=list)
    segment_bytes: list[int] = field(default_factory=list)
    cpu_segments: list[list[float]] = field(default_factory=list)
    timeline: list[list[float]] = field(default_factory=list)
    timeline_bin_seconds: float = 0.0
    timeline_start_seconds: float = 0.0
    world_size: int = 0
    """Ranks of the job, one file each; 0 in older files without this field."""
    recording: str = ""
    """Start time of the recording, the same on all ranks. It identifies the recording."""
    local_cores: list[int] = field(default_factory=list)
    """Cores that the ranks of its host may use together; empty in older files without this field."""
    cores_at_once: int = 0
    """How many of these a quota of CPU time lets them keep busy; 0 in older files without this field."""
    own_seconds: float = 0.0
    """CPU seconds of the recorder at the ends of iterations; 0 in older files without this field."""
    barrier: bool | None = None
    """Whether ranks waited at a barrier before collective calls; None in older files without this field."""
    barrier_seconds: float = 0.0
    """The part of ``wait`` at barriers, for other ranks; 0 without barriers and in older files."""
    device_name: str = ""
    device_seconds: dict[str, float] = field(default_factory=dict)
    device_spans: int = 0
    device_span_cost_seconds: float = 0.0

    @property
    def window_seconds(self) -> float:
        """Length of the recorded window."""
        return sum(self.seconds.values())

    @property
    def work_seconds(self) -> float:
        """Seconds of own work: neither communicating nor waiting."""
        return sum(seconds for scope, seconds in self.seconds.items() if scope not in WAITING)

    @property
    def rank_wait_seconds(self) -> float:
        """Seconds of waiting for other ranks, where barriers separate it from communicating.

        Older files do not tell it from waiting for the actor's thread. Without that thread it is all waiting.
        """
        return self.barrier_seconds or (0.0 if self.actor_seconds else self.seconds["wait"])

    @property
    def work_per_iteration(self) -> float:
        """Seconds of own work per iteration."""
        return self.work_seconds / len(self.iteration_seconds)

    @property
    def cores_used(self) -> float:
        """CPU seconds per second."""
        return sum(self.iteration_cpu_seconds) / max(self.window_seconds, 1e-9)

    @property
    def overhead_share(self) -> float:
        """Recording overhead: all scopes, all GPU spans and the recorder's own work, over the CPU time."""
        cost = self.scope_cost_seconds * self.scopes + self.device_span_cost_seconds * self.device_spans
        return (cost + self.own_seconds) / max(sum(self.iteration_cpu_seconds), 1e-9)

    @property
    def widest_pool(self) -> int:
        """Threads of the largest pool."""
        return max((threads for _, threads in self.pools), default=1)

    @property
    def allreduces(self) -> int:
        """Number of gradient Allreduces."""
        return self.bytes_moved // self.gradient_bytes if self.gradient_bytes else 0


@dataclass(frozen=True)
class Profile:
    """A profiled run: its ranks in order, command and machine.

    ``config`` is its ``config.json``, or empty.
    """

    command: str
    config: dict[str, Any]
    barrier: bool
    cores: int
    machine: dict[str, Any]
    commit: str | None
    load: float | None
    """Load average at the start; None if it is not known."""
    ranks: tuple[RankProfile, ...]

    def run_setting(self, name: str, otherwise: Any = None) -> Any:
        """Return a field of the ``run`` section of the config."""
        return self.config.get("run", {}).get(name, otherwise)

    def hyper(self, name: str, otherwise: Any = None) -> Any:
        """Return a hyper-parameter."""
        return self.config.get("hyper", {}).get(name, otherwise)

    def cores_of(self, rank: RankProfile) -> int:
        """Return how many cores the ranks of a rank's host may keep busy together."""
        return rank.cores_at_once or len(rank.local_cores or rank.affinity) or self.cores

    @property
    def load_text(self) -> str:
        """The load average, for reports."""
        return "unknown" if self.load is None else f"{self.load:.1f}"

    @property
    def num_hosts(self) -> int:
        """Number of hosts of the ranks."""
        return max(1, round(sum(1 / max(rank.local_size, 1) for rank in self.ranks)))

    @property
    def iterations(self) -> int:
        """Number of iterations in the window, the same on every rank."""
        return len(self.ranks[0].iteration_seconds)

    @property
    def window_seconds(self) -> float:
        """Length of the recorded window, mean over ranks."""
        return sum(rank.window_seconds for rank in self.ranks) / len(self.ranks)

    @property
    def steps_per_second(self) -> float:
        """Steps per second of all ranks together."""
        return sum(rank.steps for rank in self.ranks) / self.window_seconds

    @property
    def cores_used(self) -> float:
        """CPU seconds per second, summed over ranks."""
        return sum(rank.cores_used for rank in self.ranks)

    @property
    def envs_per_rank(self) -> int:
        """Environments per rank."""
        return (self.hyper("num_envs") or 0) // len(self.ranks)

    def share(self, *scopes: str) -> float:
        """Return the share of wall clock in some scopes, over all ranks."""
        return self._share([rank.seconds for rank in self.ranks], scopes)

    def host_share(self, *scopes: str) -> float:
        """Return ``share`` with actor threads included: the host's time for queueing GPU work."""
        return self.share(*scopes) + self._share([rank.actor_seconds for rank in self.ranks], scopes)

    @property
    def has_device(self) -> bool:
        """Whether GPU time was recorded."""
        return any(rank.device_seconds for rank in self.ranks)

    def device_share(self, *kinds: str) -> float:
        """Return the share of wall clock of some kinds of GPU work, ``busy`` or ``idle``, over all ranks.

        Without a GPU it is 0.
        """
        return self._share([rank.device_seconds for rank in self.ranks], kinds)

    def _share(self, splits: list[dict[str, float]], names: tuple[str, ...]) -> float:
        total = sum(rank.window_seconds for rank in self.ranks)
        return sum(split.get(name, 0.0) for split in splits for name in names) / max(total, 1e-9)

    @property
    def rank_wait_share(self) -> float:
        """Share of wall clock in waiting for other ranks, over all ranks."""
        return sum(rank.rank_wait_seconds for rank in self.ranks) / sum(r.window_seconds for r in self.ranks)

    @property
    def actor_wait_share(self) -> float:
        """Share of wall clock in which learners wait for their actor's thread; 0 without such threads."""
        with_actor = [rank for rank in self.ranks if rank.actor_seconds]
        waited = sum(rank.seconds["wait"] - rank.rank_wait_seconds for rank in with_actor)
        return waited / max(sum(rank.window_seconds for rank in with_actor), 1e-9)

    @property
    def plays(self) -> bool:
        """Whether the run plays games. A supervised program only learns, and its steps are samples."""
        return self.host_share("emulate") > 0

    @property
    def ceiling_bytes_per_second(self) -> float | None:
        """Bandwidth of an Allreduce of the same buffer before the window, with ranks starting together."""
        seconds = sorted(s for rank in self.ranks for s in rank.ceiling_seconds)
        if not seconds or seconds[0] <= 0:
            return None
        return self.ranks[0].gradient_bytes / seconds[len(seconds) // 2]

    @property
    def achieved_bytes_per_second(self) -> float | None:
        """Bandwidth of the gradient Allreduces inside the window, mean over ranks."""
        seconds = sum(rank.allreduce_seconds for rank in self.ranks)
        return sum(rank.bytes_moved for rank in self.ranks) / seconds if seconds else None


def write_rank(rank: RankProfile, folder: Path) -> None:
    """Write one rank's file under a temporary name and rename it: readers never see a partial file.

    Errors: UsageError if it cannot be written, e.g. on a full disk.
    """
    path = folder / f"rank-{rank.rank}.json"
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(asdict(rank)))
        temporary.replace(path)
    except OSError as error:
        raise UsageError(
            f"the profile {path} could not be written ({error.strerror}); use another PARCADE_PROFILE"
        ) from None


def read_ranks(folder: Path) -> tuple[RankProfile, ...]:
    """Read the files of all ranks.

    Errors: UsageError if there are none, one is invalid, or they are not one complete recording.
    """
    number = lambda path: path.stem.removeprefix("rank-")  # noqa: E731
    paths = [path for path in folder.glob("rank-*.json") if number(path).isdecimal()]
    paths.sort(key=lambda path: int(number(path)))
    if not paths:
        raise UsageError(
            f"{folder} holds no rank-*.json; expected the files of a run with PARCADE_PROFILE={folder}"
        )
    try:
        ranks = tuple(_checked(RankProfile(**json.loads(path.read_text()))) for path in paths)
    except OSError as error:
        raise UsageError(
            f"{error.filename} cannot be read ({error.strerror}); expected a file that PARCADE_PROFILE wrote"
        ) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{folder} does not hold profile files of this version ({error}); record the run again"
        ) from error
    newest = max(rank.recording for rank in ranks)
    earlier = [path.name for path, rank in zip(paths, ranks, strict=True) if rank.recording != newest]
    if earlier:
        raise UsageError(
            f"{folder} holds ranks of several recordings; delete the earlier files: {' '.join(earlier)}"
        )
    world_size = ranks[0].world_size
    missing = sorted(set(range(world_size)) - {rank.rank for rank in ranks})
    if missing:
        raise UsageError(
            f"{folder} holds {len(ranks)} of the {world_size} ranks of its recording: rank-{missing[0]}.json "
            "is missing; record the run again"
        )
    return ranks


def to_json(profile: Profile) -> dict[str, Any]:
    """Return plain JSON values with a ``schema_version``. Numbers are rounded to six significant digits."""
    return {"schema_version": SCHEMA_VERSION, **rounded(asdict(profile))}


def from_json(data: dict[str, Any]) -> Profile:
    """Invert ``to_json``.

    Errors: UsageError if the version does not match, or no rank was recorded; ValueError, KeyError or
    TypeError if the data is no profile.
    """
    fields = fields_of(data, SCHEMA_VERSION, "the profile", "record the run again")
    if not fields["ranks"]:
        raise UsageError("the profile has no ranks; record the run again")
    ranks = tuple(_checked(RankProfile(**rank)) for rank in fields["ranks"])
    return _checked(Profile(**{**fields, "ranks": ranks}))


def _checked(record: T) -> T:
    """Check the types of a record's fields. Errors: TypeError or ValueError that names one."""
    for name, expected in get_type_hints(type(record)).items():
        if name != "ranks" and not fits(getattr(record, name), expected):
            raise TypeError(f"{name} is {getattr(record, name)!r:.60}")
    if isinstance(record, RankProfile):
        if missing := set(SCOPES) - record.seconds.keys():
            raise ValueError(f"seconds lacks {min(missing)!r}")
        if not record.iteration_seconds:
            raise ValueError("iteration_seconds is empty")
    elif isinstance(record, Profile):
        for section in record.config.keys() & {"run", "env", "hyper"}:
            if not isinstance(record.config[section], dict):
                raise TypeError(f"config.{section} is {record.config[section]!r:.60}")
    return record


def fields_of(data: dict[str, Any], version: int, what: str, remedy: str) -> dict[str, Any]:
    """Return ``data`` without its ``schema_version``. Errors: UsageError if it is not ``version``."""
    found = data.get("schema_version")
    if found != version:
        raise UsageError(f"{what} has schema_version {found!r}, expected {version}; {remedy}")
    return {name: value for name, value in data.items() if name != "schema_version"}


def rounded(value: Any) -> Any:
    """Round all floats of nested JSON values to six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def empty_split() -> dict[str, float]:
    """Return zero seconds for every scope."""
    return dict.fromkeys(SCOPES, 0.0)
