"""Environments on CPU cores with the network on a GPU, arranged so that both work at the same time.

The environments form two halves on a fixed schedule: while the cores emulate one half, the device selects
actions for the other. Only the newest frame of a stack is uploaded, from pinned memory; the device assembles
the stacks. The host's thread limits the rate, so all device work between two steps of a half is one recorded
function: uploads, stacks, decision and the download of the actions. Rollouts are stored on the device;
rewards and ends are uploaded together when a rollout is complete. Both halves act with the same policy, and
the noise depends only on the environment and its step. Results therefore depend on the schedule, never on
timing.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from parcade.capture import Capture
from parcade.experience.batch import Batch, empty_batch
from parcade.experience.env_group import EnvGroup
from parcade.experience.episodes import EpisodeLog
from parcade.experience.group_states import joined, parted
from parcade.experience.host_rollout import Truncations, load_rows, rows_of, window_of
from parcade.machine.devices import Download, Upload
from parcade.model.policy import Acted, Policy

OUTCOMES = ("terminated", "truncated", "life_lost")
# Fields of a batch that a decision fills, in this order.
DECIDED = (
    "observations", "starts", "actions", "behaviour_log_prob", "behaviour_values", "behaviour_scores",
    "policy_version",
)  # fmt: skip


class HybridEnvGroup:
    """The interface of ``EnvGroup`` for sources, with observations, starts and policy state on a device.

    Args:
        halves: one group of environments, or two of equal size. They keep the step counts, lives and scores.
        device: device of the network.
        is_stack: whether observations are stacks ``[k, height, width]`` that gain one frame per step.
        capture: records the device work of a decision.
    """

    def __init__(
        self, halves: list[EnvGroup], device: torch.device, *, is_stack: bool, capture: Capture
    ) -> None:
        self.halves = halves
        self.device = device
        self.is_stack = is_stack
        self.timer = halves[0].timer
        self.sides = [_Side(half, device, is_stack=is_stack, capture=capture) for half in halves]
        self._rollouts: dict[int, HybridRollout] = {}

    def __len__(self) -> int:
        return sum(len(half) for half in self.halves)

    @property
    def logs(self) -> list[EpisodeLog]:
        """The episode log of each half."""
        return [half.log for half in self.halves]

    @property
    def frames(self) -> int:
        return sum(half.frames for half in self.halves)

    @property
    def reset_frames(self) -> int:
        return sum(half.reset_frames for half in self.halves)

    @property
    def steps(self) -> int:
        """Total number of steps of all environments."""
        return sum(half.steps for half in self.halves)

    @property
    def gives_state(self) -> bool:
        return all(half.gives_state for half in self.halves)

    @property
    def observations(self) -> Tensor:
        """x_t ``[n, ...]`` on the device."""
        return torch.cat([side.observations for side in self.sides])

    @property
    def starts(self) -> Tensor:
        """Whether x_t is the first observation of an episode, ``[n]`` bool on the device."""
        return torch.cat([side.starts.tensor for side in self.sides])

    @property
    def policy_state(self) -> Tensor | None:
        """The recurrent state before x_t, ``[2, n, H]``; None for a feed-forward policy."""
        states = [side.policy_state for side in self.sides]
        return None if states[0] is None else torch.cat(states, dim=1)

    def set_life(self, life: int) -> None:
        """Set the life of the process, as ``EnvGroup`` does."""
        for half in self.halves:
            half.set_life(life)

    def start(self, policy: Policy) -> None:
        """Reset all environments from the run's seeds."""
        for half, side in zip(self.halves, self.sides, strict=True):
            half.start(policy)
            side.take_observations(policy)

    def new_rollout(self, unroll_length: int) -> HybridRollout:
        """Return the group's rollout of T steps; always the same object for the same length."""
        if unroll_length not in self._rollouts:
            self._rollouts[unroll_length] = HybridRollout(self, unroll_length)
        return self._rollouts[unroll_length]

    def get_state(self) -> dict[str, np.ndarray | Tensor]:
        """Return the same state as ``EnvGroup.get_state`` for all environments in one group."""
        for half, side in zip(self.halves, self.sides, strict=True):
            half.policy_state = None if side.policy_state is None else side.policy_state.cpu()
        return joined([half.get_state() for half in self.halves])

    def set_state(self, state: dict[str, np.ndarray], policy: Policy) -> int:
        """Continue from a state of this class or ``EnvGroup``. Returns the number of restarted episodes."""
        cut = 0
        parts = parted(state, [len(half) for half in self.halves])
        for half, side, part in zip(self.halves, self.sides, parts, strict=True):
            cut += half.set_state(part, policy)
            side.take_observations(policy)
        return cut

    def close(self) -> None:
        """Close the environments."""
        for half in self.halves:
            half.close()


