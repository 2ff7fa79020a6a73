"""A source that plays into a replay and samples from it in one process, for DQN."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from parcade.experience.device_replay import DeviceReplay
from parcade.experience.replay import FILL_STEPS, Replay, TransitionBatch, too_small
from parcade.experience.rollout import play_rollout
from parcade.experience.source import AnyGroup, Source
from parcade.files.state import behind, part_of
from parcade.model.parameters import copy_module_state
from parcade.model.policy import Policy
from parcade.random import uniforms


@dataclass
class Waiting:
    """A batch that waits for a replay to fill: ``steps`` played so far in every environment."""

    for_first_transition: bool
    steps: int = 0


class ReplaySource(Source):
    """Plays ``unroll_length`` steps in every environment, then samples ``batch_size`` transitions.

    Args:
        learning_starts: steps of this rank before the first batch.
        sample_key: uint64 key of the sampling randomness, different on every rank.
        saves_replay: whether ``get_state`` includes the transitions; else a resumed run refills the replay.
    """

    def __init__(
        self,
        group: AnyGroup,
        replay: Replay | DeviceReplay,
        policy: Policy,
        *,
        unroll_length: int,
        batch_size: int,
        learning_starts: int,
        sample_key: int,
        saves_replay: bool,
    ) -> None:
        super().__init__([group])
        self.group = group
        self.replay = replay
        self.unroll_length = unroll_length
        self.batch_size = batch_size
        self.learning_starts = learning_starts
        self.saves_replay = saves_replay
        self._sample_key = np.array([sample_key], np.uint64)
        self._samples = 0
        self._batch: TransitionBatch | None = None
        self._waiting: Waiting | None = None
        self._policy = copy.deepcopy(policy).eval()
        group.start(self._policy)

    @property
    def can_resume_exactly(self) -> bool:
        return super().can_resume_exactly and self.saves_replay

    @property
    def group_names(self) -> list[str]:
        return ["group"]

    def publish(self, policy: Policy) -> None:
        copy_module_state(policy, self._policy)
        if self._batch is not None and self._batch.priorities is not None:
            self.replay.learned(self._batch)
        self._batch = None

    def next_batch(self) -> TransitionBatch:
        self.fill()
        self._waiting = None
        self._samples += 1
        draws = uniforms(self._sample_key, np.array([self._samples]), self.batch_size)[0]
        self._batch = self.replay.sample(draws)
        return self._batch

    def fill(self, seconds: float = math.inf) -> bool:
        """Play what the next batch waits for, but not much longer than this. Return whether it can be drawn.

        Errors: UsageError when the replay is too small for ``learning_starts``.
        """
        end = time.monotonic() + seconds
        if self._waiting is None:
            self._waiting = Waiting(for_first_transition=not len(self.replay))
            self._play(self.unroll_length)
        waiting = self._waiting
        # The length of a replay on a device includes steps that are never sampled. Counting waits for it.
        while len(self.replay) < self.learning_starts or (
            waiting.for_first_transition and not self.replay.sampleable
        ):
            self._play(FILL_STEPS)
            waiting.steps += FILL_STEPS
            if waiting.steps > 2 * self.replay.length:  # new entries have replaced old ones: it grows no more
                raise too_small(self.replay.sampleable, self.learning_starts)
            if time.monotonic() > end:
                return False
        return True

    def _play(self, steps: int) -> None:
        self.replay.add(play_rollout(self.group, self._policy, steps))

    def get_state(self) -> dict[str, np.ndarray | Tensor]:
        state: dict[str, np.ndarray | Tensor] = behind("group.", self.group.get_state())
        state |= {"cut_games": np.int64(self.cut_games), "samples": np.int64(self._samples)}
        if self.saves_replay:
            state |= behind("replay.", self.replay.get_state())
        return state

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self._samples = int(state["samples"])
        group = part_of(state, "group.")
        self.cut_games = int(state["cut_games"]) + self.group.set_state(group, self._policy)
        replay = part_of(state, "replay.")
        if replay and self.saves_replay:  # without it, the replay fills before learning continues
            self.replay.set_state(replay)
