"""A driver whose learners meet at a parameter server: shards, snapshots, and going back to one when a shard dies."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from parcade.config import TrainConfig
from parcade.topology.driver import Driver, RunLost
from parcade.topology.learner import Learner
from parcade.topology.parts import Engine, Part, PartLost
from parcade.topology.server_shard import ServerShard

# A server that is lost so often in a row will not come back.
RECOVERIES = 10


class ServerDriver(Driver):
    """Makes shards and learners. A subclass keeps the learners' calls in ``under_way`` and can wait for all of them.

    When a shard is lost, every shard goes back to the last snapshot, which was taken while nothing was pushed, so that
    all are of one version; ``epoch`` counts that, and pushes from before it are refused.
    """

    def __init__(self, config: TrainConfig, engine: Engine) -> None:
        super().__init__(config, engine)
        self.epoch = 0
        self.sent: dict[tuple[int, int], int] = {}
        """Pushes of every learner in every life: what the ledger must account for."""
        self.snapshots: list[dict[str, np.ndarray]] = []
        self._snapshot_at = time.monotonic()

    def make_server(self, *, plays: bool) -> None:
        """The shards, and the learners that know them."""
        count = self.config.topology.num_shards
        shards = [self.make(f"shard-{k}", ServerShard, self.host_description, k, count) for k in range(count)]
        for i in range(self.config.num_learners):
            arguments = (self.description, i, self.config.num_learners, shards, self.engine.fetch, plays)
            self.make(f"learner-{i}", Learner, *arguments)

    def begin_server(self) -> None:
        """Begin shards, then learners."""
        for shard in self.of_role("shard"):
            self.insist(shard, "begin", self.epoch)
        self.take_snapshot()
        for learner in self.of_role("learner"):
            self.begin_learner(learner)

    def begin_learner(self, learner: Part) -> dict[str, Any]:
        """A learner's first or next life."""
        return self.begin_part(learner, self.epoch, 0)

    def settle(self) -> None:
        """Tell every shard what every learner has sent, ended lives included: what did not arrive is lost."""
        for shard in self.of_role("shard"):
            for (index, life), number in self.sent.items():
                self.insist(shard, "settle", index, life, number)

    def check_alive(self, part: Part, note: dict[str, Any]) -> None:
        if not part.name.startswith("shard"):
            super().check_alive(part, note)
        elif note["epoch"] != self.epoch:
            raise PartLost(part.name, "born anew")

    def take_snapshot(self) -> None:
        """Keep the state of all shards; nothing may be on its way to them. Errors: PartLost."""
        self.snapshots = list(self.states(self.of_role("shard")).values())
        self._snapshot_at = time.monotonic()

    def snapshot_if_due(self) -> None:
        """Keep a snapshot every so often, where parts can die."""
        if (
            self.engine.is_remote
            and time.monotonic() - self._snapshot_at > self.config.topology.snapshot_seconds
        ):
            self.pause()
            try:
                self.take_snapshot()
            except PartLost:
                self.recover_server()

    def recover_server(self) -> None:
        """A shard was lost: all go back to the snapshot, and all learners start from it."""
        self.pause()
        self.tally.rollbacks += 1
        for _ in range(RECOVERIES):
            self.epoch += 1
            for shard, state in zip(self.of_role("shard"), self.snapshots, strict=True):
                self.insist(shard, "begin", self.epoch, state)
            self.settle()
            # A learner keeps its life and its numbers: from the gap the shards see what going back has cost.
            notes = []
            for learner in self.of_role("learner"):
                index, life = self._key(learner)
                notes.append(self.insist(learner, "begin", life, self.epoch, self.sent.get((index, life), 0)))
            if not any("server_lost" in note for note in notes):
                return
        raise RunLost(
            f"the parameter server was lost {RECOVERIES} times while it was being restored; the run stops"
        )

    def _key(self, learner: Part) -> tuple[int, int]:
        return int(learner.name.split("-")[1]), self.lives.setdefault(learner.name, 1)

    def learner_answered(self, learner: Part, note: dict[str, Any] | None) -> dict[str, float] | None:
        """Deal with a learner's turn; returns its metrics, or None when learner or server had to be brought back."""
        if note is None:
            note = self.begin_learner(learner)
        else:
            self.sent[self._key(learner)] = note["pushes"]
        if "server_lost" in note:
            self.count_loss(f"parameter server: {note['server_lost']}")
            self.recover_server()
            return None
        self.updates = max(self.updates, note.get("version", 0))
        return note.get("metrics")

    def restore_part(self, part: Part, state: dict[str, np.ndarray]) -> None:
        if part.name.startswith("shard"):
            self.insist(part, "begin", self.epoch, state)
            return
        super().restore_part(part, state)
        if "pushes" in state:  # a learner of a server, not one with an optimiser of its own
            self.sent[self._key(part)] = int(state["pushes"])

    def restore_arguments(self, part: Part) -> tuple[Any, ...]:
        return (self.epoch,) if part.name.startswith("learner") else ()
