"""Inspecting a running job on this machine: its processes, their cores and their busy threads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from parcade.cluster.processes import ProcessRecord, read_records
from parcade.errors import UsageError
from parcade.files.run_directory import read_json
from parcade.machine.cgroup import read_fact
from parcade.report.findings import Finding

if TYPE_CHECKING:
    import psutil

BUSY_SHARE = 0.2
"""A thread counts as busy if it used more than this share of a core while it was watched."""
PREEMPTED_PER_CPU_SECOND = 50.0
"""Threads that compete for a core are preempted some hundred times per second of its time. Busy threads that
are not preempted take turns: one pool emulates, and another one learns."""


@dataclass(frozen=True)
class RunningProcess:
    """The activity of one process while it was watched.

    Context switches are per second; involuntary ones occur when another thread takes over the core.
    """

    name: str
    pid: int
    cores_used: float
    threads: int
    busy_threads: int
    affinity: tuple[int, ...]
    memory_bytes: int
    voluntary_switches: float
    involuntary_switches: float
    child_cores_used: float = 0.0
    """Of the processes that it started, e.g. to compile the consoles."""


def watch(processes: list[ProcessRecord], seconds: float) -> list[RunningProcess]:
    """Watch processes of this host for ``seconds``. Processes that end meanwhile are left out."""
    before = [(process, _sample(process.pid)) for process in processes]
    started = time.perf_counter()
    time.sleep(seconds)
    watched = []
    for process, first in before:
        last = _sample(process.pid)
        if first is None or last is None:
            continue
        elapsed = time.perf_counter() - started
        used = {thread: cpu - first["threads"].get(thread, 0.0) for thread, cpu in last["threads"].items()}
        # Those of a thread that has ended are missing.
        voluntary, involuntary = np.maximum((last["switches"] - first["switches"]) / elapsed, 0).tolist()
        watched.append(
            RunningProcess(
                name=process.name,
                pid=process.pid,
                cores_used=sum(used.values()) / elapsed,
                threads=len(used),
                busy_threads=sum(cpu / elapsed > BUSY_SHARE for cpu in used.values()),
                affinity=last["affinity"],
                memory_bytes=last["memory"],
                voluntary_switches=voluntary,
                involuntary_switches=involuntary,
                child_cores_used=max(0.0, last["child_seconds"] - first["child_seconds"]) / elapsed,
            )
        )
    return watched


def thread_seconds(process: psutil.Process) -> dict[int, float]:
    """Return the CPU seconds of every thread of a process so far."""
    return {thread.id: thread.user_time + thread.system_time for thread in process.threads()}


def _child_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a process's children and theirs so far, also of those that have ended."""
    import psutil

    own = process.cpu_times()
    spent = own.children_user + own.children_system
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # ended meanwhile
            times = child.cpu_times()
            spent += times.user + times.system
    return spent


def _switches(process: psutil.Process) -> np.ndarray:
    """Return the voluntary and the involuntary context switches of all threads of a process so far.

    On Linux, psutil counts only those of the first thread.
    """
    total = np.zeros(2, np.int64)
    for thread in Path(f"/proc/{process.pid}/task").glob("*/status"):
        lines = (read_fact(thread) or "").splitlines()  # empty if the thread has ended
        counts = dict(line.split(":") for line in lines if "ctxt_switches" in line)
        total += [int(counts.get(f"{kind}_ctxt_switches", 0)) for kind in ("voluntary", "nonvoluntary")]
    return total if total.any() else np.array(process.num_ctx_switches())


def _sample(pid: int) -> dict | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return {
            "threads": thread_seconds(process),
            "child_seconds": _child_seconds(process),
            "affinity": tuple(process.cpu_affinity() if hasattr(process, "cpu_affinity") else ()),
            "memory": process.memory_info().rss,
            "switches": _switches(process),
        }
    except psutil.Error:
        return None


def examine_running(
    processes: list[RunningProcess], cores: float, *, are_all: bool = True
) -> Iterator[Finding]:
    """Yield findings about a run from the activity of its processes. A pure function.

    ``are_all``: whether the run has no other processes, which may work while these wait.
    """
    busy = sum(process.busy_threads for process in processes)
    several = any(process.busy_threads > 1 for process in processes)
    preempted = sum(process.involuntary_switches for process in processes)
    competes = preempted > PREEMPTED_PER_CPU_SECOND * sum(process.cores_used for process in processes)
    if several and busy > cores and competes:
        yield Finding(
            "threads-oversubscribed",
            "problem" if busy >= 2 * cores else "warning",
            says=f"{busy} threads are busy on {cores:g} core(s)",
            evidence=", ".join(f"{p.name}: {p.busy_threads} busy threads" for p in processes)
            + f", preempted {preempted:,.0f} times a second",
            fix=f"use --threads-per-rank {max(1, int(cores // max(1, len(processes))))}",
        )
    pinned = [process for process in processes if len(process.affinity) == 1]
    # With one core in all, nothing pins them there: the plan's rule on ranks and cores says so.
    if cores > 1 and len(pinned) > 1 and len({process.affinity for process in pinned}) < len(pinned):
        yield Finding(
            "ranks-share-a-core",
            "problem",
            says="several ranks are pinned to the same core",
            evidence=", ".join(f"{p.name}: core {p.affinity[0]}" for p in pinned),
            fix="start with mpiexec --bind-to none or --map-by core",
        )
    idle = [process for process in processes if process.cores_used + process.child_cores_used < 0.05]
    if are_all and processes and len(idle) == len(processes):
        yield Finding(
            "nothing-runs",
            "problem",
            says="no process of the run uses a core",
            evidence=", ".join(f"{p.name}: {p.cores_used:.0%} of a core" for p in processes),
            fix="see their stacks: parcade stacks RUN",
        )


def has_parts_on_ray(run: Path) -> bool:
    """Return whether the processes that do a run's work are Ray's, which have no records in its directory."""
    config = run / "config.json"  # not written by parcade.data_parallel, which does not use Ray
    return config.exists() and read_json(config).get("run", {}).get("engine") == "ray"


def look_at_run(run: Path, seconds: float) -> list[RunningProcess]:
    """Watch the processes at work on a run on this host. Errors: UsageError when there are none."""
    processes = [record for record in read_records(run) if record.is_at_work and record.is_running_here()]
    if not processes:
        raise UsageError(f"no process on this machine trains in {run}; a run can be examined while it trains")
    watched = watch(processes, seconds)
    if not watched:
        raise UsageError(
            f"no process of {run} could be watched: it ended, or its threads are hidden from you, as on "
            "macOS; give the flags of its training instead of --run"
        )
    return watched
