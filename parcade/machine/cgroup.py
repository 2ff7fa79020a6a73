"""Limits of the control groups of this process, versions 1 and 2: a container's or a Slurm job's."""

from __future__ import annotations

from pathlib import Path

# Files of the limit and of the used memory, and the part of ``memory.stat`` that the kernel can free.
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def read_fact(path: str | Path) -> str | None:
    """Return the text of a file of the kernel, without the line's end; None if it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _paths(controller: str) -> list[Path]:
    """Return the directories with this process's limits of a controller, innermost first."""
    paths: list[Path] = []
    for line in (read_fact("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        root = Path("/sys/fs/cgroup") if not controllers else Path("/sys/fs/cgroup") / controller
        if controllers and controller not in controllers.split(","):
            continue
        inner = root / path.lstrip("/")
        paths += [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]
    return paths


def cgroup_cores() -> float | None:
    """Return the CPU time that the control group allows, in cores; None without a limit."""
    limits = []
    for path in _paths("cpu"):
        quota = (read_fact(path / "cpu.max") or "").split()
        if len(quota) == 2 and quota[0] != "max":
            limits.append(int(quota[0]) / int(quota[1]))
        quota_us, period_us = read_fact(path / "cpu.cfs_quota_us"), read_fact(path / "cpu.cfs_period_us")
        if quota_us and period_us and int(quota_us) > 0:
            limits.append(int(quota_us) / int(period_us))
    return min(limits, default=None)


def cgroup_memory_bytes() -> int | None:
    """Return the memory that the control group allows; None without a limit."""
    return min((limit for limit, _ in _memory_limits()), default=None)


def free_cgroup_memory_bytes() -> int | None:
    """Return the memory that the control group allows and its processes do not use; None without a limit."""
    return min((max(0, limit - used) for limit, used in _memory_limits()), default=None)


def _memory_limits() -> list[tuple[int, int]]:
    """Return the bytes of every memory limit, and those that the processes under it use."""
    limits = []
    for path in _paths("memory"):
        for limit_file, used_file, cache in _MEMORY_FILES:
            limit = read_fact(path / limit_file)
            # cgroup 1 writes "no limit" as a huge number.
            if limit and limit.isdecimal() and int(limit) < 2**60:
                facts = dict(line.split() for line in (read_fact(path / "memory.stat") or "").splitlines())
                limits.append((int(limit), int(read_fact(path / used_file) or 0) - int(facts.get(cache, 0))))
    return limits
