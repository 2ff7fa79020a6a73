"""Actors, a bounded queue of unrolls, and one or several learners that average their gradients: IMPALA.

An actor starts an unroll with the newest weights as soon as the queue has room, so the queue's capacity
limits the policy lag (``unroll_queue.py``). The serial engine runs a learner's update first, then
the actors in the order in which their unrolls started.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parcade.config import TrainConfig
from parcade.exchange.base import check_same_digests
from parcade.files.state import behind, part_of
from parcade.topology.actor import Actor
from parcade.topology.driver import ATTEMPTS, Driver
from parcade.topology.engine import Engine, Part, PartLost, Pending
from parcade.topology.learner import Learner
from parcade.topology.players import Players
from parcade.topology.unroll_queue import QueuedUnroll, UnrollQueue


class Unrolls(Driver):
    """Keeps actors playing while the queue has room, and runs an update when it holds enough unrolls."""

    actor_kind = Actor

    def __init__(self, config: TrainConfig, engine: Engine) -> None:
        super().__init__(config, engine)
        t, hyper = config.topology, config.hyper
        self.count = config.num_learners
        for i in range(self.count):
            self.make(f"learner-{i}", Learner, self.description, i, self.count)
        self.make_actors()
        needed = hyper.unrolls_per_update * self.count
        self.queue = UnrollQueue(t.queue_unrolls or 2 * needed, needed)
        self._fit_queue()
        self.players = Players(engine)
        self.pulled_at: dict[str, tuple[int, int]] = {}  # steps since an actor pulled weights, their version

    def begin(self) -> None:
        super().begin()
        # Without a snapshot, learners that are all lost would begin with other weights than one that lives.
        self.snapshot = self.states(self.of_role("learner")[:1])["learner-0"]
        self.publish()
        self.players.idle = self.of_role("actor")

    def _fit_queue(self) -> None:
        """Give the queue room for two unrolls per actor, unless the config sets its capacity."""
        if not self.config.topology.queue_unrolls:
            self.queue.capacity = 2 * max(self.queue.unrolls_per_update, len(self.of_role("actor")))

    def publish(self) -> None:
        """Use the learner's current weights for all further unrolls that pull weights."""
        pulled = {version for _, version in self.pulled_at.values()}
        self.players.publish(self.weights, keep=pulled if self.config.topology.pull_steps else ())

    def _play(self) -> None:
        """Start unrolls while the queue has room."""
        while self.players.idle and self.queue.admit():
            actor = self.players.idle.pop(0)
            steps, version = self.pulled_at.get(actor.name, (0, -1))
            pulls = version < 0 or steps >= self.config.topology.pull_steps
            if pulls:
                steps, version = 0, self.players.version
            self.pulled_at[actor.name] = (steps + self.config.hyper.unroll_length, version)
            self.players.start(actor, version, sends_weights=pulls)

    def advance(self, share: float) -> dict[str, float]:
        while True:
            while not self.queue.ready:
                self._play()
                self._collect(self.engine.first_done(self.players.calls))
            unrolls = [unroll.data for unroll in self.queue.take()]
            for _ in range(ATTEMPTS):
                metrics = self._learn(share, unrolls)
                if metrics is not None or not unrolls:
                    break
            self.queue.learned()
            if metrics is not None:
                self.publish()
                self._gauge()
                return metrics
            # The unrolls were lost with their node: learn from others.

    def _collect(self, done: Pending) -> None:
        """Handle a finished ``play`` call: queue the unroll, or restart the actor."""
        self.players.finish(done)
        note = self.answer(done)
        if note is None:
            self.queue.drop()
            self.pulled_at.pop(done.part.name, None)
            self.begin_part(done.part)
        elif "input_lost" in note:  # the weights; the actor has none of this version
            self.queue.drop()
            self.pulled_at.pop(done.part.name, None)
        else:
            self.queue.put(QueuedUnroll(done.data, note["version"]))
        self.players.idle.append(done.part)

    def _learn(self, share: float, unrolls: list[Any]) -> dict[str, float] | None:
        """Run one update on ``unrolls``; None when a learner was lost and has been restarted.

        ``unrolls`` are emptied when some of them were lost with their node.
        Actors that finish during the update wait for its end, so that their next unrolls use the new weights.
        """
        self._play()
        learners = self.of_role("learner")
        per_learner = len(unrolls) // self.count
        method = "learn" if self.count == 1 else "gradient"
        calls = [
            learner.start(method, share, *unrolls[i * per_learner : (i + 1) * per_learner])
            for i, learner in enumerate(learners)
        ]
        notes = [self.answer(each) for each in calls]
        if any(note is not None and "input_lost" in note for note in notes):
            unrolls.clear()
        if None in (done := _none_if_behind(notes)) or not unrolls:
            if None in done:
                self._replace(done, learners)
            return None
        if self.count > 1:
            gradients = [each.data for each in calls]
            answers = [self.answer(learner.start("apply", *gradients)) for learner in learners]
            applied = _none_if_behind(answers)
            if not any(note is not None and "version" in note for note in applied):
                if None in applied:
                    self._replace(applied, learners)
                return None
            if None in applied and not self._replace(applied, learners):
                return None
            notes[0]["version"] = max(note["version"] for note in applied if note is not None)
        self.updates = notes[0]["version"]
        return {name: float(np.mean([n["metrics"][name] for n in notes])) for name in notes[0]["metrics"]}

    def check_parameters(self) -> None:
        calls = [learner.start("digest") for learner in self.of_role("learner")]
        try:
            notes = [each.note() for each in calls]
            for each, note in zip(calls, notes, strict=True):
                self.check_alive(each.part, note)
        except PartLost:
            return  # the learner's next call reports the loss
        check_same_digests("learner", [note["digest"] for note in notes], self.updates)

    def _replace(self, notes: list[dict[str, Any] | None], learners: list[Part]) -> bool:
        """Restart dead learners from the state of a living one, or all from the last snapshot if all died.

        Every learner has the same state afterwards. Return False when it is the snapshot's.
        """
        alive = [learner for learner, note in zip(learners, notes, strict=True) if note is not None]
        state = None
        while alive and state is None:
            try:
                (state,) = self.states(alive[:1]).values()
            except PartLost as error:  # it died as well
                self.note_loss(str(error))
                del alive[0]
        if state is None:
            self.tally.rollbacks += 1
        for learner in learners:
            if learner not in alive:
                self.begin_part(learner)
                restored = self.snapshot if state is None else state
                self.insist(learner, "set_state", self.lives[learner.name], restored)
        return state is not None

    def _gauge(self) -> None:
        self.tally.gauge("queue/depth", len(self.queue.waiting))
        self.tally.gauge("queue/under_way", self.queue.under_way)
        if not (self.engine.is_remote or self.config.topology.pull_steps):
            # Unrolls arrive in the order of their starts, each with new weights: the queue bounds the lag.
            self.tally.gauge("queue/max_lag", self.queue.max_lag)
        self.tally.gauge("parts/actors", len(self.of_role("actor")))
        self.keep_learner_snapshot()

    def pause(self) -> None:
        if self.engine.is_remote:
            for pending in self.players.calls:
                self._collect(pending)

    def forget_actor(self, actor: Part) -> None:
        self.queue.drop(self.players.forget(actor))
        self.pulled_at.pop(actor.name, None)
        self._fit_queue()

    def take_actor(self, actor: Part) -> None:
        self.players.idle.append(actor)
        self._fit_queue()

    def plan(self) -> dict[str, Any]:
        return {
            **super().plan(),
            **self.players.plan(),
            "idle": [part.name for part in self.players.idle],
            "waiting": [unroll.version for unroll in self.queue.waiting],
            "pulled_at": self.pulled_at,
        }

    def plan_arrays(self) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        place = 0
        for unroll in list(self.queue.waiting):
            try:
                arrays |= behind(f"waiting.{place}.", self.engine.fetch(unroll.data))
                place += 1
            except PartLost:  # the node that held it died
                self.queue.lose(unroll)
        return arrays | self.players.arrays()

    def resume(self, plan: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        pulled_at = plan["pulled_at"].items()
        self.pulled_at = {name: tuple(value) for name, value in pulled_at if name in self.parts}
        for i, version in enumerate(plan["waiting"]):
            self.queue.put(QueuedUnroll(self.engine.share(part_of(arrays, f"waiting.{i}.")), version))
        self.queue.under_way = len(plan["waiting"]) + len(plan["playing"])
        self.players.resume(plan, arrays, self.parts)
        self.players.idle = [self.parts[name] for name in plan["idle"]]


def _none_if_behind(notes: list[dict[str, Any] | None]) -> list[dict[str, Any] | None]:
    """Return the notes of a joint call, with None for learners that are behind others for want of input.

    If no learner had its input, none has changed and none is behind.
    """
    if any(note is not None and "input_lost" not in note for note in notes):
        return [None if note is None or "input_lost" in note else note for note in notes]
    return notes
