"""Learners that play and share a parameter server: A3C, asynchronous Q-learning, bundled Gorila.

The serial engine runs the learners in a fixed order. A learner receives the current parameters when it
pushes, so with N learners its next gradient is N - 1 updates old. This reproduces the schedule of the
asynchronous system deterministically.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parcade.config import TrainConfig
from parcade.topology.engine import Engine, Part, Pending
from parcade.topology.server import ServerDriver


class Bundles(ServerDriver):
    """Keeps one iteration of every learner running."""

    def __init__(self, config: TrainConfig, engine: Engine) -> None:
        super().__init__(config, engine)
        self.make_server(plays=True)
        self._running: list[tuple[Pending, float]] = []
        self._idle: list[Part] = []

    def begin(self) -> None:
        self.begin_server()
        for learner in self.of_role("learner"):
            self._start(learner, 0.0)

    def _start(self, learner: Part, share: float) -> None:
        self._running.append((learner.start("iterate", share), share))

    def advance(self, share: float) -> dict[str, float]:
        self.share = share
        while True:
            self.snapshot_if_due()
            for learner in self._idle:
                self._start(learner, share)
            self._idle = []
            done = self.engine.first_done([pending for pending, _ in self._running])
            self._running = [each for each in self._running if each[0] is not done]
            metrics = self.learner_answered(done.part, self.answer(done))
            self._idle.append(done.part)
            if metrics is not None:
                return metrics

    def pause(self) -> None:
        self.pause_learners()

    def pause_learners(self) -> None:
        if not self.engine.is_remote:
            return
        waiting, self._running = self._running, []
        for pending, _ in waiting:
            note = self.answer(pending)
            self._idle.append(pending.part)
            self.count_pushes(pending.part, note)

    def plan(self) -> dict[str, Any]:
        running = [[pending.part.name, share] for pending, share in self._running]
        return {**super().plan(), "turns": running, "idle": [part.name for part in self._idle]}

    def resume(self, plan: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.take_snapshot()
        for name, share in plan["turns"]:
            self._start(self.parts[name], share)
        self._idle = [self.parts[name] for name in plan["idle"]]
