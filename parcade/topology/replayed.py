"""Actors fill a sharded global replay, and learners sample from it: Ape-X, and Gorila with separate actors.

``steps_per_update`` sets the ratio of acting to learning: learners wait for enough steps, and actors run at
most two unrolls per actor ahead of the learners. Steps that refill a lost replay do not count. The serial
engine first stores finished unrolls and new priorities, then runs updates, then lets actors play, in the
order of the calls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parcade.config import TrainConfig
from parcade.config.sizes import check_actors
from parcade.topology.actor import Actor
from parcade.topology.driver import Driver
from parcade.topology.engine import Engine, Part, Pending
from parcade.topology.learner import Learner
from parcade.topology.players import Players
from parcade.topology.replay_shard import ReplayShard
from parcade.topology.server import ServerDriver
from parcade.topology.sharded_replay import ShardedReplay


class Learning(NamedTuple):
    """A running update: its call and its sample, and what they were started with."""

    call: Pending
    sample: Pending
    share: float
    """Of the run that was done."""
    others: dict[str, Any]
    """The contents of the other shards when the sample was requested."""


class Replayed(Driver):
    """Runs actors and the shards of a replay. A subclass makes the learners and handles their answers."""

    actor_kind = Actor

    def __init__(self, config: TrainConfig, engine: Engine) -> None:
        super().__init__(config, engine)
        self.make_learners()
        shards = config.topology.num_replay_shards
        for k in range(shards):
            self.make(f"replay-{k}", ReplayShard, self.host_description, k, shards, self.envs_per_actor)
        self.make_actors()
        self.replay = ShardedReplay(config.hyper)
        self.players = Players(engine)
        self.storing: list[Pending] = []
        self.learning: list[Learning] = []
        self.idle_learners: list[Part] = []
        self.learned = 0
        """Updates, including those that a rollback has undone."""

    # --- what subclasses implement --------------------------------------------------------------------------

    def make_learners(self) -> None:
        """Create the learners, and what they share, without starting them."""
        raise NotImplementedError

    def begin_learners(self) -> None:
        """Start the learners, and what they share."""
        raise NotImplementedError

    def resume_learners(self) -> None:
        """Continue with learners that have their states again."""

    def keep_snapshot(self) -> None:
        """Take a snapshot when one is due."""
        raise NotImplementedError

    def take_answer(self, learner: Part, note: dict[str, Any] | None) -> dict[str, float] | None:
        """Handle the answer to an update; return its metrics, or None when something was restarted."""
        raise NotImplementedError

    def take_last_answer(self, learner: Part, note: dict[str, Any] | None) -> None:
        """Handle an answer while the system pauses. Nothing but the learner itself may be restarted."""
        raise NotImplementedError

    # --- acting and learning --------------------------------------------------------------------------------

    def begin(self) -> None:
        self.begin_learners()
        for part in [*self.of_role("replay"), *self.of_role("actor")]:
            self.begin_part(part)
        self.players.idle, self.idle_learners = self.of_role("actor"), self.of_role("learner")
        self.publish()

    def publish(self) -> None:
        """Use the learner's current weights for all further unrolls."""
        self.players.publish(self.weights)

    @property
    def _may_learn(self) -> bool:
        due_at = self.replay.due_at(self.learned + len(self.learning))
        return self.replay.is_full_enough and due_at <= self.tally.steps

    @property
    def _may_play(self) -> bool:
        delivery = self.config.hyper.unroll_length * self.envs_per_actor
        under_way = self.tally.steps + len(self.players.playing) * delivery
        ahead = 2 * delivery * max(1, len(self.of_role("actor")))
        return under_way < self.replay.due_at(self.learned) + ahead or not self._may_learn

    def advance(self, share: float) -> dict[str, float]:
        self.share = share
        if not self.engine.is_remote:
            self._store_all()  # as a checkpoint does, so that the next sample does not depend on checkpoints
        while True:
            self.keep_snapshot()
            while self.idle_learners and self._may_learn:
                self._learn(self.idle_learners.pop(0), share)
            while self.players.idle and self._may_play:
                self.players.start(self.players.idle.pop(0), self.players.version)
            updates = [each.call for each in self.learning]
            done = self.engine.first_done(self.storing + updates + self.players.calls)
            if done in self.storing:
                self._stored(done)
            elif done in self.players.calls:
                self._played(done)
            else:
                metrics = self._updated(next(each for each in self.learning if each.call is done))
                if metrics is not None:
                    return metrics

    def _learn(self, learner: Part, share: float) -> None:
        shard = self.replay.next_of(self.of_role("replay"))
        self._learn_from(shard, learner, share, self.replay.others_than(shard.name))

    def _learn_from(self, shard: Part, learner: Part, share: float, others: dict[str, Any]) -> None:
        sample = shard.start("sample", others)
        self.learning.append(Learning(learner.start("learn", share, sample.data), sample, share, others))

    def _lanes_of(self, actor: str) -> tuple[Part, int]:
        """Return the shard that stores an actor's unrolls, and the actor's slot in it."""
        index, shards = int(actor.split("-")[1]), self.of_role("replay")
        return shards[index % len(shards)], index // len(shards)

    def _played(self, done: Pending) -> None:
        """Handle a finished ``play`` call: store the unroll, or restart the actor."""
        self.players.finish(done)
        name = done.part.name
        note = self.answer(done)
        if note is None:
            self.begin_part(done.part)
        elif "input_lost" not in note:
            shard, slot = self._lanes_of(name)
            self.storing.append(shard.start("add", int(name.split("-")[1]), note["life"], slot, done.data))
        self.players.idle.append(done.part)

    def _store_all(self) -> None:
        for pending in list(self.storing):
            self._stored(pending)

    def _stored(self, done: Pending) -> None:
        self.storing = [pending for pending in self.storing if pending is not done]
        note = self.answer(done)
        if note is None:
            self._revive_replay(done.part)
        elif "input_lost" not in note:  # else an unroll or priorities, which are not stored then
            self.replay.stored(done.part.name, note)
        self.tally.gauge("replay/transitions", self.replay.num_transitions)
        self.replay.check_filling(self.tally.steps)

    def _revive_replay(self, shard: Part) -> None:
        """Restart a dead replay shard. It starts empty."""
        self.begin_part(shard)
        self.replay.lost(shard.name, self.tally.steps)

    def replace_lost(self, name: str) -> bool:
        if not name.startswith("replay-"):
            return super().replace_lost(name)
        self.note_loss(f"{name} restarted")
        self._revive_replay(self.parts[name])
        return True

    def _updated(self, learning: Learning) -> dict[str, float] | None:
        self.learning.remove(learning)
        learner = learning.call.part
        note = self.answer(learning.call)
        lost = self._sample_was_lost(note, learning)
        metrics = None if lost else self.take_answer(learner, note)
        self.idle_learners.append(learner)
        if metrics is None:
            return None
        self._count_update(learning)
        if self.updates - self.players.version >= self.config.topology.publish_updates:
            self.publish()
        self.tally.gauge("parts/actors", len(self.of_role("actor")))
        self.tally.gauge("replay/age", metrics["policy_lag"])
        return metrics

    def _count_update(self, learning: Learning) -> None:
        """Count an update and store the new priorities of its sample."""
        self.learned += 1
        shard = learning.sample.part
        self.storing.append(shard.start("update_priorities", learning.sample.data, learning.call.data))

    def _sample_was_lost(self, answer: dict[str, Any] | None, learning: Learning) -> bool:
        """Return whether a learner got no sample because a replay shard died. Restart the shard if so."""
        is_lost = answer is not None and "input_lost" in answer
        if answer is not None and "nothing_delivered" not in answer and not is_lost:
            return False
        note = self.answer(learning.sample)
        if note is not None and note.get("transitions"):
            return is_lost  # if so, the shard has died since, and its next call tells
        if note is None:
            self._revive_replay(learning.sample.part)
        return True

    def pause(self) -> None:
        self._store_all()
        if not self.engine.is_remote:
            return
        for pending in self.players.calls:
            self._played(pending)
        self.pause_learners()
        self._store_all()

    def pause_learners(self) -> None:
        """Wait for running updates. Actors continue to play: they never use the learners or their server."""
        if not self.engine.is_remote:
            return
        learning, self.learning = self.learning, []
        for each in learning:
            note = self.answer(each.call)
            self.idle_learners.append(each.call.part)
            if self._sample_was_lost(note, each):
                continue
            self.take_last_answer(each.call.part, note)
            if note is not None and "server_lost" not in note:
                self._count_update(each)

    # --- adding and removing actors, saving and resuming ----------------------------------------------------

    def scale_actors(self, count: int) -> None:
        check_actors(self.config, count)
        removed = self.of_role("actor")[count:]
        super().scale_actors(count)
        for actor in removed:  # nothing replaces its transitions, which would grow old
            shard, slot = self._lanes_of(actor.name)
            self.storing.append(shard.start("retire", slot))

    def forget_actor(self, actor: Part) -> None:
        self.players.forget(actor)

    def take_actor(self, actor: Part) -> None:
        self.players.idle.append(actor)

    def plan(self) -> dict[str, Any]:
        return {
            **super().plan(),
            **self.players.plan(),
            **self.replay.plan(),
            "idle_actors": [part.name for part in self.players.idle],
            "idle_learners": [part.name for part in self.idle_learners],
            "learning": [
                [each.call.part.name, each.sample.part.name, each.share, each.others]
                for each in self.learning
            ],
            "learned": self.learned,
        }

    def plan_arrays(self) -> dict[str, np.ndarray]:
        return self.players.arrays()

    def resume(self, plan: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.learned = plan["learned"]
        self.storing.clear()  # retirements of slots that the saved shards have retired already
        self.replay.resume(plan, self.tally.steps)
        self.resume_learners()
        self.players.resume(plan, arrays, self.parts)
        for learner, shard, share, *others in plan["learning"]:
            # A run of an older version did not note the others.
            contents = others[0] if others else self.replay.others_than(shard)
            self._learn_from(self.parts[shard], self.parts[learner], share, contents)
        self.players.idle = [self.parts[name] for name in plan["idle_actors"]]
        self.idle_learners = [self.parts[name] for name in plan["idle_learners"]]


class OneLearner(Replayed):
    """Ape-X: one learner with its own optimiser."""

    def make_learners(self) -> None:
        self.make("learner-0", Learner, self.description)

    def begin_learners(self) -> None:
        self.begin_part(self.parts["learner-0"])

    def keep_snapshot(self) -> None:
        self.keep_learner_snapshot()

    def take_answer(self, learner: Part, note: dict[str, Any] | None) -> dict[str, float] | None:
        if note is None:
            self.revive_learner(learner)
            return None
        self.updates = note["version"]
        return note["metrics"]

    def take_last_answer(self, learner: Part, note: dict[str, Any] | None) -> None:
        self.take_answer(learner, note)

    def revive_learner(self, learner: Part) -> None:
        super().revive_learner(learner)
        self.publish()  # versions after the snapshot will be counted again


class LearnersWithServer(Replayed, ServerDriver):
    """Gorila: learners that share a parameter server."""

    def make_learners(self) -> None:
        self.make_server(plays=False)

    def begin_learners(self) -> None:
        self.begin_server()

    def resume_learners(self) -> None:
        self.take_snapshot()

    def keep_snapshot(self) -> None:
        self.snapshot_if_due()

    def take_answer(self, learner: Part, note: dict[str, Any] | None) -> dict[str, float] | None:
        return self.learner_answered(learner, note)

    def take_last_answer(self, learner: Part, note: dict[str, Any] | None) -> None:
        self.count_pushes(learner, note)

    def recover_server(self) -> None:
        super().recover_server()
        self.publish()  # actors may use versions that the rollback removed
