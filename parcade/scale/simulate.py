"""Simulation of thousands of ranks from measured parts.

Between two collective calls, every rank works for a time drawn from the measurements. A call ends for all
ranks when the last rank has arrived and the Allreduce has finished. An iteration takes

    sum over calls k of (max over ranks r of work[k, r] + T(n, bytes[k])) + max over r of work[K, r]       (1)

where work[K, r] is the work after the last call. The maximum models stragglers: of a thousand ranks, one is
always late.

The simulation omits traffic of other jobs on the link, failures, memory bandwidth shared by more ranks of a
host than in the measured sizes, and scheduling differences between hosts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from parcade.scale.allreduce_model import AllreduceModel
from parcade.scale.rank_work import RankWork

ITERATIONS = 400


@dataclass(frozen=True)
class Simulated:
    """One simulated size.

    ``steps_per_second`` is the rate over all iterations, ``low`` and ``high`` bound 90 % of them, and the
    shares are of time.
    """

    ranks: int
    hosts: int
    num_envs: int
    steps_per_second: float
    low: float
    high: float
    work_share: float
    communicate_share: float
    wait_share: float


def simulate(
    work: RankWork,
    model: AllreduceModel,
    *,
    ranks: int,
    num_envs: int,
    ranks_per_host: int,
    threads: int = 1,
    sleeping: bool = False,
) -> Simulated:
    """Simulate ``ITERATIONS`` iterations of a job by equation (1).

    If the ``threads`` of a host's ranks exceed the cores of the model, they share cores. ``sleeping`` ranks
    need no core.
    """
    generator = np.random.default_rng([0, ranks])
    turns = 1.0 if sleeping else max(1.0, min(ranks, ranks_per_host) * threads / model.cores)
    # each [m, K + 1]
    firsts, others = (turns * work.segments(num_envs / ranks, first=first) for first in (True, False))
    communicate = sum(model.seconds(ranks, size, ranks_per_host) for size in work.call_bytes)
    seconds, working = np.empty(ITERATIONS), 0.0
    for i in range(ITERATIONS):
        first = firsts[generator.integers(len(firsts))]
        # How many of the other ranks drew each iteration: memory and time do not grow with the ranks.
        counts = generator.multinomial(ranks - 1, np.full(len(others), 1 / len(others)))
        slowest = others[counts > 0].max(0, initial=0.0)
        seconds[i] = np.maximum(first, slowest).sum() + communicate  # eq. 1
        working += float(first.sum() + counts @ others.sum(1)) / ranks / ITERATIONS
    steps = work.steps_per_env * num_envs
    rates = np.sort(steps / seconds)
    total = float(seconds.mean())  # the mean includes rare long iterations, as a measured rate does
    return Simulated(
        ranks=ranks,
        hosts=math.ceil(ranks / ranks_per_host),
        num_envs=num_envs,
        steps_per_second=steps / total,
        low=float(rates[ITERATIONS // 20]),
        high=float(rates[-1 - ITERATIONS // 20]),
        work_share=min(1.0, working / total),
        communicate_share=communicate / total,
        wait_share=max(0.0, 1 - (working + communicate) / total),
    )
