"""The measured parts that sizes beyond this machine are put together from: a rank's own work between its collective
calls.

Under strong scaling a rank has fewer environments the more ranks there are, and its work shrinks, though not all of it
does: each stretch k of an iteration is fitted as a_k + b_k x environments to the first ranks of all sizes that were measured with a
core for every rank. What varies from iteration to iteration (other work on the machine, ends of games, a report now and then) is drawn
from what was measured, relative to the fit; the first rank, which does what only one does, keeps iterations of its own.

With one thread a rank, work is taken by the process's CPU clock: what it takes on a core of its own, whatever else the
machine does. With several threads it is taken by wall clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parcade.errors import UsageError
from parcade.scale.measure import Point


@dataclass(frozen=True)
class Parts:
    """A rank's own work.

    | field | shape | |
    |---|---|---|
    | fixed, per_env | ``[K + 1]`` | seconds of stretch k: fixed + per_env x environments of the rank |
    | relative | ``[M, K + 1]`` | measured iterations, relative to the fit |
    | first | ``[M]`` | whether they are those of a first rank |
    | call_bytes | ``[K]`` | what each collective call hands over |
    | steps_per_env | | steps of one environment in an iteration |
    """

    fixed: np.ndarray
    per_env: np.ndarray
    relative: np.ndarray
    first: np.ndarray
    call_bytes: np.ndarray
    steps_per_env: float
    stands_on: str

    def segments(self, envs_per_rank: float, *, first: bool) -> np.ndarray:
        """Iterations ``[m, K + 1]`` that the first rank, or another, with so many environments may have, seconds."""
        rows = self.relative[self.first == first] if first in self.first else self.relative
        return rows * (self.fixed + self.per_env * envs_per_rank)


def parts_of(points: list[Point], unit: str = "environments") -> Parts:
    """From the measured points that had a core for every rank. Errors: UsageError when there are none."""
    sources = [
        point for point in points if point.kind == "measured" and not point.shares_cores and point.profiles
    ]
    if not sources:
        raise UsageError("no size was measured with a core for every rank; add 1 to --ranks")
    calls = _usual_calls(sources)
    envs, iterations, firsts, steps = [], [], [], []
    for point in sources:
        for profile in point.profiles:
            for index, rank in enumerate(profile.ranks):
                if len(rank.segment_bytes) == calls:
                    rows = np.array(rank.cpu_segments if point.size.threads == 1 else rank.segments)
                    envs.append(point.size.num_envs / point.size.ranks)
                    iterations.append(rows)
                    firsts.append(np.full(len(rows), index == 0))
                    steps.append(rank.steps / len(rank.iteration_seconds) / envs[-1])
    means = np.array([np.maximum(rows.mean(0), 1e-9) for rows in iterations])
    ones = np.array([rows[0] for rows in firsts])
    fixed, per_env = _lines(np.array(envs)[ones], means[ones])
    relative = [
        rows / np.maximum(fixed + per_env * share, 1e-9) for rows, share in zip(iterations, envs, strict=True)
    ]
    first = next(rank for rank in sources[0].profiles[0].ranks if len(rank.segment_bytes) == calls)
    count = sum(len(rows) for rows in relative)
    shown = ", ".join(
        f"{point.size.ranks} rank(s), {point.size.num_envs / point.size.ranks:g} {unit} each"
        for point in sources
    )
    return Parts(
        fixed,
        per_env,
        np.concatenate(relative),
        np.concatenate(firsts),
        np.array(first.segment_bytes, float),
        float(np.mean(steps)),
        f"own work of {count} iterations at {shown}, by {'the CPU' if sources[0].size.threads == 1 else 'wall'} clock",
    )


def _usual_calls(sources: list[Point]) -> int:
    """The number of collective calls an iteration of most ranks has."""
    lengths = [
        len(rank.segment_bytes) for point in sources for profile in point.profiles for rank in profile.ranks
    ]
    return max(set(lengths), key=lengths.count)


def _lines(envs: np.ndarray, means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Non-negative a and b ``[K + 1]`` of means ``[m, K + 1]`` = a + b x envs ``[m]``; proportional where envs never
    vary."""
    from scipy.optimize import nnls

    if len(set(envs.tolist())) == 1:
        # Weak scaling asks for nothing else than this number of environments.
        return means.mean(0), np.zeros(means.shape[1])
    columns = np.stack([np.ones(len(envs)), envs], 1)
    solved = np.array([nnls(columns / mean[:, None], np.ones(len(mean)))[0] for mean in means.T])
    return solved[:, 0], solved[:, 1]
