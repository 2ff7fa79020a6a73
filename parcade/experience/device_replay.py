"""A replay on a device, whose arrays and samples stay there.

The counterpart of ``replay.py``. All environments advance together, so a single head position suffices. The
host knows it, and therefore ``add`` and ``sample`` read nothing back. Priorities are one array; its
cumulative sum is computed for every batch, which is faster on a device than a sum tree. Steps of priority 0
are never sampled.

Deviations from ``replay.py``: (1) a step is not sampled if its episode is truncated within its n steps,
because the observation to bootstrap from is not stored (that would require a second ring of frames for one
step in ten thousand); (2) frames before the first of an episode are not stored; they are read as zeros, as
Atari environments return them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from parcade.experience.batch import Batch
from parcade.experience.replay import CUT, ENDED, GOES_ON, ReplaySettings, TransitionBatch, entries_of_a_lane


class DeviceReplay:
    """Transitions of ``num_lanes`` environments in bounded device memory; same interface as ``Replay``.

    State, with L entries per lane. The step at absolute position p is in slot p % L:

    | tensor | shape | meaning |
    |---|---|---|
    | frames | ``[lanes, L, ...]`` | newest frame of each observation |
    | actions, rewards, ends, versions | ``[lanes, L]`` | as in ``Replay`` |
    | ages | ``[lanes, L]`` uint8 | number of older frames of the same episode in the stack, at most C - 1 |
    | starts | ``[lanes, L]`` bool | whether the step is the first of its episode |
    | taken_values, best_values | ``[lanes, L]`` float32 | Q(x, a) and max_a Q(x, a), computed by the actor |
    | priorities | ``[lanes, L]`` float64 | 0 for steps that must not be sampled |
    | age | ``[lanes]`` uint8 | age of the newest step |
    """

    NAMES = (
        "frames", "actions", "rewards", "ends", "versions", "ages", "starts", "taken_values", "best_values",
        "priorities",
    )  # fmt: skip

    def __init__(
        self,
        settings: ReplaySettings,
        num_lanes: int,
        observation_shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.settings = settings
        C = settings.frame_stack
        self.length = entries_of_a_lane(settings, num_lanes)
        self.device = torch.device(device)
        shape = (num_lanes, self.length)
        frame_shape = observation_shape[1:] if C > 1 else observation_shape

        def zeros(kind: torch.dtype, *more: int) -> Tensor:
            return torch.zeros(*shape, *more, dtype=kind, device=self.device)

        self.frames = zeros(dtype, *frame_shape)
        self.actions, self.versions = zeros(torch.int16), zeros(torch.int64)
        self.rewards, self.taken_values, self.best_values = (zeros(torch.float32) for _ in range(3))
        self.ends, self.ages, self.starts = zeros(torch.uint8), zeros(torch.uint8), zeros(torch.bool)
        self.priorities = zeros(torch.float64)
        self.age = torch.full((num_lanes,), C - 1, dtype=torch.uint8, device=self.device)
        self.head = 0

    @staticmethod
    def bytes_per_transition(observation_shape: tuple[int, ...], dtype: np.dtype, frame_stack: int) -> int:
        """Bytes of one entry: its frame, 33 of other fields, and 8 of the cumulative sum during sampling."""
        shape = observation_shape[1:] if frame_stack > 1 else observation_shape
        return int(np.prod(shape)) * np.dtype(dtype).itemsize + 2 + 8 + 3 * 4 + 3 + 8 + 8

    def _sampleable(self) -> tuple[int, int]:
        """Return ``first, end``: positions first .. end - 1 have a complete stack and n steps after them."""
        C, n = self.settings.frame_stack, self.settings.n_step
        first = max(0, self.head - self.length) + C - 1
        return first, max(first, self.head - n)

    def __len__(self) -> int:
        """Number of steps with n steps after them; includes the few excluded because of a truncation."""
        first, end = self._sampleable()
        return (end - first) * len(self.frames)

    @property
    def sampleable(self) -> int:
        """Number of steps that can be sampled. Waits for the device."""
        return int((self.priorities > 0).sum())

    def _slots(self, first: int, end: int) -> Tensor:
        return torch.arange(first, end, device=self.device) % self.length

    def add(self, batch: Batch) -> None:
        """Append a ``[T, B]`` block of consecutive steps; environment b is stored in lane b.

        A step becomes sampleable once n steps follow it; the newest ones therefore wait for the next block.
        """
        C, T = self.settings.frame_stack, len(batch.actions)
        if 2 * T * C > self.length:
            raise ValueError(
                f"a block of {T} steps is too long for lanes of {self.length} entries; store it in parts"
            )
        before = self._sampleable()
        slots = self._slots(self.head, self.head + T)
        by_lane = {
            "frames": batch.observations[:, :, -1] if C > 1 else batch.observations,
            "actions": batch.actions.to(torch.int16),
            "rewards": batch.rewards,
            "versions": batch.policy_version,
            "starts": batch.starts,
            "taken_values": batch.behaviour_scores,
            "best_values": batch.behaviour_values,
            "ages": self._ages(batch.starts),
            "ends": torch.where(batch.truncated, CUT, (batch.terminated | batch.life_lost) * ENDED).to(
                torch.uint8
            ),
        }
        for name, rows in by_lane.items():
            getattr(self, name)[:, slots] = rows.transpose(0, 1)
        self.head += T
        first, end = self._sampleable()
        self.priorities[:, self._slots(before[0], first)] = 0.0
        self.priorities[:, slots] = 0.0
        self._admit(max(first, before[1]), end)

    def _ages(self, starts: Tensor) -> Tensor:
        """Return ages ``[T, B]`` of the steps after the newest one, and update ``age``."""
        ages = []
        for start in starts:
            older = (self.age + 1).clamp_(max=self.settings.frame_stack - 1)
            self.age = older.masked_fill(start, 0).to(torch.uint8)
            ages.append(self.age)
        return torch.stack(ages)

    def _admit(self, first: int, end: int) -> None:
        """Set the initial priorities of positions first .. end - 1, which now have n steps after them."""
        if first >= end:
            return
        slots = self._slots(first, end)
        lanes = torch.arange(len(self.frames), device=self.device)
        lanes, slots = lanes.repeat_interleave(len(slots)), slots.repeat(len(self.frames))
        returns, discounts, next_slots, whole = self._n_step(lanes, slots)
        if self.settings.new_is_largest:
            largest = self.priorities.amax()
            first_priorities = torch.where(largest > 0, largest, 1.0)
        else:
            ahead = returns + discounts * self.best_values[lanes, next_slots]
            first_priorities = self._as_priority(ahead - self.taken_values[lanes, slots])
        self.priorities[lanes, slots] = first_priorities * whole

    def _as_priority(self, errors: Tensor) -> Tensor:
        """Return (|error| + 1e-6)^alpha (Schaul 2016, section 3.3); 1 if sampling is uniform."""
        return (errors.abs().double() + 1e-6) ** self.settings.alpha

    def _n_step(self, lanes: Tensor, slots: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return returns, discounts, slots to bootstrap from, and whether those are valid; each ``[N]``."""
        gamma = self.settings.gamma
        returns = torch.zeros(len(slots), device=self.device)
        discounts = torch.ones(len(slots), device=self.device)
        going = torch.ones(len(slots), dtype=torch.bool, device=self.device)
        whole, at = going, slots
        for _ in range(self.settings.n_step):
            returns = returns + going * discounts * self.rewards[lanes, at]
            end = self.ends[lanes, at]
            discounts = torch.where(going, torch.where(end == ENDED, 0.0, gamma * discounts), discounts)
            following = (at + 1) % self.length
            # A truncated episode, or one that a resume interrupted, has no observation to bootstrap from.
            lost = (end == CUT) | ((end == GOES_ON) & self.starts[lanes, following])
            whole = whole & ~(going & lost)
            at = torch.where(going, following, at)
            going = going & (end == GOES_ON)
        return returns, discounts, at, whole

    def _stacks(self, lanes: Tensor, slots: Tensor) -> Tensor:
        """Return observations ``[N, ...]`` whose newest frames are in the slots."""
        C = self.settings.frame_stack
        if C == 1:
            return self.frames[lanes, slots]
        back = torch.arange(C - 1, -1, -1, device=self.device)
        stacks = self.frames[lanes[:, None], (slots[:, None] - back) % self.length]
        shown = self.ages[lanes, slots][:, None] >= back
        return stacks * shown.view(*shown.shape, *[1] * (stacks.ndim - 2))

    def sample(self, uniforms: np.ndarray) -> TransitionBatch:
        """Sample N transitions by N uniforms, stratified if prioritised. Errors: ValueError when empty."""
        if not len(self):
            raise ValueError("the replay holds no transition yet; add more steps than n_step first")
        N = len(uniforms)
        # One draw from each of N equal segments of the total (Schaul 2016, appendix B.2.1).
        shares = (np.arange(N) + uniforms) / N if self.settings.alpha > 0 else uniforms
        sums = self.priorities.flatten().cumsum(0)
        total = sums[-1]
        wanted = torch.from_numpy(shares).to(self.device, non_blocking=True) * total
        # Rounding may give the total itself, which lies past the last entry.
        wanted = torch.minimum(wanted, torch.nextafter(total, torch.zeros_like(total)))
        indices = torch.searchsorted(sums, wanted, right=True)
        lanes, slots = indices // self.length, indices % self.length
        returns, discounts, next_slots, _ = self._n_step(lanes, slots)
        return TransitionBatch(
            observations=self._stacks(lanes, slots),
            next_observations=self._stacks(lanes, next_slots),
            actions=self.actions[lanes, slots].long(),
            returns=returns,
            discounts=discounts,
            probabilities=self.priorities.flatten()[indices] / total,
            size=len(self),
            indices=indices,
            stamps=self._positions(slots),
            policy_version=self.versions[lanes, slots],
        )

    def _positions(self, slots: Tensor) -> Tensor:
        """Return the absolute positions of the steps now in the slots."""
        newest = self.head - 1
        return newest - (newest - slots) % self.length

    def learned(self, batch: TransitionBatch) -> None:
        """Set priorities from absolute errors, except for entries overwritten or retired since sampling."""
        if self.settings.alpha == 0:
            return
        flat = self.priorities.view(-1)
        now = flat[batch.indices]
        still = (self._positions(batch.indices % self.length) == batch.stamps) & (now > 0)
        flat[batch.indices] = torch.where(still, self._as_priority(batch.priorities), now)

    def get_state(self) -> dict[str, Tensor]:
        """Return all arrays in host memory, and the head."""
        state = {name: getattr(self, name).cpu() for name in (*self.NAMES, "age")}
        return state | {"head": torch.tensor(self.head)}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore a state returned by ``get_state``."""
        for name in (*self.NAMES, "age"):
            getattr(self, name).copy_(torch.from_numpy(np.array(state[name])))
        self.head = int(state["head"])
