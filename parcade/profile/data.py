"""What a profile holds: one record a rank, and what the run was. Plain dataclasses, JSON on disk.

Seconds are of wall clock within the window that was recorded unless a name says otherwise. A rank's ``seconds`` add up
to its window; an actor thread's stand apart, since they overlap.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parcade.errors import UsageError
from parcade.timing import SCOPES

SCHEMA_VERSION = 1
WAITING = ("communicate", "wait")
"""Scopes in which a rank does nothing for itself."""


@dataclass(frozen=True)
class RankProfile:
    """One rank's window.

    | field | shape, unit |
    |---|---|
    | iteration_seconds, iteration_cpu_seconds | ``[I]`` |
    | segments | ``[i][k + 1]`` seconds of own work before each collective call of iteration i and after the last (newest ones) |
    | cpu_segments | the same by this process's CPU clock, which other programs on the machine do not lengthen |
    | segment_bytes | ``[k]`` bytes of those calls |
    | device_seconds | of each kind of a GPU's work, ``busy`` with any of them, and ``idle``; empty without a GPU |
    | timeline_start_seconds | of the first bin, on a clock that all ranks started together |
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
    """Ranks of the job, each with a file; 0 in files of before this was written down."""
    recording: str = ""
    """When it began, as all of its ranks agreed: tells them from ranks of another recording."""
    device_name: str = ""
    device_seconds: dict[str, float] = field(default_factory=dict)
    device_spans: int = 0
    device_span_cost_seconds: float = 0.0

    @property
    def window_seconds(self) -> float:
        """Wall clock recorded."""
        return sum(self.seconds.values())

    @property
    def work_seconds(self) -> float:
        """What this rank did itself: neither communicating nor waiting."""
        return sum(seconds for scope, seconds in self.seconds.items() if scope not in WAITING)

    @property
    def cores_used(self) -> float:
        """CPU seconds a second."""
        return sum(self.iteration_cpu_seconds) / max(self.window_seconds, 1e-9)

    @property
    def overhead_share(self) -> float:
        """Cost of a scope x scopes of an iteration / the iteration's CPU time, and the same of spans on a GPU."""
        cost = self.scope_cost_seconds * self.scopes + self.device_span_cost_seconds * self.device_spans
        return cost / max(sum(self.iteration_cpu_seconds), 1e-9)

    @property
    def widest_pool(self) -> int:
        """Threads of the largest pool."""
        return max((threads for _, threads in self.pools), default=1)

    @property
    def allreduces(self) -> int:
        """Allreduces of gradients."""
        return self.bytes_moved // self.gradient_bytes if self.gradient_bytes else 0


