"""Measured work of a rank between collective calls, from which larger sizes are composed.

Under strong scaling, more ranks mean fewer environments per rank. The work of a rank shrinks, but part of it
is fixed. Segment k of an iteration is therefore fitted as a_k + b_k x environments, to the first ranks of all
sizes that were measured with a core for every rank. The variation between iterations (other work on the
machine, ends of episodes, occasional reports) is drawn from the measured iterations, relative to the fit. The
first rank does work that no other rank does, so its iterations are kept separate.

With one thread per rank, work is measured by the process's CPU clock, which is not affected by other
programs. With several threads, it is measured by wall clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parcade.errors import UsageError
from parcade.scale.measure import Point


@dataclass(frozen=True)
class RankWork:
    """A rank's own work.

    | field | shape | meaning |
    |---|---|---|
    | fixed, per_env | ``[K + 1]`` | seconds of segment k: fixed + per_env x environments of the rank |
    | relative | ``[M, K + 1]`` | measured iterations, relative to the fit |
    | first | ``[M]`` | whether the iteration is that of a first rank |
    | call_bytes | ``[K]`` | bytes of each collective call |
    | steps_per_env | | steps of one environment per iteration |
    | stands_on | | description of the measurements for the report |
    """

    fixed: np.ndarray
    per_env: np.ndarray
    relative: np.ndarray
    first: np.ndarray
    call_bytes: np.ndarray
    steps_per_env: float
    stands_on: str

    def segments(self, envs_per_rank: float, *, first: bool) -> np.ndarray:
        """Return the seconds of possible iterations ``[m, K + 1]`` of the first or of another rank."""
        rows = self.relative[self.first == first] if first in self.first else self.relative
        return rows * (self.fixed + self.per_env * envs_per_rank)


def rank_work_of(points: list[Point], unit: str = "environments") -> RankWork:
    """Derive a rank's work from the points measured with a core for every rank.

    Errors: UsageError if there are none.
    """
    sources = [
        point for point in points if point.kind == "measured" and not point.shares_cores and point.profiles
    ]
    if not sources:
        raise UsageError("no size was measured with a core for every rank; include 1 in --ranks")
    calls = min(map(_usual_calls, sources))
    envs, iterations, firsts, steps, call_bytes = [], [], [], [], []
    for point in sources:
        for profile in point.profiles:
            for index, rank in enumerate(profile.ranks):
                if len(rank.segment_bytes) >= calls:
                    rows = _with_calls(rank.cpu_segments if point.size.threads == 1 else rank.segments, calls)
                    call_bytes.append(rank.segment_bytes[len(rank.segment_bytes) - calls :])
                    envs.append(point.size.num_envs / point.size.ranks)
                    iterations.append(rows)
                    firsts.append(np.full(len(rows), index == 0))
                    steps.append(rank.steps / len(rank.iteration_seconds) / envs[-1])
    means = np.array([np.maximum(rows.mean(0), 1e-9) for rows in iterations])
    ones = np.array([rows[0] for rows in firsts])
    fixed, per_env = _lines(np.array(envs)[ones], means[ones])
    relative = np.concatenate(
        [rows / np.maximum(fixed + per_env * n, 1e-9) for rows, n in zip(iterations, envs, strict=True)]
    )
    clock = "the CPU" if sources[0].size.threads == 1 else "wall"
    sizes = [point.size for point in sources]
    shown = ", ".join(f"{s.ranks} rank(s), {s.num_envs / s.ranks:g} {unit} each" for s in sizes)
    return RankWork(
        fixed=fixed,
        per_env=per_env,
        relative=relative,
        first=np.concatenate(firsts),
        call_bytes=np.array(call_bytes[0], float),
        steps_per_env=float(np.mean(steps)),
        stands_on=f"own work of {len(relative)} iterations at {shown}, by {clock} clock",
    )


def _usual_calls(point: Point) -> int:
    """Return the number of collective calls per iteration of most ranks of a size."""
    lengths = [len(rank.segment_bytes) for profile in point.profiles for rank in profile.ranks]
    return max(set(lengths), key=lengths.count)


def _with_calls(segments: list[list[float]], calls: int) -> np.ndarray:
    """Return the rows ``[k + 1]`` with only their last ``calls`` collective calls, as ``[calls + 1]``.

    Where most iterations start with a report, as long ones do, they make more calls. The work before these
    counts as work before the first of the others.
    """
    rows = np.array(segments)
    surplus = rows.shape[1] - 1 - calls
    return np.concatenate([rows[:, : surplus + 1].sum(1, keepdims=True), rows[:, surplus + 1 :]], axis=1)


def _lines(envs: np.ndarray, means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit means ``[m, K + 1]`` = a + b x envs ``[m]`` with non-negative a and b ``[K + 1]``.

    If all ``envs`` are equal, b is 0: weak scaling only uses this number of environments, and ``study.check``
    refuses strong scaling from a single one.
    """
    from scipy.optimize import nnls

    if len(set(envs.tolist())) == 1:
        return means.mean(0), np.zeros(means.shape[1])
    columns = np.stack([np.ones(len(envs)), envs], 1)
    solved = np.array([nnls(columns / mean[:, None], np.ones(len(mean)))[0] for mean in means.T])
    return solved[:, 0], solved[:, 1]
