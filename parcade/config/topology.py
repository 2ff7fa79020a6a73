"""The settings of a topology: the number of parts of each kind, their limits and their resources."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, NamedTuple

from parcade.errors import UsageError
from parcade.ranges import Count, Natural, NonNegative, Range, check_ranges

# A shard handles one push at a time; with more learners than this, they mostly wait for it.
LEARNERS_PER_SHARD = 64


class Topology(NamedTuple):
    """A way to connect parts, with the settings it reads; others would have no effect."""

    reads: frozenset[str]
    has_one_learner: bool = False


_SERVER = {"num_learners", "num_shards", "max_staleness", "outlier_deviations", "snapshot_seconds"}
_REPLAY = {"num_actors", "num_replay_shards", "publish_updates", "snapshot_seconds"}
_UNROLLS = {"num_actors", "num_learners", "queue_unrolls", "pull_steps", "snapshot_seconds"}
_ACTORS = {"num_actors", "snapshot_seconds"}
TOPOLOGIES: dict[str, Topology] = {
    "bundles": Topology(frozenset(_SERVER)),
    "bundles apart": Topology(frozenset(_SERVER | _REPLAY)),
    "replayed": Topology(frozenset(_REPLAY), has_one_learner=True),
    "unrolls": Topology(frozenset(_UNROLLS)),
    "predicted": Topology(frozenset(_ACTORS), has_one_learner=True),
    "population": Topology(frozenset(_ACTORS), has_one_learner=True),
}
ON_RAY = ("address", "interface", "actor_cpus", "actor_gpus", "learner_cpus", "learner_gpus", "shard_cpus")
"""Settings that only place the parts on a cluster."""


@dataclass(frozen=True)
class TopologyConfig:
    """The parts of an asynchronous system. Settings that an algorithm does not use keep their defaults."""

    num_actors: Count = 2
    """Number of actors, if they are separate from the learners."""
    num_learners: Natural = 0
    """Number of learners; 0 means 2 if learners play for themselves, otherwise 1."""
    num_shards: Annotated[int, Range(1, 1000)] = 1
    """Number of shards of the parameter server."""
    num_replay_shards: Count = 1
    """Number of shards of the global replay."""
    max_staleness: Natural = 64
    """The server drops gradients whose parameters are more than this many updates old."""
    outlier_deviations: NonNegative = 12.0
    """The server drops gradients whose loss is this many standard deviations above the running mean."""
    queue_unrolls: Natural = 0
    """Maximum number of unrolls being played, waiting or being learned from; 0 means two per actor, or two
    updates' worth if that is more."""
    pull_steps: Natural = 0
    """Minimum steps per environment between an actor's weight updates; 0 updates them with every unroll."""
    publish_updates: Count = 20
    """Updates from a replay between sending new weights to the actors."""
    snapshot_seconds: NonNegative = 10.0
    """Time on Ray between in-memory snapshots of server and learners, the most a failure can lose;
    independent of checkpoints. With --engine serial no part fails alone, and there are none."""
    address: str = ""
    """Ray cluster to join: auto, or host:port. Empty starts a cluster on this machine for the run."""
    interface: str = ""
    """Network interface whose address this node uses, e.g. eth1; empty leaves the choice to Ray."""
    actor_cpus: NonNegative = 1.0
    """CPUs that each actor reserves on its node."""
    actor_gpus: NonNegative = 0.0
    """GPUs that each actor reserves."""
    learner_cpus: NonNegative = 1.0
    """CPUs that each learner reserves on its node; its threads, too, unless --threads-per-rank is given."""
    learner_gpus: NonNegative = 0.0
    """GPUs that each learner reserves on its node; 0 means one with --device cuda, otherwise none."""
    shard_cpus: NonNegative = 0.5
    """CPUs that each shard of the parameter server or the replay reserves."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.num_replay_shards > self.num_actors:
            raise UsageError(
                f"num_replay_shards={self.num_replay_shards} is more than num_actors={self.num_actors}: "
                f"each shard needs at least one actor; use {self.num_actors} or fewer"
            )
        if self.num_learners > LEARNERS_PER_SHARD * self.num_shards:
            need = -(-self.num_learners // LEARNERS_PER_SHARD)
            raise UsageError(
                f"num_learners={self.num_learners} is more than num_shards={self.num_shards} can serve "
                f"({LEARNERS_PER_SHARD} each); use --num-shards {need}"
            )

    def changed(self) -> list[str]:
        """Return the names of the settings that differ from their defaults."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]
