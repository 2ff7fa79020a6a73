"""A rollout in progress: batch rows played one by one, and the final observations of truncated steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from parcade.experience.batch import STEP_FIELDS, Batch, empty_batch
from parcade.model.actions import Actions
from parcade.model.policy import Acted, Policy
from parcade.model.precision import Precision


class Environments(Protocol):
    """What a rollout needs of an ``EnvGroup``."""

    actions: Actions
    observations: Tensor
    starts: Tensor
    precision: Precision

    def __len__(self) -> int: ...
    def decide(self, policy: Policy) -> Acted: ...
    def step(self, acted: Acted) -> dict[str, np.ndarray]: ...


class Truncations:
    """Truncated steps ``(t, b)`` of a rollout, with their final observations and recurrent states."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor | None]] = {}

    def forget(self, t: int) -> None:
        """Drop the truncations of row t, which is about to be overwritten."""
        for place in [place for place in self._kept if place[0] == t]:
            del self._kept[place]

    def keep(self, t: int, b: int, observation: Tensor, state: Tensor | None) -> None:
        """Record a truncation at step t of environment b. Shapes: observation ``[...]``, state ``[2, H]``."""
        self._kept[t, b] = (observation, state)

    def into(self, batch: Batch, first_row: int, first: int, last: int) -> None:
        """Write truncations of environments ``first .. last - 1`` to a batch that starts at ``first_row``."""
        T = len(batch.actions)
        cut = [
            ((t - first_row) % T, b - first, *kept)
            for (t, b), kept in self._kept.items()
            if first <= b < last
        ]
        if not cut:
            return
        cut.sort(key=lambda each: each[:2])
        batch.truncated_at = torch.tensor([(t, b) for t, b, _, _ in cut], device=batch.actions.device)
        batch.truncated_observations = torch.stack([observation for _, _, observation, _ in cut])
        states = [state for _, _, _, state in cut if state is not None]
        batch.truncated_states = torch.stack(states, dim=1) if states else None

    def get_state(self) -> dict[str, Tensor]:
        """Return all truncations in host memory."""
        if not self._kept:
            return {}
        saved = {"cut.places": torch.tensor(list(self._kept))}
        saved["cut.observations"] = torch.stack([observation for observation, _ in self._kept.values()]).cpu()
        states = [state for _, state in self._kept.values() if state is not None]
        return saved | ({"cut.states": torch.stack(states).cpu()} if states else {})

    def set_state(self, saved: dict[str, Tensor], device: torch.device) -> None:
        """Restore a state returned by ``get_state``."""
        places = saved["cut.places"].tolist() if "cut.places" in saved else []
        states = saved.get("cut.states", [None] * len(places))
        self._kept = {}
        for i, (t, b) in enumerate(places):
            state = None if states[i] is None else states[i].to(device)
            self._kept[t, b] = (saved["cut.observations"][i].to(device), state)


def window_of(rows: Batch, group: Environments, first_row: int, columns: slice) -> tuple[Batch, int, int]:
    """Return the steps of environments ``columns``, oldest first, without truncations; and the columns' ends.

    ``first_row`` is the oldest row. The observations of the group are x_T.
    """
    T, B = rows.rewards.shape
    first, last, _ = columns.indices(B)
    batch = dataclasses.replace(
        rows, bootstrap_observations=group.observations.clone(), bootstrap_starts=group.starts.clone()
    )
    if (first_row, first, last) != (0, 0, B):
        batch = batch.window((torch.arange(T, device=rows.actions.device) + first_row) % T, columns)
    return batch, first, last


def rows_of(batch: Batch) -> dict[str, Tensor]:
    """Return the fields of all steps, in host memory, as ``row.*``."""
    return {f"row.{name}": getattr(batch, name).cpu() for name in STEP_FIELDS}


def load_rows(batch: Batch, state: dict[str, Tensor]) -> None:
    """Overwrite the fields of all steps by those of ``rows_of``."""
    for name in STEP_FIELDS:
        getattr(batch, name).copy_(state[f"row.{name}"])


class HostRollout:
    """A rollout in progress of environments whose policy acts on the host.

    Rows may be overwritten (``staggered.py``), which also drops the truncations of their previous steps.
    """

    def __init__(self, group: Environments, unroll_length: int) -> None:
        x = group.observations
        self.batch = empty_batch(unroll_length, len(group), tuple(x.shape[1:]), x.dtype, kind=group.actions)
        self._truncations = Truncations()

    def play_rows(self, rows: Iterable[int], group: Environments, policy: Policy) -> None:
        """Step every environment once per row, in order, and record the steps."""
        with group.precision.autocast():  # around all rows, so that weights are converted once
            for t in rows:
                self.record(t, group, group.decide(policy), policy.version)

    def record(self, t: int, group: Environments, acted: Acted, version: Tensor) -> None:
        """Step the environments with a decision of weights ``version``, and record the step in row t."""
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
        self._truncations.forget(t)
        for b in np.flatnonzero(outcome["truncated"]):
            state = None if acted.state is None else acted.state[:, b].clone()
            self._truncations.keep(t, int(b), torch.from_numpy(outcome["final_obs"][b].copy()), state)

    def finish(self, group: Environments, first_row: int = 0, columns: slice = slice(None)) -> Batch:
        """Return the steps of the environments ``columns``, oldest first; ``first_row`` is the oldest row."""
        batch, first, last = window_of(self.batch, group, first_row, columns)
        self._truncations.into(batch, first_row, first, last)
        return batch

    def get_state(self) -> dict[str, Tensor]:
        """Return the rows played so far, and the final observations of truncated steps."""
        return rows_of(self.batch) | self._truncations.get_state()

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Restore a state returned by ``get_state``."""
        load_rows(self.batch, state)
        self._truncations.set_state(state, torch.device("cpu"))