class _Side:
    """The device side of one half: inputs of a decision, its recurrent state, and its actions."""

    def __init__(self, half: EnvGroup, device: torch.device, *, is_stack: bool, capture: Capture) -> None:
        self.half, self.device, self.is_stack, self.capture = half, device, is_stack, capture
        n, space = len(half), half.env.single_observation_space
        self.dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype
        self.observations = torch.zeros(n, *space.shape, dtype=self.dtype, device=device)
        self.frames = Upload((n, *(space.shape[1:] if is_stack else space.shape)), self.dtype, device)
        self.starts = Upload((n,), torch.bool, device)
        self.noise = Upload((n, half.actions.noise_columns), torch.float32, device)
        self.actions = Download((n, *half.actions.shape), half.actions.dtype, device)
        self.policy_state: Tensor | None = None
        self._shares_frames = is_stack and hasattr(half.env, "share_frames")
        if self._shares_frames:
            half.env.share_frames(self.frames.host)

    def take_observations(self, policy: Policy) -> None:
        """Upload the current observations as complete stacks, after a reset or a restored state."""
        self.observations.copy_(self.half.observations)
        self.starts.host[:] = self.half.starts.numpy()
        self.starts.send()
        saved, fresh = self.half.policy_state, policy.initial_state(len(self.half))
        if fresh is not None:
            self.policy_state = fresh if self.policy_state is None else self.policy_state
            self.policy_state.copy_(fresh if saved is None else saved)

    def begin(self, row: list[Tensor], policy: Policy, *, shown: bool) -> None:
        """Queue the next decision, which also fills these tensors of a rollout, without waiting.

        ``shown``: whether the device has the newest observations already.
        """
        self.noise.host[:] = self.half.noise()
        with self.half.timer.scope("infer"):
            acted = self.capture.run(self._decide if shown else self._show_and_decide, policy)
            self.actions.mark()
            self._store(row, acted, policy)

    def finish(self) -> dict[str, np.ndarray]:
        """Wait for the actions and step the environments. Result as ``EnvGroup.step``.

        The wait also shows that the device has read the uploads of ``begin``, which may now be overwritten.
        """
        with self.half.timer.scope("wait"):
            actions = self.actions.wait()
        outcome = self.half.step_with(actions)
        self.starts.host[:] = self.half.starts.numpy()
        if not self._shares_frames:
            newest = self.half.observations.numpy()
            self.frames.host[:] = newest[:, -1] if self.is_stack else newest
        return outcome

    def show(self) -> None:
        """Bring the newest observations to the device, without a decision."""
        with self.half.timer.scope("infer"):
            self.capture.run(self._show)

    def _show_and_decide(self, policy: Policy) -> Acted:
        self._show()
        return self._decide(policy)

    def _show(self) -> None:
        """Append the newest frames to the stacks. At the start of an episode older frames become zeros."""
        self.frames.send()
        self.starts.send()
        if not self.is_stack:
            self.observations.copy_(self.frames.tensor)
            return
        goes_on = ~self.starts.tensor.view(-1, *[1] * (self.observations.ndim - 1))
        older = self.observations[:, 1:] * goes_on
        self.observations.copy_(torch.cat([older, self.frames.tensor[:, None]], dim=1))

    def _decide(self, policy: Policy) -> Acted:
        """Act on the current inputs, on the device."""
        self.noise.send()
        with self.half.precision.autocast(self.device.type):
            acted = policy.act(self.observations, self.noise.tensor, self.policy_state, self.starts.tensor)
        if self.policy_state is not None:
            self.policy_state.copy_(acted.state)
        self.actions.receive(acted.actions)
        return acted

    def _store(self, row: list[Tensor], acted: Acted, policy: Policy) -> None:
        """Queue copies of the inputs and the decision, in the order of ``DECIDED``.

        Not recorded: with an index on the device, torch's deterministic form of a copy sorts the indices and
        copies the columns of all rows, twice. One call, because each call may wait for the learner's thread.
        """
        decided = [self.observations, self.starts.tensor, acted.actions, acted.log_prob, acted.values]
        torch._foreach_copy_(row, [*decided, acted.scores, policy.version])


