"""The CPUs and GPUs that the parts of a run reserve, and whether the nodes of a cluster have room."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from parcade.config import TrainConfig

KINDS = ("CPU", "GPU")
ROUNDING = 1e-9  # of sums of tenths of a CPU


@dataclass(frozen=True)
class Reservation:
    """What each of ``count`` parts of a role reserves, by kind."""

    role: str
    count: int
    each: Mapping[str, float]

    def total(self, kind: str) -> float:
        """Return what all parts of the role reserve."""
        return self.count * self.each[kind]


def reservations(config: TrainConfig) -> list[Reservation]:
    """Return what the parts of a run reserve, by role; roles without parts are left out."""
    t, counts = config.topology, config.part_counts
    roles = {
        "actor": {"CPU": t.actor_cpus, "GPU": t.actor_gpus},
        "learner": {"CPU": t.learner_cpus, "GPU": config.learner_gpus},
        "shard": {"CPU": t.shard_cpus, "GPU": 0.0},
    }
    return [Reservation(role, counts[role], each) for role, each in roles.items() if counts[role]]


def total_of(parts: Iterable[Reservation], kind: str) -> float:
    """Return the CPUs or GPUs that all parts reserve."""
    return sum(part.total(kind) for part in parts)


def largest_of(parts: Iterable[Reservation], kind: str) -> float:
    """Return the most CPUs or GPUs that one part reserves, which a node must have."""
    return max(part.each[kind] for part in parts)


class _Node:
    """What is left of a node: its CPUs, and of each of its GPUs. ``math.inf`` GPUs are never used up."""

    def __init__(self, resources: Mapping[str, float]) -> None:
        self.cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
        self.has_endless_gpus = math.isinf(gpus)
        self.gpus = [] if self.has_endless_gpus else [1.0] * int(gpus + ROUNDING)

    def take(self, each: Mapping[str, float]) -> bool:
        """Reserve what one part reserves, as Ray does; return whether there is room.

        Less than a GPU is a share of one GPU, the fullest with room. More is a number of unused GPUs.
        """
        if each["CPU"] > self.cpus + ROUNDING:
            return False
        share = 0.0 if self.has_endless_gpus else min(each["GPU"], 1.0)
        count = max(1, round(each["GPU"])) if share else 0
        with_room = sorted((free, i) for i, free in enumerate(self.gpus) if free + ROUNDING >= share)[:count]
        if len(with_room) < count:
            return False
        for _, i in with_room:
            self.gpus[i] -= share
        self.cpus -= each["CPU"]
        return True


def without_room(parts: Iterable[Reservation], nodes: Sequence[Mapping[str, float]]) -> str | None:
    """Return the role of the first part without room on any node, or None if all find a place.

    No part is divided among nodes. Large parts choose first, and take the first node with room.
    """
    left = [_Node(node) for node in nodes]
    for part in sorted(parts, key=lambda part: [part.each["GPU"], part.each["CPU"]], reverse=True):
        for _ in range(part.count):
            if not any(node.take(part.each) for node in left):
                return part.role
    return None


def cpus_of_a_node(config: TrainConfig, nodes: int) -> int:
    """Return the whole CPUs that each of ``nodes`` equal nodes must have."""
    parts = reservations(config)
    cpus = math.ceil(max(total_of(parts, "CPU") / nodes, largest_of(parts, "CPU")) - ROUNDING)
    while without_room(parts, [{"CPU": cpus, "GPU": math.inf}] * nodes):
        cpus += 1
    return cpus


def gpus_of_a_node(config: TrainConfig, nodes: int) -> int:
    """Return the GPUs that each of ``nodes`` equal nodes must have."""
    parts = reservations(config)
    gpus = math.ceil(max(total_of(parts, "GPU") / nodes, largest_of(parts, "GPU")) - ROUNDING)
    while without_room(parts, [{"CPU": math.inf, "GPU": gpus}] * nodes):
        gpus += 1
    return gpus
