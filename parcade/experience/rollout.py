"""On-policy rollouts: ``[T, B]`` blocks of consecutive steps.

Without overlap one group of environments plays T steps with the newest policy, then waits while the learner learns.
With overlap there are two groups and a fixed schedule: while the learner learns from one group's rollout, the other
group plays its next one with the policy of the last iteration. What is played depends on the schedule alone, never on
timing, so a threaded source and a serial one give the same batches bit for bit; the policy's lag is one iteration at
most and stands in every batch (``policy_version``).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from parcade.experience.batch import STEP_FIELDS, Batch, empty_batch
from parcade.experience.device_group import DeviceEnvGroup, DeviceRollout
from parcade.experience.env_group import EnvGroup
from parcade.experience.episodes import EpisodeLog
from parcade.parameters import copy_module_state
from parcade.policy import Acted, Policy
from parcade.report.timing import Timer
from parcade.state import behind, part_of

# Longer than any rollout takes, shorter than anybody waits.
PLAY_TIMEOUT_SECONDS = 600


class HostRollout:
    """A rollout in the making, of environments on the host: a batch whose rows are played one by one.

    Rows may be played over and over (``staggered.py``); what belongs to a row's older step is then forgotten.
    """

    def __init__(self, group: EnvGroup, unroll_length: int) -> None:
        x = group.observations
        self.batch = empty_batch(unroll_length, len(group), tuple(x.shape[1:]), x.dtype, x.device)
        self._truncated: dict[tuple[int, int], tuple[Tensor, Tensor | None]] = {}

    def play_step(self, t: int, group: EnvGroup, policy: Policy) -> None:
        """Row t: one step of every environment."""
        self.record(t, group, group.decide(policy), policy.version)

    def record(self, t: int, group: EnvGroup, acted: Acted, version: Tensor) -> None:
        """Row t: step the environments with what was decided, by weights of this version, and write it down."""
        batch = self.batch
        batch.observations[t] = group.observations
        batch.starts[t] = group.starts
        batch.actions[t] = acted.actions
        batch.behaviour_log_prob[t] = acted.log_prob
        batch.behaviour_values[t] = acted.values
        batch.policy_version[t] = version
        batch.behaviour_scores[t] = acted.scores
        outcome = group.step(acted)
        batch.rewards[t] = torch.from_numpy(outcome["rewards"].astype(np.float32))
        for name in ("terminated", "truncated", "life_lost"):
            getattr(batch, name)[t] = torch.from_numpy(outcome[name])
        for place in [place for place in self._truncated if place[0] == t]:
            del self._truncated[place]
        for b in np.flatnonzero(outcome["truncated"]):
            state = None if acted.state is None else acted.state[:, b].clone()
            self._truncated[t, int(b)] = (torch.from_numpy(outcome["final_obs"][b].copy()).to(batch.observations.device), state)

    def finish(self, group: EnvGroup, first_row: int = 0, columns: slice = slice(None)) -> Batch:
        """The steps of the environments ``columns``, oldest first; ``first_row`` holds the oldest."""
        T, B = self.batch.actions.shape
        begin, end, _ = columns.indices(B)
        whole = first_row == 0 and (begin, end) == (0, B)
        rows = (torch.arange(T, device=self.batch.actions.device) + first_row) % T
        batch = dataclasses.replace(
            self.batch, bootstrap_observations=group.observations.clone(), bootstrap_starts=group.starts.clone()
        )
        if not whole:
            batch = batch.window(rows, columns)
        cut = [((t - first_row) % T, b - begin, *kept) for (t, b), kept in self._truncated.items() if begin <= b < end]
        if cut:
            device = batch.actions.device
            batch.truncated_at = torch.tensor([(t, b) for t, b, _, _ in cut], device=device)
            batch.truncated_observations = torch.stack([observation for _, _, observation, _ in cut])
            states = [state for _, _, _, state in cut if state is not None]
            batch.truncated_states = torch.stack(states, dim=1) if states else None
        return batch

    def get_state(self) -> dict[str, Tensor]:
        """The rows played so far, with what truncated steps ended in."""
        state = {f"row.{name}": getattr(self.batch, name) for name in STEP_FIELDS}
        if self._truncated:
            state["cut.places"] = torch.tensor(list(self._truncated))
            state["cut.observations"] = torch.stack([observation for observation, _ in self._truncated.values()])
            states = [state for _, state in self._truncated.values() if state is not None]
            state |= {"cut.states": torch.stack(states)} if states else {}
        return state

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Take what ``get_state`` gave."""
        for name in STEP_FIELDS:
            getattr(self.batch, name).copy_(state[f"row.{name}"])
        places = state["cut.places"].tolist() if "cut.places" in state else []
        states = state.get("cut.states", [None] * len(places))
        self._truncated = {(t, b): (state["cut.observations"][i], states[i]) for i, (t, b) in enumerate(places)}


