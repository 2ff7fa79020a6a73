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
from parcade.experience.replay import too_small
from parcade.topology.actor import Actor
from parcade.topology.engine import Engine, Part, Pending
from parcade.topology.learner import Learner
from parcade.topology.players import Players
from parcade.topology.replay_shard import ReplayShard
from parcade.topology.server import ServerDriver


class Learning(NamedTuple):
    """A running update: its call, its sample, and the share of the run done when it started."""

    call: Pending
    sample: Pending
    share: float


class Replayed(ServerDriver):
    """Runs one learner with its own optimiser (Ape-X), or several with a parameter server (Gorila)."""

    actor_kind = Actor

    def __init__(self, config: TrainConfig, engine: Engine) -> None:
        super().__init__(config, engine)
        t = config.topology
        self.has_server = config.run.algorithm == "gorila"
        if self.has_server:
            self.make_server(plays=False)
        else:
            self.make("learner-0", Learner, self.description)
        for k in range(t.num_replay_shards):
            self.make(
                f"replay-{k}", ReplayShard, self.host_description, k, t.num_replay_shards, self.envs_per_actor
            )
        self.make_actors()
        self.players = Players(engine)
        self.storing: list[Pending] = []
        self.learning: list[Learning] = []
        self.idle_learners: list[Part] = []
        self.transitions: dict[str, int] = {}
        self.masses: dict[str, float] = {}
        """Sum of the priorities in each shard."""
        self.learned = 0
        self.owed: dict[str, float] = {}
        """Batches that each shard should have given by its share of the priorities, less those it gave."""
        self.refill_steps = 0
        """Steps played while a replay that was lost filled again. No updates are due for them."""
        self.refill_began: int | None = None
        """Steps at the start of the refill that has not ended."""
        self._filled_at: int | None = None  # steps when the replay last held enough transitions

    def begin(self) -> None:
        if self.has_server:
            self.begin_server()
        else:
            self.begin_part(self.parts["learner-0"])
        for part in [*self.of_role("replay"), *self.of_role("actor")]:
            self.begin_part(part)
        self.players.idle, self.idle_learners = self.of_role("actor"), self.of_role("learner")
        self.publish()

    def publish(self) -> None:
        """Use the learner's current weights for all further unrolls."""
        self.players.publish(self.weights)

    @property
    def _is_full_enough(self) -> bool:
        return sum(self.transitions.values()) >= max(1, self.config.hyper.learning_starts)

    def _due_at(self, updates: int) -> float:
        """Return the steps after which an update is due that follows this many."""
        hyper = self.config.hyper
        return hyper.learning_starts + updates * hyper.steps_per_update + self.refill_steps

    @property
    def _may_learn(self) -> bool:
        return self._is_full_enough and self._due_at(self.learned + len(self.learning)) <= self.tally.steps

    @property
    def _may_play(self) -> bool:
        delivery = self.config.hyper.unroll_length * self.envs_per_actor
        under_way = self.tally.steps + len(self.players.playing) * delivery
        ahead = 2 * delivery * max(1, len(self.of_role("actor")))
        return under_way < self._due_at(self.learned) + ahead or not self._may_learn

    def advance(self, share: float) -> dict[str, float]:
        if not self.engine.is_remote:
            self._store_all()  # as a checkpoint does, so that the next sample does not depend on checkpoints
        while True:
            if self.has_server:
                self.snapshot_if_due()
            else:
                self.keep_learner_snapshot()
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
        sample = self._next_shard().start("sample")
        self.learning.append(Learning(learner.start("learn", share, sample.data), sample, share))

    def _next_shard(self) -> Part:
        """Choose a shard in proportion to its priorities: several shards give the odds of one replay."""
        shards = [shard for shard in self.of_role("replay") if self.transitions.get(shard.name)]
        total = sum(self.masses[shard.name] for shard in shards)
        for shard in shards:
            self.owed[shard.name] = self.owed.get(shard.name, 0.0) + self.masses[shard.name] / total
        chosen = max(shards, key=lambda shard: self.owed[shard.name])
        self.owed[chosen.name] -= 1
        return chosen

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
        else:
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
        else:
            self.transitions[done.part.name], self.masses[done.part.name] = note["transitions"], note["mass"]
        if self.refill_began is not None and self._is_full_enough:
            self.refill_steps += self.tally.steps - self.refill_began
            self.refill_began = None
        self.tally.gauge("replay/transitions", sum(self.transitions.values()))
        self._check_filling()

    def _check_filling(self) -> None:
        """Refuse a replay that is full before it holds enough transitions. Errors: UsageError."""
        hyper, held = self.config.hyper, sum(self.transitions.values())
        if self._filled_at is None or held >= hyper.learning_starts:
            self._filled_at = self.tally.steps
        elif self.tally.steps - self._filled_at > 2 * hyper.replay_capacity:
            raise too_small(held, hyper.learning_starts)

    def _revive_replay(self, shard: Part) -> None:
        """Restart a dead replay shard. It starts empty; until it is refilled, learners sample from others."""
        self.begin_part(shard)
        self.transitions[shard.name] = self.masses[shard.name] = 0
        self.owed[shard.name] = 0.0
        if self.refill_began is None and not self._is_full_enough:
            self.refill_began = self.tally.steps

    def replace_lost(self, name: str) -> bool:
        if not name.startswith("replay-"):
            return super().replace_lost(name)
        self.note_loss(f"{name} restarted")
        self._revive_replay(self.parts[name])
        return True

    def _updated(self, learning: Learning) -> dict[str, float] | None:
        self.learning.remove(learning)
        call = learning.call
        note = self.answer(call)
        if self._sample_was_lost(note, learning):
            self.idle_learners.append(call.part)
            return None
        if self.has_server:
            metrics = self.learner_answered(call.part, note)
        elif note is None:
            self.revive_learner(call.part)
            metrics = None
        else:
            metrics, self.updates = note["metrics"], note["version"]
        self.idle_learners.append(call.part)
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
        if answer is not None and "nothing_delivered" not in answer:
            return False
        note = self.answer(learning.sample)
        if note is not None and note.get("transitions"):
            return False
        if note is None:
            self._revive_replay(learning.sample.part)
        return True

    def recover_server(self) -> None:
        super().recover_server()
        self.publish()  # actors may use versions that the rollback removed

    def revive_learner(self, learner: Part) -> None:
        super().revive_learner(learner)
        self.publish()

    def pause(self) -> None:
        self._store_all()
        if not self.engine.is_remote:
            return
        learning, self.learning = self.learning, []
        for each in learning:
            note = self.answer(each.call)
            self.idle_learners.append(each.call.part)
            if self._sample_was_lost(note, each):
                continue
            if self.has_server:
                self.count_pushes(each.call.part, note)
            elif note is None:
                self.revive_learner(each.call.part)
            else:
                self.updates = note["version"]
            if note is not None and "server_lost" not in note:
                self._count_update(each)
        self._store_all()

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
            "idle_actors": [part.name for part in self.players.idle],
            "idle_learners": [part.name for part in self.idle_learners],
            "learning": [[each.call.part.name, each.sample.part.name, each.share] for each in self.learning],
            "transitions": self.transitions,
            "masses": self.masses,
            "learned": self.learned,
            "owed": self.owed,
            "refill_steps": self.refill_steps,
            "refill_began": self.refill_began,
        }

    def plan_arrays(self) -> dict[str, np.ndarray]:
        return self.players.arrays()

    def resume(self, plan: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.learned = plan["learned"]
        self.refill_steps, self.refill_began = plan.get("refill_steps", 0), plan.get("refill_began")
        if self.config.hyper.save_replay:
            self.transitions = plan["transitions"]
            self.masses = plan.get("masses", dict(self.transitions))
            self.owed = plan.get("owed", {})
        elif self.refill_began is None:
            self.refill_began = self.tally.steps
        if self.has_server:
            self.take_snapshot()
        self.players.resume(plan, arrays, self.parts)
        for learner, shard, share in plan["learning"]:
            sample = self.parts[shard].start("sample")
            self.learning.append(
                Learning(self.parts[learner].start("learn", share, sample.data), sample, share)
            )
        self.players.idle = [self.parts[name] for name in plan["idle_actors"]]
        self.idle_learners = [self.parts[name] for name in plan["idle_learners"]]
