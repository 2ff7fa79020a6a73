"""Actors without a network, and one learner that predicts their actions and trains: GA3C.

The prediction queue holds the actors' observations; each forward pass takes all waiting ones. The training
queue holds finished unrolls. On the serial engine, all actors step, one prediction serves all of them, and an
update runs as soon as enough unrolls wait.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from parcade.config import TrainConfig
from parcade.files.state import behind, part_of
from parcade.topology.actor import Actor
from parcade.topology.driver import ATTEMPTS, Driver
from parcade.topology.engine import Engine, Part, PartLost, Pending
from parcade.topology.learner import Learner


class Predicted(Driver):
    """Runs one learner that predicts and trains, and actors that wait only for its predictions."""

    actor_kind = Actor

    def __init__(self, config: TrainConfig, engine: Engine) -> None:
        super().__init__(config, engine)
        self.learner = self.make("learner-0", Learner, self.description)
        self.make_actors()
        self.stepping: list[Pending] = []
        # For each stepping actor: the prediction it received, and its index in that prediction.
        self.answers: dict[str, tuple[Any, int]] = {}
        self.training: deque[Any] = deque()
        self.predictions = 0
        self.predicted_envs = 0

    def begin(self) -> None:
        super().begin()
        for actor in self.of_role("actor"):
            self._step(actor, None, 0)

    def _step(self, actor: Part, answers: Any, place: int) -> None:
        self.answers[actor.name] = (answers, place)
        self.stepping.append(actor.start("step", answers, place))

    def advance(self, share: float) -> dict[str, float]:
        while True:
            if len(self.training) >= self.config.hyper.unrolls_per_update:
                metrics = self._train(share)
                if metrics is not None:
                    return metrics
                continue
            first = self.engine.first_done(self.stepping)
            done = self.engine.all_done(self.stepping)
            asked = [each for each in (done if first in done else [first, *done]) if self._observed(each)]
            if asked:
                self._predict(asked)

    def _observed(self, done: Pending) -> bool:
        """Handle a finished ``step`` call; return False, after restarting the actor, if it died."""
        self.stepping = [each for each in self.stepping if each is not done]
        note = self.answer(done)
        if note is None:
            self.begin_part(done.part)
            self._step(done.part, None, 0)
            return False
        if "input_lost" in note:  # the prediction: the actor sends its observations again
            self._step(done.part, None, 0)
            return False
        if note["unroll"]:
            self.training.append(done.data)
        return True

    def _predict(self, asked: list[Pending]) -> None:
        for _ in range(ATTEMPTS):
            prediction = self.learner.start("predict", *[each.data for each in asked])
            note = self.answer(prediction)
            if note is not None:
                break
            self.revive_learner(self.learner)
        if note is None or "input_lost" in note:
            # An actor's observations were lost with its node: all of these actors send theirs again.
            for each in asked:
                self._step(each.part, None, 0)
            return
        self.predictions += 1
        self.predicted_envs += len(asked) * self.envs_per_actor
        for place, each in enumerate(asked):
            self._step(each.part, prediction.data, place)

    def _train(self, share: float) -> dict[str, float] | None:
        unrolls = [self.training.popleft() for _ in range(self.config.hyper.unrolls_per_update)]
        note = self.answer(self.learner.start("learn", share, *unrolls))
        if note is None:
            self.revive_learner(self.learner)
            return None
        if "input_lost" in note:  # unrolls, with their node: learn from others
            return None
        self.updates = note["version"]
        self.tally.gauge("parts/actors", len(self.of_role("actor")))
        self.tally.gauge("queue/depth", len(self.training))
        self.tally.gauge("predictor/batch", self.predicted_envs / max(1, self.predictions))
        self.keep_learner_snapshot()
        return note["metrics"]

    def pause(self) -> None:
        """Take all answers, which count the steps of the actors. These send their observations again."""
        if self.engine.is_remote:
            for each in list(self.stepping):
                if self._observed(each):
                    self._step(each.part, None, 0)

    def forget_actor(self, actor: Part) -> None:
        self.stepping = [each for each in self.stepping if each.part is not actor]
        self.answers.pop(actor.name, None)

    def take_actor(self, actor: Part) -> None:
        self._step(actor, None, 0)

    def plan(self) -> dict[str, Any]:
        return {
            **super().plan(),
            "stepping": [each.part.name for each in self.stepping],
            "training": len(self.training),
            "predictions": [self.predictions, self.predicted_envs],
        }

    def plan_arrays(self) -> dict[str, np.ndarray]:
        arrays, kept = {}, []
        for data in self.training:
            try:
                held = {n: a for n, a in self.engine.fetch(data).items() if n.startswith("unroll.")}
            except PartLost:  # the node that held it died
                continue
            arrays |= behind(f"training.{len(kept)}.", held)
            kept.append(data)
        self.training = deque(kept)
        for each in self.stepping if not self.engine.is_remote else ():  # see ``pause``
            answers, place = self.answers[each.part.name]
            if answers is not None:
                told = self.engine.fetch(answers)[place]
                arrays |= {f"told.{each.part.name}.{name}": np.asarray(value) for name, value in told.items()}
        return arrays

    def resume(self, plan: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.predictions, self.predicted_envs = plan["predictions"]
        self.stepping = []  # drop the calls that ``scale_actors`` started for added actors
        for i in range(plan["training"]):
            held = part_of(arrays, f"training.{i}.")
            if held:  # earlier versions did not save them on a cluster
                self.training.append(self.engine.share(held))
        if self.engine.is_remote:
            for actor in self.of_role("actor"):
                self._step(actor, None, 0)
            return
        for name in plan["stepping"]:
            told = part_of(arrays, f"told.{name}.")
            self._step(self.parts[name], (told,) if told else None, 0)
