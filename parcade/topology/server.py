"""The driver of learners that share a parameter server: shards, snapshots, and rollback when a shard dies."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from parcade.config import TrainConfig
from parcade.topology.driver import Driver, RunLost
from parcade.topology.engine import Engine, Part, PartLost
from parcade.topology.learner import ServerLearner
from parcade.topology.server_shard import ServerShard

# How often in a row the driver tries to restore a lost server.
RECOVERIES = 10


class ServerDriver(Driver):
    """Makes shards and learners. A subclass tracks the learners' calls, for which ``pause_learners`` waits.

    When a shard is lost, all shards roll back to the last snapshot. Snapshots are taken while no push is in
    flight, so all shards have the same version. ``epoch`` counts the rollbacks; shards refuse pushes from
    earlier epochs.
    """

    def __init__(self, config: TrainConfig, engine: Engine) -> None:
        super().__init__(config, engine)
        self.epoch = 0
        self.sent: dict[tuple[int, int], int] = {}
        """The number of pushes by ``(learner, life)``, which the ledger must account for."""
        self.snapshots: list[dict[str, np.ndarray]] = []

    def make_server(self, *, plays: bool) -> None:
        """Create the shards and the learners that use them."""
        count = self.config.topology.num_shards
        for k in range(count):
            self.make(f"shard-{k}", ServerShard, self.host_description, k, count)
        for i in range(self.config.num_learners):
            arguments = (self.description, i, self.config.num_learners, count, self.engine.fetch, plays)
            self.make(f"learner-{i}", ServerLearner, *arguments)

    def begin_server(self) -> None:
        """Start the shards, then the learners."""
        for shard in self.of_role("shard"):
            self.insist(shard, "begin", self.epoch)
        self.take_snapshot()
        for learner in self.of_role("learner"):
            self.begin_learner(learner)

    def begin_learner(self, learner: Part) -> dict[str, Any]:
        """Start a learner's first or next life."""
        return self.begin_part(learner, self.epoch, 0, self.of_role("shard"), self.share)

    def settle(self) -> None:
        """Tell every shard the number of pushes of every learner life; it counts missing ones as lost."""
        for shard in self.of_role("shard"):
            for (index, life), number in self.sent.items():
                self.insist(shard, "settle", index, life, number)

    def check_alive(self, part: Part, note: dict[str, Any]) -> None:
        if not part.name.startswith("shard"):
            super().check_alive(part, note)
        elif note["epoch"] != self.epoch:
            raise PartLost(part.name, "restarted")

    def pause_learners(self) -> None:
        """Wait for the learners' running calls, so that no push is in flight. Actors continue to play."""
        raise NotImplementedError

    def take_snapshot(self) -> None:
        """Store the state of all shards. No push may be in flight. Errors: PartLost."""
        self.snapshots = list(self.states(self.of_role("shard")).values())
        self._snapshot_at = time.monotonic()

    def snapshot_if_due(self) -> None:
        """Take a snapshot when one is due."""
        if self.snapshot_is_due:
            self.pause_learners()
            try:
                self.take_snapshot()
            except PartLost:
                self.recover_server()

    def recover_server(self) -> None:
        """After the loss of a shard, restart all shards and learners from the last snapshot."""
        self.pause_learners()
        self.tally.rollbacks += 1
        self.updates = min(int(state["version"]) for state in self.snapshots)
        for _ in range(RECOVERIES):
            self.epoch += 1
            for shard, state in zip(self.of_role("shard"), self.snapshots, strict=True):
                self.insist(shard, "begin", self.epoch, state)
            self.settle()
            # A learner keeps its life and its push numbers: the gap shows the shards what the rollback lost.
            notes, shards = [], self.of_role("shard")
            for learner in self.of_role("learner"):
                index, life = self._key(learner)
                pushes = self.sent.get((index, life), 0)
                notes.append(self.insist(learner, "begin", life, self.epoch, pushes, shards, self.share))
            if not any("server_lost" in note for note in notes):
                return
        raise RunLost(
            f"the parameter server was lost {RECOVERIES} times while it was being restored; the run stops"
        )

    def _key(self, learner: Part) -> tuple[int, int]:
        return int(learner.name.split("-")[1]), self.lives.setdefault(learner.name, 1)

    def count_pushes(self, learner: Part, note: dict[str, Any] | None) -> dict[str, Any]:
        """Record the pushes of a finished call, or restart a learner that died. Returns the newest note."""
        if note is None:
            return self.begin_learner(learner)
        self.sent[self._key(learner)] = note["pushes"]
        return note

    def learner_answered(self, learner: Part, note: dict[str, Any] | None) -> dict[str, float] | None:
        """Handle the note of an iteration. Return its metrics.

        None when there was no update: learner or server was restarted, or the learner's replay still fills.
        """
        note = self.count_pushes(learner, note)
        if "server_lost" in note:
            self.count_loss(f"parameter server: {note['server_lost']}")
            self.recover_server()
            return None
        self.updates = max(self.updates, note.get("version", 0))
        return note.get("metrics") or None

    def plan(self) -> dict[str, Any]:
        return {**super().plan(), "epoch": self.epoch}

    def restore_part(self, part: Part, state: dict[str, np.ndarray]) -> None:
        if part.name.startswith("shard"):
            self.insist(part, "begin", self.epoch, state)
            return
        if "pushes" in state:  # a learner that uses the server, without its own optimiser
            self.sent[self._key(part)] = int(state["pushes"])
            self.set_state_of(part, {**state, "epoch": np.int64(self.epoch)}, self.of_role("shard"))
            return
        super().restore_part(part, state)
