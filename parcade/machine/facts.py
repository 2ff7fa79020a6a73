"""Facts about this machine, and the commit of the code: where a result comes from."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from parcade.machine.cgroup import cgroup_cores, free_cgroup_memory_bytes


def usable_cores() -> tuple[int, ...]:
    """Return the CPU cores this process may run on, in ascending order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def available_cores() -> int:
    """Return the number of CPU cores this process may run on."""
    return len(usable_cores())


def within_quota(cores: int) -> int:
    """Return how many of these cores processes may keep busy: a container may have a quota of CPU time."""
    return max(1, min(cores, int(cgroup_cores() or cores)))


def cores_at_once() -> int:
    """Return how many cores this process and its children may keep busy: usable ones within the quota."""
    return within_quota(available_cores())


def program_path(name: str) -> str | None:
    """Return the program next to this Python, else the first on PATH, else None."""
    beside_python = Path(sys.executable).parent / name
    return str(beside_python) if beside_python.exists() else shutil.which(name)


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the CPU model name as the kernel reports it.

    Virtual machines may hide the number of the model: "AMD EPYC" has been made since 2017. The family and the
    number of the model in it are added then.
    """
    try:
        first_cpu = cpuinfo.read_text().split("\n\n")[0]
    except OSError:
        first_cpu = ""
    facts = {
        key.strip(): value.strip() for key, _, value in (s.partition(":") for s in first_cpu.splitlines())
    }
    name = facts.get("model name") or platform.processor() or platform.machine()
    if any(letter.isdigit() for letter in name) or "cpu family" not in facts:
        return name
    return f"{name} (family {facts['cpu family']}, model {facts['model']})"


def available_memory_bytes() -> int:
    """Return the memory available to this process without swapping: of the machine and of its control group.

    The machine's total counts if the system does not report what is available.
    """
    try:
        with open("/proc/meminfo") as file:
            there = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    allowed = free_cgroup_memory_bytes()
    return there if allowed is None else min(there, allowed)


def machine() -> dict[str, Any]:
    """Return CPU model, cores, memory and software versions of this machine, without its host name."""
    import torch

    memory_gib = None
    try:
        memory_gib = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (OSError, ValueError):
        pass
    return {
        "cpu": cpu_model(),
        "cores": available_cores(),
        "memory_gib": memory_gib,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
    }


def commit() -> str | None:
    """Return the commit of the source tree this package is imported from, or None outside a git repository.

    The suffix ``-dirty`` marks uncommitted changes.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    run = lambda *words: subprocess.run(  # noqa: E731
        ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10
    )
    try:
        head = run("rev-parse", "--short=12", "HEAD")
        if head.returncode:
            return None
        return head.stdout.strip() + ("-dirty" if run("status", "--porcelain", "-uno").stdout.strip() else "")
    except (OSError, subprocess.TimeoutExpired):
        return None
