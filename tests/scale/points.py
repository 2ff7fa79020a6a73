"""Synthetic points of a study: work is exactly a + b x environments."""

from types import SimpleNamespace

import numpy as np

from parcade.scale.jobs import JobSize
from parcade.scale.measure import Point

FIXED = np.array([0.1, 0.02, 0.0])
PER_ENV = np.array([0.01, 0.001, 0.0])


def rank(envs, relative=((1.0, 1.0, 1.0),), steps_per_env=64):
    """A rank's record with two collective calls per iteration, limited to what the simulation reads."""
    segments = [list((FIXED + PER_ENV * envs) * np.array(row)) for row in relative]
    return SimpleNamespace(
        segments=[[2 * s for s in row] for row in segments],
        cpu_segments=segments,
        segment_bytes=[1000, 8],
        steps=steps_per_env * envs * len(segments),
        iteration_seconds=[1.0] * len(segments),
    )


def point(
    ranks,
    num_envs,
    *,
    rates=(100.0,),
    shares_cores=False,
    kind="measured",
    scaling="strong",
    threads=1,
    **options,
):
    """A size that was run."""
    profile = SimpleNamespace(ranks=tuple(rank(num_envs // ranks, **options) for _ in range(ranks)))
    size = JobSize(scaling, ranks, threads, num_envs)
    made = Point(size, kind, shares_cores, list(rates), [x / ranks for x in rates])
    made.communicate_share = [0.1] * len(rates)
    made.profiles = [profile] if kind == "measured" else []
    return made