@dataclass(frozen=True)
class Profile:
    """A run: its ranks, in order, and what was run where. ``config`` is the run's ``config.json``, or what is known."""

    command: str
    config: dict[str, Any]
    barrier: bool
    cores: int
    machine: dict[str, Any]
    commit: str | None
    load: float
    ranks: tuple[RankProfile, ...]

    def run_setting(self, name: str, otherwise: Any = None) -> Any:
        """A field of the run's part of the config."""
        return self.config.get("run", {}).get(name, otherwise)

    def hyper(self, name: str, otherwise: Any = None) -> Any:
        """A hyper-parameter."""
        return self.config.get("hyper", {}).get(name, otherwise)

    @property
    def iterations(self) -> int:
        """Iterations in the window, the same on every rank."""
        return len(self.ranks[0].iteration_seconds)

    @property
    def window_seconds(self) -> float:
        """Wall clock recorded, mean over ranks."""
        return sum(rank.window_seconds for rank in self.ranks) / len(self.ranks)

    @property
    def steps_per_second(self) -> float:
        """Over all ranks."""
        return sum(rank.steps for rank in self.ranks) / self.window_seconds

    @property
    def cores_used(self) -> float:
        """CPU seconds a second, over all ranks."""
        return sum(rank.cores_used for rank in self.ranks)

    @property
    def envs_per_rank(self) -> int:
        """Environments of each rank."""
        return (self.hyper("num_envs") or 0) // len(self.ranks)

    def share(self, *scopes: str) -> float:
        """Share of wall clock in some scopes, over all ranks."""
        total = sum(rank.window_seconds for rank in self.ranks)
        return sum(rank.seconds[scope] for rank in self.ranks for scope in scopes) / max(total, 1e-9)

    def host_share(self, *scopes: str) -> float:
        """As ``share``, with what actor threads spend in these scopes added: what the host gave to queueing a GPU's work."""
        total = sum(rank.window_seconds for rank in self.ranks)
        acted = sum(rank.actor_seconds.get(scope, 0.0) for rank in self.ranks for scope in scopes)
        return self.share(*scopes) + acted / max(total, 1e-9)

    @property
    def has_device(self) -> bool:
        """Whether a GPU's time was taken."""
        return any(rank.device_seconds for rank in self.ranks)

    def device_share(self, *kinds: str) -> float:
        """Share of wall clock of some kinds of a GPU's work, or of ``busy`` or ``idle``, over all ranks; 0 without a GPU."""
        total = sum(rank.window_seconds for rank in self.ranks)
        return sum(rank.device_seconds.get(kind, 0.0) for rank in self.ranks for kind in kinds) / max(
            total, 1e-9
        )

    @property
    def plays(self) -> bool:
        """Whether games are played; a supervised program only learns, and its steps are samples."""
        return any(rank.seconds["emulate"] for rank in self.ranks)

    @property
    def ceiling_bytes_per_second(self) -> float | None:
        """Bandwidth of an Allreduce of the same buffer with ranks starting together, measured before the window."""
        seconds = sorted(s for rank in self.ranks for s in rank.ceiling_seconds)
        return (
            self.ranks[0].gradient_bytes / seconds[len(seconds) // 2] if seconds and seconds[0] > 0 else None
        )

    @property
    def achieved_bytes_per_second(self) -> float | None:
        """Bandwidth of the gradients' Allreduces inside the window, mean over ranks."""
        seconds = sum(rank.allreduce_seconds for rank in self.ranks)
        return sum(rank.bytes_moved for rank in self.ranks) / seconds if seconds else None


def write_rank(rank: RankProfile, folder: Path) -> None:
    """One rank's file. Written under another name first: a reader never sees half of it."""
    path = folder / f"rank-{rank.rank}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(rank)))
    temporary.replace(path)


def read_ranks(folder: Path) -> tuple[RankProfile, ...]:
    """All ranks' files. Errors: UsageError when there is none, one does not fit, or they are not one whole recording's."""
    paths = sorted(folder.glob("rank-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    if not paths:
        raise UsageError(
            f"{folder} holds no rank-*.json; expected what a run with PARCADE_PROFILE={folder} leaves there"
        )
    try:
        ranks = tuple(RankProfile(**json.loads(path.read_text())) for path in paths)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{folder} does not hold this version's profile files ({error}); record it again"
        ) from error
    newest = max(rank.recording for rank in ranks)
    earlier = [path.name for path, rank in zip(paths, ranks, strict=True) if rank.recording != newest]
    if earlier:
        raise UsageError(
            f"{folder} holds ranks of several recordings; delete those of earlier ones: {' '.join(earlier)}"
        )
    world_size = ranks[0].world_size
    missing = sorted(set(range(world_size)) - {rank.rank for rank in ranks})
    if missing:
        raise UsageError(
            f"{folder} holds {len(ranks)} of the {world_size} ranks of its recording, rank-{missing[0]}.json is missing; "
            "record it again"
        )
    return ranks


def to_json(profile: Profile) -> dict[str, Any]:
    """Plain JSON values, with a ``schema_version``; numbers to six digits, which is what they are worth."""
    return {"schema_version": SCHEMA_VERSION, **_rounded(asdict(profile))}


def from_json(data: dict[str, Any]) -> Profile:
    """The inverse of ``to_json``. Errors: UsageError when the version does not fit."""
    if data.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            f"profile has schema_version {data.get('schema_version')!r}, expected {SCHEMA_VERSION}; record it again"
        )
    fields = {name: value for name, value in data.items() if name != "schema_version"}
    return Profile(**{**fields, "ranks": tuple(RankProfile(**rank) for rank in fields["ranks"])})


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def empty_split() -> dict[str, float]:
    """Zero seconds in every scope."""
    return dict.fromkeys(SCOPES, 0.0)
