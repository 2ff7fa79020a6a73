"""The replay: stored transitions and their sampling.

Every environment has a *lane*, a ring of *entries* with one frame each. Consecutive stacks of C frames share
their frames, so a transition costs one frame and not 2C. The complete first stack of an episode is stored,
and the final observation after a truncated step, so that every stack can be read back as C consecutive
entries.

Papers: Mnih 2015 (uniform replay); Schaul 2016, arXiv 1511.05952 (prioritised); Horgan 2018, arXiv 1803.00933
(initial priorities from the values the actor computed when it acted).
"""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from parcade.errors import UsageError
from parcade.experience.batch import Batch
from parcade.experience.prioritized import SumTree

# Steps per block while the replay is filled before the first update.
FILL_STEPS = 16
# Kinds of entries: frames that are only part of stacks, and steps.
SEEN, STEP = 0, 1
# How a step ended: the episode goes on, ended without bootstrap (game over or a life lost), or was truncated.
GOES_ON, ENDED, CUT = 0, 1, 2


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of a replay.

    ``capacity`` is in entries, over all lanes; ``n_step`` and ``gamma`` define the returns; ``frame_stack``
    is C, or 1 if observations are not stacks; ``alpha`` is the exponent of priorities, 0 samples uniformly.
    New steps take their n-step error as their first priority, or the largest priority in the replay
    (``new_is_largest``; Schaul 2016, algorithm 1), if the learner's errors are not TD errors.
    """

    capacity: int
    n_step: int
    gamma: float
    frame_stack: int
    alpha: float = 0.0
    new_is_largest: bool = False


@dataclass
class TransitionBatch:
    """N sampled n-step transitions.

    | field | shape | meaning |
    |---|---|---|
    | observations, next_observations | ``[N, ...]`` | x_t and x_{t+k}, k <= n |
    | actions | ``[N]`` int64 | a_t |
    | returns | ``[N]`` float32 | discounted sum of k rewards |
    | discounts | ``[N]`` float32 | gamma^k, 0 where the episode ended |
    | probabilities | ``[N]`` float64 | sampling probability of each |
    | lowest_probability | float64 or None | that of the largest importance weight; None: the batch's |
    | size | int | number of transitions in the replay |
    | indices, stamps | ``[N]`` int64 | entry and absolute position of each; on the replay's device |
    | policy_version | ``[N]`` int64 | number of updates in the weights that acted |
    | priorities | ``[N]`` or None | absolute errors or losses, set by the learner |
    """

    observations: Tensor
    next_observations: Tensor
    actions: Tensor
    returns: Tensor
    discounts: Tensor
    probabilities: Tensor
    size: int
    indices: np.ndarray | Tensor
    stamps: np.ndarray | Tensor
    policy_version: Tensor
    priorities: Tensor | None = field(default=None)
    lowest_probability: Tensor | None = field(default=None)

    def to(self, device: torch.device) -> TransitionBatch:
        """Return the batch on a device; ``indices`` and ``stamps`` stay on the replay's device."""
        stay = ("indices", "stamps")
        moved = {n: v.to(device) for n, v in vars(self).items() if isinstance(v, Tensor) and n not in stay}
        return dataclasses.replace(self, **moved)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the fields that are not None as arrays; for transfer between processes."""
        return {
            n: v.numpy() if isinstance(v, Tensor) else np.asarray(v)
            for n, v in vars(self).items()
            if v is not None
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> TransitionBatch:
        """Inverse of ``arrays``."""
        plain = {"indices", "stamps"}
        fields = {
            n: v if n in plain else torch.from_numpy(np.array(v)) for n, v in arrays.items() if n != "size"
        }
        return cls(**fields, size=int(arrays["size"]))


def zeros_in_a_file(shape: tuple[int, ...], dtype: np.dtype, directory: Path) -> np.ndarray:
    """Return an array of zeros mapped to a temporary file; the system caches what fits in memory."""
    # The file has no name. The mapping keeps it open until the process ends.
    with tempfile.TemporaryFile(dir=directory, prefix="replay-") as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def entries_of_a_lane(settings: ReplaySettings, num_lanes: int) -> int:
    """Return L, the number of entries per lane. Errors: ValueError if L is too small."""
    length = settings.capacity // num_lanes
    shortest = 4 * settings.frame_stack + 2 * settings.n_step
    if length < shortest:
        raise ValueError(
            f"capacity={settings.capacity} gives {length} entries to each of {num_lanes} environments; "
            f"expected {shortest} or more"
        )
    return length


def too_small(held: int, learning_starts: int) -> UsageError:
    """Return the error of a replay that is full and holds fewer transitions than learning needs."""
    return UsageError(
        f"the replay holds {held:,} complete transitions and will not hold "
        f"learning_starts={learning_starts:,}; use a larger --replay-capacity, "
        "or a smaller --learning-starts or --n-step"
    )


def ranges(first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the ranges from ``first[i]`` up to and without ``end[i]``.

    Args:
        first, end: ``[n]``; a range that ends before its first number is empty.

    Returns: the i and the value of every number; both ``[N]``, where N is the sum of the ranges' lengths.
    """
    counts = np.maximum(0, end - first)
    of = np.repeat(np.arange(len(first)), counts)
    return of, np.arange(len(of)) + (first - np.cumsum(counts) + counts)[of]


