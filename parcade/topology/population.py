"""Evolution strategies on a cluster: actors evaluate members of the population, one learner takes the step.

Actors return only scores; the learner regenerates each member's noise from its seed. When an actor dies,
another one evaluates its member. The assignment of members to actors affects learning only through the random
starts of the episodes.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from parcade.config import TrainConfig
from parcade.experience.population_batch import members_of
from parcade.topology.driver import Driver
from parcade.topology.engine import Engine, PartLost, Pending
from parcade.topology.evaluating_actor import EvaluatingActor
from parcade.topology.learner import Learner


class Population(Driver):
    """Evaluates one generation per update."""

    actor_kind = EvaluatingActor

    def __init__(self, config: TrainConfig, engine: Engine) -> None:
        super().__init__(config, engine)
        self.learner = self.make("learner-0", Learner, self.description)
        self.make_actors()
        self.generation = 0

    def advance(self, share: float) -> dict[str, float]:
        c = self.config
        weights = self.engine.share(self._weights())
        seeds, signs = members_of(c.run.seed, self.generation, c.hyper.population)
        scores = np.zeros(len(seeds))
        todo, idle = deque(range(len(seeds))), list(self.of_role("actor"))
        under_way: dict[str, tuple[Pending, int]] = {}
        while todo or under_way:
            while todo and idle:
                actor, member = idle.pop(0), todo.popleft()
                call = actor.start("evaluate", weights, int(seeds[member]), int(signs[member]), member)
                under_way[actor.name] = (call, member)
            done = self.engine.first_done([call for call, _ in under_way.values()])
            _, member = under_way.pop(done.part.name)
            note = self.answer(done)
            if note is None:
                todo.appendleft(member)
                self.begin_part(done.part)
            elif "input_lost" in note:
                todo.appendleft(member)
            elif note["score"] is None:
                under_way[done.part.name] = (done.part.start("play_on"), member)
                continue
            else:
                scores[member] = note["score"]
            idle.append(done.part)
        self.generation += 1
        return self._step(share, {"seeds": seeds, "signs": signs, "scores": scores})

    def _weights(self) -> dict[str, np.ndarray]:
        """Return the learner's weights. Restart the learner if it died."""
        while True:
            try:
                return self.weights()[1]
            except PartLost as error:
                self.tally.restarts += 1
                self.count_loss(str(error))
                self.revive_learner(self.learner)

    def _step(self, share: float, evaluated: dict[str, np.ndarray]) -> dict[str, float]:
        while True:
            note = self.answer(self.learner.start("learn", share, evaluated))
            if note is None:
                self.revive_learner(self.learner)
            elif "input_lost" not in note:
                break
        self.updates = note["version"]
        self.tally.gauge("parts/actors", len(self.of_role("actor")))
        self.keep_learner_snapshot()
        return note["metrics"]

    def plan(self) -> dict[str, Any]:
        return {**super().plan(), "generation": self.generation}

    def resume(self, plan: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.generation = plan["generation"]
