"""Staggered unrolls: an update every few steps, independent of the length of unrolls.

All environments step together with the newest policy. They are divided into G groups, whose unrolls of T
steps start T / G steps apart. Every T / G steps, one group's unroll is complete and is learned from at once.
The policy of its first steps is G - 1 updates older than that of its last steps. V-trace corrects for this;
``policy_version`` records the version of each step.

Source: Dalton & Frosio 2020, "Accelerating Reinforcement Learning through GPU Atari Emulation",
arXiv 1907.08467, section 5 ("multi-batch"): with a thousand environments per GPU, the number of updates is
the bottleneck, not frames.
"""

from __future__ import annotations

import copy

import numpy as np
from torch import Tensor

from parcade.experience.batch import Batch
from parcade.experience.source import AnyGroup, Source
from parcade.files.state import behind, part_of
from parcade.model.parameters import copy_module_state, tensors_of
from parcade.model.policy import Policy


class StaggeredSource(Source):
    """Unrolls ``[T, B / G]`` of each group of environments in turn (see the module docstring).

    Args:
        group: all B environments of this rank; B is a multiple of G.
        unroll_length: T, a multiple of G.
        num_groups: G.
        policy: policy to act with until the first ``publish``; copied.
    """

    def __init__(self, group: AnyGroup, unroll_length: int, num_groups: int, policy: Policy) -> None:
        super().__init__([group])
        self.group, self.unroll_length, self.num_groups = group, unroll_length, num_groups
        self._policy = copy.deepcopy(policy).eval()
        group.start(self._policy)
        self._rollout = group.new_rollout(unroll_length)
        self._played = 0  # total number of steps written to the ring

    @property
    def group_names(self) -> list[str]:
        return ["group"]

    def publish(self, policy: Policy) -> None:
        copy_module_state(policy, self._policy)

    def next_batch(self) -> Batch:
        T, apart = self.unroll_length, self.unroll_length // self.num_groups
        steps = range(self._played, self._played + (T if self._played == 0 else apart))
        self._rollout.play_rows([step % T for step in steps], self.group, self._policy)
        self._played = steps.stop
        which = (self._played - T) // apart % self.num_groups
        size = len(self.group) // self.num_groups
        return self._rollout.finish(self.group, self._played % T, slice(which * size, (which + 1) * size))

    def get_state(self) -> dict[str, np.ndarray | Tensor]:
        state: dict[str, np.ndarray | Tensor] = {"cut_games": np.int64(self.cut_games)}
        state |= behind("group.", self.group.get_state())
        if self.can_resume_exactly:
            state["played"] = np.int64(self._played)
            state |= behind("ring.", self._rollout.get_state())
        return state

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self.cut_games = int(state["cut_games"]) + self.group.set_state(
            part_of(state, "group."), self._policy
        )
        # If the environments cannot be continued, their unrolls start over as well.
        self._rollout = self.group.new_rollout(self.unroll_length)
        self._played = int(state.get("played", 0))
        if self._played:
            self._rollout.set_state(tensors_of(part_of(state, "ring.")))
