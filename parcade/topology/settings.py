"""How many parts of each kind a topology has, and how they are bounded."""

from __future__ import annotations

from dataclasses import dataclass, fields

from parcade.errors import UsageError

# Pushes reach a shard one at a time: beyond this many learners it would be all they wait for.
LEARNERS_PER_SHARD = 64

# What each topology reads; the rest would be accepted and do nothing.
_SERVER = {"num_learners", "num_shards", "max_staleness", "outlier_deviations", "snapshot_seconds"}
_REPLAY = {"num_actors", "num_replay_shards", "publish_updates", "snapshot_seconds"}
READ_BY: dict[str, set[str]] = {
    "bundles": _SERVER,
    "bundles apart": _SERVER | _REPLAY,
    "replayed": _REPLAY,
    "unrolls": {"num_actors", "num_learners", "queue_unrolls", "pull_steps", "snapshot_seconds"},
    "predicted": {"num_actors", "snapshot_seconds"},
    "population": {"num_actors", "snapshot_seconds"},
}
ON_RAY = {"address", "interface", "actor_cpus", "actor_gpus", "learner_cpus", "learner_gpus", "shard_cpus"}


@dataclass(frozen=True)
class TopologyConfig:
    """The parts of an asynchronous system. Counts of what an algorithm does not have are left at their defaults."""

    num_actors: int = 2
    """Actors, where they are apart from learners."""
    num_learners: int = 0
    """Learners; 0 is 2 where each plays for itself, and 1 elsewhere."""
    num_shards: int = 1
    """Shards of the parameter server."""
    num_replay_shards: int = 1
    """Shards of a global replay."""
    max_staleness: int = 64
    """The server drops gradients computed from parameters more updates old than this."""
    outlier_deviations: float = 12.0
    """The server drops gradients whose loss is this many deviations above the running mean."""
    queue_unrolls: int = 0
    """Unrolls under way (played, waiting or learned from) at most; 0 is two for every actor, or twice an update's if that is more."""
    pull_steps: int = 0
    """Steps per environment an actor plays at least before it takes over newer weights; 0 takes them with every unroll."""
    publish_updates: int = 20
    """Updates from a replay between handing out new weights to the actors."""
    snapshot_seconds: float = 10.0
    """Time between snapshots of server and learners in memory: what a killed one can cost. Checkpoints are apart."""
    address: str = ""
    """The Ray cluster to join: auto, or host:port. Empty starts one on this machine for the run."""
    interface: str = ""
    """The network interface whose address this node uses, e.g. eth1; empty leaves it to Ray."""
    actor_cpus: float = 1.0
    """CPUs each actor reserves on its node."""
    actor_gpus: float = 0.0
    """GPUs each actor reserves."""
    learner_cpus: float = 1.0
    """CPUs each learner reserves; nodes that have GPUs learn where learner_gpus asks for them."""
    learner_gpus: float = 0.0
    """GPUs each learner reserves; 0 is one with --device cuda, and none without."""
    shard_cpus: float = 0.5
    """CPUs each shard of the parameter server or the replay reserves."""

    def __post_init__(self) -> None:
        at_least_one = ("num_actors", "num_shards", "num_replay_shards", "publish_updates")
        for name, value in vars(self).items():
            low = 1 if name in at_least_one else 0
            if not isinstance(value, str) and value < low:
                raise UsageError(f"{name}={value} is below {low}; use {low} or more")
        if self.num_replay_shards > self.num_actors:
            raise UsageError(
                f"num_replay_shards={self.num_replay_shards} is more than num_actors={self.num_actors}: "
                f"each shard is filled by actors of its own; use {self.num_actors} or fewer"
            )
        if self.num_learners > LEARNERS_PER_SHARD * self.num_shards:
            need = -(-self.num_learners // LEARNERS_PER_SHARD)
            raise UsageError(
                f"num_learners={self.num_learners} is more than num_shards={self.num_shards} serve "
                f"({LEARNERS_PER_SHARD} each); use --num-shards {need}"
            )

    def changed(self) -> list[str]:
        """The settings that are not at their defaults."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]