class Replay:
    """Transitions of ``num_lanes`` environments in bounded memory.

    State, with L entries per lane. Absolute position p of a lane is in slot p % L:

    | array | shape | meaning |
    |---|---|---|
    | frames | ``[lanes, L, ...]`` | newest frame of each observation |
    | actions, rewards, kinds, ends, versions | ``[lanes, L]`` | fields of each entry |
    | taken_values, best_values | ``[lanes, L]`` float32 | Q(x, a) and max_a Q(x, a), computed by the actor |
    | heads | ``[lanes]`` | number of entries written so far |

    Frames are in a file in the directory ``spill``, if given. The caller passes random numbers to ``sample``;
    the replay itself has no randomness.
    """

    def __init__(
        self,
        settings: ReplaySettings,
        num_lanes: int,
        observation_shape: tuple[int, ...],
        dtype: np.dtype,
        spill: Path | None = None,
    ) -> None:
        self.settings = settings
        C = settings.frame_stack
        self.length = entries_of_a_lane(settings, num_lanes)
        L = self.length
        self.frame_shape = observation_shape[1:] if C > 1 else observation_shape
        shape = (num_lanes, L, *self.frame_shape)
        self.frames = zeros_in_a_file(shape, dtype, spill) if spill else np.zeros(shape, dtype)
        self.actions = np.zeros((num_lanes, L), np.int16)
        self.rewards = np.zeros((num_lanes, L), np.float32)
        self.kinds = np.zeros((num_lanes, L), np.uint8)
        self.ends = np.zeros((num_lanes, L), np.uint8)
        self.versions = np.zeros((num_lanes, L), np.int64)
        self.taken_values = np.zeros((num_lanes, L), np.float32)
        self.best_values = np.zeros((num_lanes, L), np.float32)
        self.heads = np.zeros(num_lanes, np.int64)
        self.tree = SumTree(num_lanes * L)
        self.sampleable = 0

    @staticmethod
    def bytes_per_transition(
        observation_shape: tuple[int, ...], dtype: np.dtype, frame_stack: int, spilled: bool = False
    ) -> int:
        """Bytes of memory of one entry.

        The sum of its frame unless spilled, 24 bytes of other fields, and 16 to 32 bytes of the sum tree
        (counted as 32).
        """
        shape = observation_shape[1:] if frame_stack > 1 else observation_shape
        frame = 0 if spilled else int(np.prod(shape)) * np.dtype(dtype).itemsize
        return frame + 2 + 4 + 1 + 1 + 8 + 4 + 4 + 32

    def __len__(self) -> int:
        """Number of transitions that can be sampled."""
        return self.sampleable

    def add(self, batch: Batch) -> None:
        """Append a ``[T, B]`` block of consecutive steps; environment b is stored in lane b."""
        self.add_to_lanes(np.arange(len(self.heads)), batch)

    def add_to_lanes(self, lanes: np.ndarray, batch: Batch) -> None:
        """Append a ``[T, B]`` block of consecutive steps; environment b is stored in lane ``lanes[b]``.

        A step becomes sampleable once n entries follow it; the newest ones therefore wait for the next block.
        """
        T = len(batch.actions)
        if 2 * T * self.settings.frame_stack > self.length:
            raise ValueError(
                f"a block of {T} steps is too long for lanes of {self.length} entries; store it in parts"
            )
        before = self.heads.copy()
        self._write(lanes, batch)
        self._forget_overwritten(before)
        self._admit(before)

    def _write(self, lanes: np.ndarray, batch: Batch) -> None:
        """Write the entries of a block. Per step t and environment b, indices are ``[T, B]``."""
        C, T = self.settings.frame_stack, len(batch.actions)
        begins, cut = batch.starts.numpy().copy(), batch.truncated.numpy()
        # The first step of a lane is stored with its complete stack, even if its episode started earlier.
        begins[0] |= self.heads[lanes] == 0
        for lane in lanes[begins[0] & (self.heads[lanes] > 0)]:
            self._break_off(lane)
        seen_before = np.cumsum(np.where(begins, C - 1, 0), axis=0)
        finals_before = np.cumsum(cut, axis=0) - cut
        positions = self.heads[lanes] + np.arange(T)[:, None] + seen_before + finals_before
        slots = positions % self.length
        observations = batch.observations.numpy()
        self.frames[lanes, slots] = observations[:, :, -1] if C > 1 else observations
        self.actions[lanes, slots] = batch.actions.numpy()
        self.rewards[lanes, slots] = batch.rewards.numpy()
        self.kinds[lanes, slots] = STEP
        ended = (batch.terminated | batch.life_lost).numpy()
        self.ends[lanes, slots] = np.where(cut, CUT, np.where(ended, ENDED, GOES_ON))
        self.versions[lanes, slots] = batch.policy_version.numpy()
        self.best_values[lanes, slots] = batch.behaviour_values.numpy()
        self.taken_values[lanes, slots] = batch.behaviour_scores.numpy()
        if C > 1 and begins.any():
            t, b = np.nonzero(begins)
            older = (positions[t, b][:, None] - np.arange(C - 1, 0, -1)) % self.length
            self.frames[lanes[b][:, None], older] = observations[t, b, :-1]
            self.kinds[lanes[b][:, None], older] = SEEN
        if cut.any():
            t, b = batch.truncated_at.numpy().T
            final, after = batch.truncated_observations.numpy(), (positions[t, b] + 1) % self.length
            self.frames[lanes[b], after] = final[:, -1] if C > 1 else final
            self.kinds[lanes[b], after] = SEEN
            self.best_values[lanes[b], after] = self.best_values[lanes[b], slots[t, b]]
        self.heads[lanes] = positions[-1] + 1 + cut[-1]

    def _break_off(self, lane: int) -> None:
        """Retire the last n steps of an episode that never ended, because a resume cut it off."""
        last = self.heads[lane] - 1
        slots = np.arange(max(0, self.heads[lane] - self.settings.n_step), self.heads[lane]) % self.length
        if self.kinds[lane, last % self.length] == STEP and self.ends[lane, last % self.length] == GOES_ON:
            self.kinds[lane, slots] = SEEN

    def retire(self, lanes: np.ndarray) -> None:
        """Never sample the entries of these lanes again; new ones may follow."""
        indices = (lanes[:, None] * self.length + np.arange(self.length)).ravel()
        self.sampleable -= int((self.tree.leaves[indices] > 0).sum())
        self.tree.update(indices, 0.0)
        self.kinds[lanes] = SEEN

    def _forget_overwritten(self, before: np.ndarray) -> None:
        """Remove entries from the tree whose slot or stack was overwritten."""
        L, C = self.length, self.settings.frame_stack
        lanes, positions = ranges(np.maximum(0, before - L), np.maximum(0, self.heads - L + C - 1))
        indices = lanes * L + positions % L
        self.sampleable -= int((self.tree.leaves[indices] > 0).sum())
        self.tree.update(indices, 0.0)

    def _admit(self, before: np.ndarray) -> None:
        """Set the initial priorities of steps that now have n entries after them."""
        L, C, n = self.length, self.settings.frame_stack, self.settings.n_step
        first = np.maximum.reduce([np.full_like(before, C - 1), before - n, self.heads - L + C - 1])
        lanes, positions = ranges(first, np.maximum(0, self.heads - n))
        slots = positions % L
        steps = self.kinds[lanes, slots] == STEP
        lanes, slots = lanes[steps], slots[steps]
        self.tree.update(lanes * L + slots, self._first_priorities(lanes, slots))
        self.sampleable += len(slots)

    def _first_priorities(self, lanes: np.ndarray, slots: np.ndarray) -> np.ndarray | float:
        """Return |n-step error|^alpha from the values the actor computed, or the largest priority.

        1 if sampling is uniform, and for the first steps without errors.
        """
        if self.settings.alpha == 0:
            return 1.0
        if self.settings.new_is_largest:
            return float(self.tree.leaves.max()) or 1.0
        returns, discounts, next_slots = self._n_step(lanes, slots)
        errors = returns + discounts * self.best_values[lanes, next_slots] - self.taken_values[lanes, slots]
        return self._as_priority(np.abs(errors))

    def _as_priority(self, errors: np.ndarray) -> np.ndarray:
        return (errors.astype(np.float64) + 1e-6) ** self.settings.alpha

    def _n_step(self, lanes: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return returns, discounts, and the slots of the observations to bootstrap from; each ``[N]``."""
        gamma = self.settings.gamma
        returns = np.zeros(len(slots), np.float32)
        discounts = np.ones(len(slots), np.float32)
        going = np.ones(len(slots), bool)
        at = slots.copy()
        for _ in range(self.settings.n_step):
            returns += np.where(going, discounts * self.rewards[lanes, at], 0.0)
            end = self.ends[lanes, at]
            discounts = np.where(going, np.where(end == ENDED, 0.0, gamma * discounts), discounts).astype(
                np.float32
            )
            # The entry after a truncated step is its final observation, from which to bootstrap.
            at = np.where(going, (at + 1) % self.length, at)
            going &= end == GOES_ON
        return returns, discounts, at

    def _stacks(self, lanes: np.ndarray, slots: np.ndarray) -> Tensor:
        """Return observations ``[N, ...]`` whose newest frames are in the slots."""
        C = self.settings.frame_stack
        if C == 1:
            return torch.from_numpy(self.frames[lanes, slots])
        places = (slots[:, None] - np.arange(C - 1, -1, -1)) % self.length
        return torch.from_numpy(self.frames[lanes[:, None], places])

    def sample(self, uniforms: np.ndarray) -> TransitionBatch:
        """Sample N transitions by N uniforms, stratified if prioritised. Errors: ValueError when empty."""
        if not self.sampleable:
            raise ValueError("the replay holds no transition yet; add more steps than n_step first")
        N = len(uniforms)
        prioritised = self.settings.alpha > 0
        # One draw from each of N equal segments of the total (Schaul 2016, appendix B.2.1).
        shares = (np.arange(N) + uniforms) / N if prioritised else uniforms
        indices = self.tree.sample(shares)
        lanes, slots = np.divmod(indices, self.length)
        returns, discounts, next_slots = self._n_step(lanes, slots)
        return TransitionBatch(
            observations=self._stacks(lanes, slots),
            next_observations=self._stacks(lanes, next_slots),
            actions=torch.from_numpy(self.actions[lanes, slots].astype(np.int64)),
            returns=torch.from_numpy(returns),
            discounts=torch.from_numpy(discounts),
            probabilities=torch.from_numpy(self.tree.leaves[indices] / self.tree.total),
            size=self.sampleable,
            indices=indices,
            stamps=self._positions(lanes, slots),
            policy_version=torch.from_numpy(self.versions[lanes, slots]),
        )

    def _positions(self, lanes: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Return the absolute positions of the entries now in the slots."""
        newest = self.heads[lanes] - 1
        return newest - (newest - slots) % self.length

    def learned(self, batch: TransitionBatch) -> None:
        """Update priorities from a batch that was learned from."""
        self.update_priorities(batch.indices, batch.stamps, batch.priorities.numpy())

    def update_priorities(self, indices: np.ndarray, stamps: np.ndarray, errors: np.ndarray) -> None:
        """Set priorities from absolute errors, except for entries overwritten or retired since sampling."""
        if self.settings.alpha == 0:
            return
        lanes, slots = np.divmod(indices, self.length)
        still = (self._positions(lanes, slots) == stamps) & (self.tree.leaves[indices] > 0)
        self.tree.update(indices[still], self._as_priority(errors[still]))

    def _arrays(self) -> dict[str, np.ndarray]:
        names = (
            "frames", "actions", "rewards", "kinds", "ends", "versions", "taken_values", "best_values",
            "heads",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def get_state(self) -> dict[str, np.ndarray]:
        """Return all arrays and the priorities: not copies, which a checkpoint may have no memory for."""
        return self._arrays() | {"priorities": self.tree.leaves}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore a state returned by ``get_state``."""
        for name, array in self._arrays().items():
            array[...] = state[name]
        priorities = np.asarray(state["priorities"])
        self.tree = SumTree(self.tree.capacity)
        self.tree.update(np.arange(len(priorities)), priorities)
        self.sampleable = int((priorities > 0).sum())