class HybridRollout:
    """A rollout in progress with rows on the device; rewards and ends stay on the host until it is complete.

    The group's next rollout of the same length reuses this memory and invalidates the batch.
    """

    def __init__(self, group: HybridEnvGroup, unroll_length: int) -> None:
        T, B = unroll_length, len(group)
        side = group.sides[0]
        shape, kind = tuple(side.observations.shape[1:]), side.half.actions
        self.batch = empty_batch(T, B, shape, side.dtype, group.device, kind=kind)
        self._rewards = Upload((T, B), torch.float32, group.device)
        self._ends = Upload((len(OUTCOMES), T, B), torch.bool, group.device)
        self.batch.rewards = self._rewards.tensor
        for name, ends in zip(OUTCOMES, self._ends.tensor, strict=True):
            setattr(self.batch, name, ends)
        self._truncations = Truncations()
        edges = np.cumsum([0, *map(len, group.halves)]).tolist()
        self._columns = [slice(first, last) for first, last in zip(edges, edges[1:], strict=False)]
        fields = [getattr(self.batch, name) for name in DECIDED]
        # Made once: making these views in every rollout took longer than its copies.
        self._rows = [
            [[field[t, columns] for field in fields] for columns in self._columns] for t in range(T)
        ]

    def play_rows(self, rows: Iterable[int], group: HybridEnvGroup, policy: Policy) -> None:
        """Step every environment once per row; the device decides for one half as the other is emulated."""
        rows = list(rows)
        for side, row in zip(group.sides, self._rows[rows[0]], strict=True):
            side.begin(row, policy, shown=True)
        for t, following in zip(rows, [*rows[1:], None], strict=True):
            self._truncations.forget(t)
            for k, side in enumerate(group.sides):
                self._record(t, self._columns[k].start, side.finish(), side)
                if following is None:
                    side.show()
                else:
                    side.begin(self._rows[following][k], policy, shown=False)

    def _record(self, t: int, first: int, outcome: dict[str, np.ndarray], side: _Side) -> None:
        columns = slice(first, first + len(side.half))
        self._rewards.host[t, columns] = outcome["rewards"]
        for name, ends in zip(OUTCOMES, self._ends.host, strict=True):
            ends[t, columns] = outcome[name]
        for b in np.flatnonzero(outcome["truncated"]):
            final = torch.from_numpy(outcome["final_obs"][b].copy()).to(side.device)
            state = None if side.policy_state is None else side.policy_state[:, b].clone()
            self._truncations.keep(t, first + int(b), final, state)

    def finish(self, group: HybridEnvGroup, first_row: int = 0, columns: slice = slice(None)) -> Batch:
        """As ``HostRollout.finish``."""
        with group.timer.on_device("copies"):
            self._rewards.send()
            self._ends.send()
        batch, first, last = window_of(self.batch, group, first_row, columns)
        self._truncations.into(batch, first_row, first, last)
        return batch

    def get_state(self) -> dict[str, Tensor]:
        """Return the rows so far and the final observations of truncated steps, as ``HostRollout`` does."""
        self._rewards.send()
        self._ends.send()
        return rows_of(self.batch) | self._truncations.get_state()

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Restore a state returned by ``get_state``."""
        load_rows(self.batch, state)
        self._rewards.host[:] = state["row.rewards"].numpy()
        for name, ends in zip(OUTCOMES, self._ends.host, strict=True):
            ends[:] = state[f"row.{name}"].numpy()
        self._truncations.set_state(state, self.batch.observations.device)
