"""On-policy rollouts: ``[T, B]`` blocks of consecutive steps.

Without overlap, one group of environments plays T steps with the newest policy, then waits while the learner
learns. With overlap, there are two groups on a fixed schedule: while the learner learns from one group's
rollout, the other group plays its next rollout with the policy of the previous iteration. Batches depend only
on the schedule, never on timing, so a threaded source and a serial one return bit-identical batches. The
policy lag is at most one iteration; ``policy_version`` in every batch records it.
"""

from __future__ import annotations

import copy
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import torch
from torch import Tensor

from parcade.experience.batch import Batch
from parcade.experience.source import AnyGroup, Source
from parcade.files.state import behind, part_of
from parcade.machine.devices import DeviceStream, mark
from parcade.machine.timing import Timer
from parcade.model.parameters import copy_module_state
from parcade.model.policy import Policy

# Timeout for one rollout, and length of the waits that add up to it.
PLAY_TIMEOUT_SECONDS = 600
WAIT_SECONDS = 5


def play_rollout(group: AnyGroup, policy: Policy, unroll_length: int) -> Batch:
    """Play T steps in every environment of a group and return them as a batch."""
    rollout = group.new_rollout(unroll_length)
    rollout.batch.initial_policy_state = None if group.policy_state is None else group.policy_state.clone()
    rollout.play_rows(range(unroll_length), group, policy)
    return rollout.finish(group)


class RolloutSource(Source):
    """Rollouts from one group of environments, or alternately from two (see the module docstring).

    Args:
        groups: one group, or two of equal size to play and learn at the same time.
        unroll_length: T.
        policy: policy to act with until the first ``publish``; copied.
        threaded: with two groups, whether to play in a thread; results do not depend on it.
    """

    def __init__(
        self, groups: list[AnyGroup], unroll_length: int, policy: Policy, *, threaded: bool, timer: Timer
    ) -> None:
        super().__init__(groups)
        self.unroll_length = unroll_length
        self.timer = timer
        self._policy = copy.deepcopy(policy).eval()
        self._next_group = 0
        self._pending: Future[Batch] | Batch | None = None
        self._hangs = False
        self._pool = ThreadPoolExecutor(1, "parcade-actor") if threaded and len(groups) == 2 else None
        self._device = groups[0].device
        # Playing has its own high-priority stream. It does not wait for the learner's work on the GPU,
        # because its own work is short and CPU cores wait for it.
        self._stream = DeviceStream(self._device, urgent=True) if self._pool else None
        for group in groups:
            group.start(self._policy)
        self._published = mark(self._device)

    @property
    def overlaps(self) -> bool:
        """Whether one group plays while the learner learns from the other's rollout."""
        return len(self.groups) == 2

    def publish(self, policy: Policy) -> None:
        self._settle()
        copy_module_state(policy, self._policy)
        self._published = mark(self._device)

    def next_batch(self) -> Batch:
        batch = self._settle()
        self._pending = None
        if batch is None:
            # Use the thread even if nothing overlaps yet, so that only one thread uses the groups' timer.
            batch = self._wait_for(self._pool.submit(self._play)) if self._pool else self._play()
        if self.overlaps:
            self._next_group = 1 - self._next_group
            self._pending = self._pool.submit(self._play) if self._pool else self._play()
        return batch

    def _play(self) -> Batch:
        group = self.groups[self._next_group]
        with group.timer.scope("preprocess"):
            if self._stream is None:
                return play_rollout(group, self._policy, self.unroll_length)
            with self._stream:
                # The weights must be copied, and the learner must no longer use the memory of this rollout.
                self._stream.wait_for(self._published)
                batch = play_rollout(group, self._policy, self.unroll_length)
            self._stream.synchronize()
            return batch

    def _settle(self) -> Batch | None:
        """Wait for the pending rollout, if any, and return it."""
        if isinstance(self._pending, Future):
            self._pending = self._wait_for(self._pending)
        return self._pending

    def _wait_for(self, rollout: Future[Batch]) -> Batch:
        """Return a rollout of the other thread. Errors: RuntimeError after PLAY_TIMEOUT_SECONDS.

        The time in which the process is suspended does not count: at most one of the short waits ends in it.
        """
        with self.timer.scope("wait"):
            for _ in range(PLAY_TIMEOUT_SECONDS // WAIT_SECONDS):
                if wait([rollout], timeout=WAIT_SECONDS).done:
                    return rollout.result()
        self._hangs = True
        raise RuntimeError(
            f"a rollout of {self.unroll_length} steps did not end within {PLAY_TIMEOUT_SECONDS} s; "
            "an environment hangs"
        )

    def get_state(self) -> dict[str, np.ndarray | Tensor]:
        pending = self._settle()
        state: dict[str, np.ndarray | Tensor] = {
            "turn": np.int64(self._next_group),
            "cut_games": np.int64(self.cut_games),
        }
        for name, group in zip(self.group_names, self.groups, strict=True):
            state |= behind(f"{name}.", group.get_state())
        if pending is not None and self.can_resume_exactly:
            state |= behind("pending.", {name: tensor.cpu() for name, tensor in pending.tensors().items()})
        return state

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self._settle()
        self._next_group = int(state["turn"])
        self.cut_games = int(state["cut_games"])
        for name, group in zip(self.group_names, self.groups, strict=True):
            self.cut_games += group.set_state(part_of(state, f"{name}."), self._policy)
        pending = {n: torch.from_numpy(v).to(self._device) for n, v in part_of(state, "pending.").items()}
        self._pending = Batch.from_tensors(pending) if pending else None
        self._published = mark(self._device)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=not self._hangs, cancel_futures=True)
        if not self._hangs:  # otherwise the thread still uses the environments
            super().close()