def play_rollout(group: EnvGroup | DeviceEnvGroup, policy: Policy, unroll_length: int) -> Batch:
    """Play T steps in every environment of a group and write down what happened."""
    rollout = new_rollout(group, unroll_length)
    rollout.batch.initial_policy_state = None if group.policy_state is None else group.policy_state.clone()
    for t in range(unroll_length):
        rollout.play_step(t, group, policy)
    return rollout.finish(group)


def new_rollout(group: EnvGroup | DeviceEnvGroup, unroll_length: int) -> HostRollout | DeviceRollout:
    """An empty rollout of the kind the group's environments give."""
    return (DeviceRollout if isinstance(group, DeviceEnvGroup) else HostRollout)(group, unroll_length)


class RolloutSource:
    """Rollouts from one group of environments, or from two in turns (see the module's head).

    Args:
        groups: one group, or two of equal size to play and learn at the same time.
        unroll_length: T.
        policy: acted with until the first ``publish``; copied.
        threaded: with two groups, whether the second really plays in a thread; results do not depend on it.
    """

    def __init__(
        self, groups: list[EnvGroup], unroll_length: int, policy: Policy, *, threaded: bool, timer: Timer
    ) -> None:
        self.groups = groups
        self.unroll_length = unroll_length
        self.timer = timer
        self.cut_games = 0
        self._policy = copy.deepcopy(policy).eval()
        self._turn = 0
        self._pending: Future[Batch] | Batch | None = None
        self._pool = ThreadPoolExecutor(1, "parcade-actor") if threaded and len(groups) == 2 else None
        for group in groups:
            group.start(self._policy)

    @property
    def overlaps(self) -> bool:
        """Whether one group plays while the other is learned from."""
        return len(self.groups) == 2

    @property
    def can_resume_exactly(self) -> bool:
        return all(group.gives_state for group in self.groups)

    @property
    def episode_logs(self) -> list[EpisodeLog]:
        return [group.log for group in self.groups]

    @property
    def frames(self) -> int:
        return sum(group.frames for group in self.groups)

    @property
    def reset_frames(self) -> int:
        return sum(group.reset_frames for group in self.groups)

    @property
    def steps(self) -> int:
        return sum(group.steps for group in self.groups)

    def publish(self, policy: Policy) -> None:
        self._settle()
        copy_module_state(policy, self._policy)

    def next_batch(self) -> Batch:
        batch = self._settle()
        self._pending = None
        if batch is None:
            # In the thread even when nothing overlaps yet, so that one thread alone touches the groups' timer.
            with self.timer.scope("wait") if self._pool else contextlib.nullcontext():
                batch = self._pool.submit(self._play).result(PLAY_TIMEOUT_SECONDS) if self._pool else self._play()
        if self.overlaps:
            self._turn = 1 - self._turn
            self._pending = self._pool.submit(self._play) if self._pool else self._play()
        return batch

    def _play(self) -> Batch:
        group = self.groups[self._turn]
        with group.timer.scope("preprocess"):
            return play_rollout(group, self._policy, self.unroll_length)

    def _settle(self) -> Batch | None:
        """Wait for the rollout under way, if there is one, and return it."""
        if isinstance(self._pending, Future):
            with self.timer.scope("wait"):
                self._pending = self._pending.result(timeout=PLAY_TIMEOUT_SECONDS)
        return self._pending

    def get_state(self) -> dict[str, np.ndarray | Tensor]:
        pending = self._settle()
        state: dict[str, np.ndarray | Tensor] = {"turn": np.int64(self._turn), "cut_games": np.int64(self.cut_games)}
        for i, group in enumerate(self.groups):
            state |= behind(f"group{i}.", group.get_state())
        if pending is not None and self.can_resume_exactly:
            state |= behind("pending.", pending.tensors())
        return state

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self._settle()
        self._turn = int(state["turn"])
        self.cut_games = int(state["cut_games"])
        for i, group in enumerate(self.groups):
            self.cut_games += group.set_state(part_of(state, f"group{i}."), self._policy)
        pending = {n: torch.from_numpy(v) for n, v in part_of(state, "pending.").items()}
        self._pending = Batch.from_tensors(pending) if pending else None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        for group in self.groups:
            group.close()
