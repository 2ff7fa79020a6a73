"""A model of the time of an Allreduce, fitted to measurements at a few sizes and rank counts.

On one host, with n ranks, b bytes and c cores:

    T(n, b) = t0 + t1 log2(n) + t2 b (n - 1)/n + t3 b max(n/c - 1, 0) + t4 max(n/c - 1, 0)                 (1)

The first three terms are the latency of a tree and the bandwidth of a reduce-scatter with an allgather
(Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH"). The
last two terms are the cost of more ranks than cores. Between h hosts over a link of latency l and bandwidth
w, the same algorithms add

    2 log2(h) l + 2 b (h - 1)/h / w                                                                        (2)
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parcade.scale.on_ranks import run_on_ranks

PROBE_BYTES = (8, 4096, 65_536, 524_288, 2_097_152, 8_388_608)
"""From a flag to the gradient of a large network: latency decides small sizes, bandwidth large ones."""
PROBE_REPEATS = 25
PROBE_LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class Timing:
    """Median seconds of an Allreduce of ``num_bytes`` over ``ranks`` ranks on one host."""

    ranks: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True)
class Link:
    """The network link between hosts."""

    latency_seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class AllreduceModel:
    """Equation (1) with its five coefficients, for hosts with ``cores`` cores. ``link`` adds equation (2)."""

    coefficients: tuple[float, ...]
    cores: int
    link: Link | None = None

    def seconds(self, ranks: int, num_bytes: float, ranks_per_host: int) -> float:
        """Return the seconds of one Allreduce over ``ranks`` ranks with ``ranks_per_host`` on each host."""
        total, hosts = 0.0, math.ceil(ranks / ranks_per_host)
        if ranks > 1:
            local = _features(min(ranks, ranks_per_host), num_bytes, self.cores)
            total = float(local @ np.array(self.coefficients))
        if hosts > 1 and self.link is not None:
            rounds = math.log2(hosts)
            total += 2 * rounds * self.link.latency_seconds  # eq. 2
            total += 2 * num_bytes * (hosts - 1) / hosts / self.link.bytes_per_second
        return total


def _features(ranks: int, num_bytes: float, cores: int) -> np.ndarray:
    turns = max(ranks / cores - 1, 0.0)
    return np.array([1.0, math.log2(ranks), num_bytes * (ranks - 1) / ranks, num_bytes * turns, turns])


def fit_model(timings: list[Timing], cores: int, link: Link | None = None) -> AllreduceModel:
    """Fit non-negative coefficients by least squares of the relative error.

    Errors: ValueError without timings of 2 ranks or more.
    """
    from scipy.optimize import nnls

    used = [timing for timing in timings if timing.ranks > 1]
    if not used:
        raise ValueError("the Allreduce model needs timings of 2 ranks or more")
    rows = np.array([_features(t.ranks, t.num_bytes, cores) / t.seconds for t in used])
    # Scale the columns for the solver: bytes and counts differ by a factor of 1e6.
    scale = np.maximum(rows.max(0), 1e-300)
    return AllreduceModel(tuple(nnls(rows / scale, np.ones(len(used)))[0] / scale), cores, link)


def relative_errors(model: AllreduceModel, timings: list[Timing]) -> list[float]:
    """Return model / measurement - 1 for each timing, on one host."""
    return [model.seconds(t.ranks, t.num_bytes, t.ranks) / t.seconds - 1 for t in timings if t.ranks > 1]


def measure_allreduce(counts: list[int]) -> list[Timing]:
    """Time Allreduce on this host with each number of ranks. Errors: RuntimeError if a probe fails."""
    timings = []
    for ranks in counts:
        rows = run_on_ranks("parcade.scale.allreduce_model", ranks, list(PROBE_BYTES), PROBE_LIMIT_SECONDS)
        timings += [Timing(ranks, *row) for row in rows]
    return timings


def _probe(sizes: list[int], result: Path) -> None:
    """Run one rank of the probe: the median over repeats of the time of the slowest rank, for each size."""
    from mpi4py import MPI

    comm, rows = MPI.COMM_WORLD, []
    for num_bytes in sizes:
        buffer, seconds = np.zeros(num_bytes // 4, np.float32), np.empty(PROBE_REPEATS)
        for i in range(-2, PROBE_REPEATS):  # two warm-up repeats
            comm.Barrier()
            started = time.perf_counter()
            comm.Allreduce(MPI.IN_PLACE, buffer)
            if i >= 0:
                seconds[i] = time.perf_counter() - started
        comm.Allreduce(MPI.IN_PLACE, seconds, op=MPI.MAX)
        rows.append([num_bytes, float(np.median(seconds))])
    if comm.Get_rank() == 0:
        result.write_text(json.dumps(rows))


if __name__ == "__main__":
    _probe(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
