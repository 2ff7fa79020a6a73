"""The actor of evolution strategies: it receives a member's seed and sign, and returns the member's score."""

from __future__ import annotations

from typing import Any

import numpy as np

from parcade.build.groups import make_group
from parcade.build.learner import make_policy
from parcade.config import from_json
from parcade.experience.population_source import STEPS_AT_ONCE, Evaluator
from parcade.files.state import behind, part_of
from parcade.machine.threads import one_thread, set_part_threads
from parcade.machine.timing import Timer, process_note
from parcade.model.parameters import load_weights
from parcade.topology.lives import PlayCounter, Restartable, needs_life


class EvaluatingActor(Restartable):
    """Evaluates members on environments ``index * size`` to ``(index + 1) * size - 1`` of the run."""

    def __init__(self, config: dict[str, Any], index: int, size: int) -> None:
        self.config = from_json(config)
        set_part_threads(one_thread(self.config.run.threads_per_rank))
        hyper = self.config.hyper
        self.timer = Timer(outside="wait")
        self.lanes = [
            make_group(self.config, index * size + i, 1, num_threads=1, timer=self.timer) for i in range(size)
        ]
        self.evaluator = Evaluator(self.lanes, make_policy(self.config), hyper.sigma, hyper.games_per_member)
        self.counter = PlayCounter(self.lanes, [self.evaluator.log])

    def begin(self, life: int) -> tuple[dict[str, Any], None]:
        """Reset the environments, with seeds of this life."""
        for lane in self.lanes:
            lane.set_life(life)
        self.evaluator.start()
        return super().begin(life)

    @needs_life
    def evaluate(
        self, weights: dict[str, np.ndarray], seed: int, sign: int, member: int
    ) -> tuple[dict[str, Any], None]:
        """Play the first steps of a member's episodes; the note holds its mean score if they are over.

        Otherwise, the score is None, and ``play_on`` continues.

        Args:
            weights: the unperturbed policy, with its input statistics.
            seed: generates the member's noise.
            sign: +1 or -1, multiplies the noise.
            member: index in the population; selects the environment.
        """
        with self.timer.scope("other"):
            load_weights(self.evaluator.policy, weights)
            center = self.evaluator.flat.data.detach().clone()  # without parameters that are not trained
            self.evaluator.begin(center, seed, sign, member)
        return self._play()

    @needs_life
    def play_on(self) -> tuple[dict[str, Any], None]:
        """Play further steps of the member's episodes; the note is that of ``evaluate``."""
        return self._play()

    def _play(self) -> tuple[dict[str, Any], None]:
        with self.timer.scope("other"):
            score = self.evaluator.play(STEPS_AT_ONCE)
        return {
            "score": score,
            **self.counter.take(),
            **process_note(),
            "time": self.timer.snapshot(),
        }, None

    @needs_life
    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
        """Return the state of the environments, each of which is at the start of an episode."""
        state = {}
        for i, lane in enumerate(self.lanes):
            state |= behind(
                f"lane{i}.", {name: np.asarray(value) for name, value in lane.get_state().items()}
            )
        return {"exact": all(lane.gives_state for lane in self.lanes)}, state

    def set_state(self, life: int, state: dict[str, np.ndarray]) -> tuple[dict[str, Any], None]:
        """Continue from the data of ``get_state``."""
        self.life = life
        for i, lane in enumerate(self.lanes):
            lane.set_life(life)
            part = {n: np.array(v) for n, v in part_of(state, f"lane{i}.").items()}
            lane.set_state(part, self.evaluator.policy)
        self.counter.restored()
        return {}, None

    def close(self) -> None:
        """Close the environments."""
        for lane in self.lanes:
            lane.close()
