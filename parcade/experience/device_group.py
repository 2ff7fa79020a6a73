"""Environments whose observations, rewards and flags are on the learner's device, and their rollouts.

The counterpart of ``env_group.py`` and ``host_rollout.py`` for environments that return tensors
(``envs/native_cuda.py``). While a rollout is played, the host only queues work and reads nothing back, so the
device never waits for Python. Values needed on the host (scores of finished episodes, frames, truncated
steps) are collected on the device and fetched once, after the last step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parcade.experience.batch import Batch, empty_batch
from parcade.experience.device_random import TensorUniforms
from parcade.experience.env_group import EnvGroup
from parcade.experience.episodes import EpisodeLog
from parcade.experience.host_rollout import load_rows, rows_of, window_of
from parcade.files.state import behind, part_of
from parcade.machine.timing import Timer
from parcade.model.policy import Acted, Policy
from parcade.model.precision import Precision
from parcade.random import seeds_of_life


class DeviceEnvGroup:
    """``n`` environments stepped together on a device, with the interface of ``EnvGroup`` for sources.

    ``seeded_by`` makes a group on the host. If given, ``start`` copies the state of that group's environments
    after its own start (its warm-up included).

    Attributes: those of ``EnvGroup``. ``frames`` and ``reset_frames`` are updated after every rollout.
    """

    def __init__(
        self,
        env: Any,
        env_indices: np.ndarray,
        console_seeds: np.ndarray,
        noise_keys: np.ndarray,
        *,
        device: torch.device | str,
        clip_rewards: bool,
        life_loss: bool,
        precision: Precision,
        timer: Timer,
        seeded_by: Callable[[], EnvGroup] | None = None,
    ) -> None:
        self.env, self.env_indices, self.console_seeds = env, env_indices, console_seeds
        self._seeds, self._life = (console_seeds, noise_keys), 1
        self.device = torch.device(device)
        self.noise = TensorUniforms(noise_keys, self.device)
        self.clip_rewards, self.life_loss, self.precision, self.timer = (
            clip_rewards, life_loss, precision, timer,
        )  # fmt: skip
        self.seeded_by = seeded_by
        self.log = EpisodeLog(env_indices)
        self.env_steps = 0
        self.frames = 0
        self.reset_frames = 0
        self.policy_state: Tensor | None = None
        self.observations: Tensor | None = None
        n = len(env_indices)
        # Score, steps and frames of the current episodes.
        self.running = torch.zeros(3, n, dtype=torch.float64, device=self.device)
        self.frame_counts = torch.zeros(2, dtype=torch.int64, device=self.device)

    def __len__(self) -> int:
        return len(self.env_indices)

    gives_state = True

    @property
    def logs(self) -> list[EpisodeLog]:
        """The log as a list, for compatibility with groups made of several."""
        return [self.log]

    def new_rollout(self, unroll_length: int) -> DeviceRollout:
        """Return an empty rollout of T steps of these environments."""
        return DeviceRollout(self, unroll_length)

    @property
    def steps(self) -> int:
        """Total number of steps of all environments."""
        return self.env_steps * len(self)

    def set_life(self, life: int) -> None:
        """Set the life of the process, as ``EnvGroup`` does."""
        self._life = life
        self.console_seeds, keys = seeds_of_life(*self._seeds, life)
        self.noise.set_keys(keys)

    def start(self, policy: Policy) -> None:
        """Reset all environments from the run's seeds."""
        self.observations, infos = self.env.reset(seed=self.console_seeds)
        self.starts = torch.ones(len(self), dtype=torch.bool, device=self.device)
        self.lives = infos["lives"].clone()
        self.frame_counts[1] += infos["reset_frames"].sum()
        self.policy_state = policy.initial_state(len(self))
        if self.seeded_by is not None:
            host = self.seeded_by()
            host.set_life(self._life)
            host.start(policy)
            self.set_state(host.get_state(), policy)
            host.close()

    def decide(self, policy: Policy) -> Acted:
        """Return the policy's actions for the current observations, without side effects."""
        with self.timer.scope("infer"), self.precision.autocast(self.device.type):
            return policy.act(
                self.observations, self.noise.at(self.env_steps), self.policy_state, self.starts
            )

    def step(self, acted: Acted) -> dict[str, Tensor]:
        """Take one step. Returns the columns of ``EnvGroup.step``, and ``ended`` and ``totals``.

        ``ended`` is ``[n]`` bool; ``totals`` ``[3, n]`` are score, steps and frames of each environment's
        current episode, including this step.
        """
        with self.timer.scope("emulate"):
            observations, raw_rewards, terminated, truncated, infos = self.env.step(acted.actions)
        ended = terminated | truncated
        truncated = truncated & ~terminated
        life_lost = (infos["lives"] < self.lives) & ~ended
        self.lives.copy_(infos["lives"])
        self.env_steps += 1
        self.frame_counts[0] += infos["frames"].sum()
        self.frame_counts[1] += infos["reset_frames"].sum()
        self.running[0] += raw_rewards
        self.running[1] += 1
        self.running[2] += infos["frames"]
        totals = self.running.clone()
        self.running *= ~ended
        self.policy_state, self.observations, self.starts = acted.state, observations, ended
        rewards = raw_rewards.float()
        return {
            "rewards": rewards.clamp(-1, 1) if self.clip_rewards else rewards,
            "terminated": terminated,
            "truncated": truncated,
            "life_lost": life_lost if self.life_loss else torch.zeros_like(ended),
            "final_obs": infos["final_obs"],
            "ended": ended,
            "totals": totals,
        }

    def fetch_counts(self, ended: Tensor, totals: Tensor) -> None:
        """Update host counters and the log after T steps. Shapes: ended ``[T, n]``, totals ``[T, 3, n]``."""
        self.frames, self.reset_frames = self.frame_counts.tolist()
        at = ended.nonzero()  # [k, 2]: (t, b)
        rows = totals[at[:, 0], :, at[:, 1]].cpu().numpy()  # [k, 3]
        at = at.cpu().numpy()
        first_step = self.env_steps - len(ended)
        columns = [rows, self.env_indices[at[:, 1]][:, None], (first_step + 1 + at[:, 0])[:, None]]
        self.log.add_finished(np.concatenate(columns, axis=1).astype(np.float64))

    def get_state(self) -> dict[str, np.ndarray | Tensor]:
        """Return the complete state, in host memory."""
        self.log.score[:], self.log.steps[:], self.log.frames[:] = self.running.cpu().numpy()
        state = behind("log.", self.log.get_state())
        state["env_steps"] = np.full(len(self), self.env_steps)
        state["counters"] = np.array([self.frames, self.reset_frames], np.int64)
        state |= behind("env.", self.env.get_state())
        state |= {"starts": self.starts.cpu(), "lives": self.lives.cpu().numpy()}
        return state | ({} if self.policy_state is None else {"policy_state": self.policy_state.cpu()})

    def set_state(self, state: dict[str, np.ndarray], policy: Policy) -> int:
        """Continue from a state of this class or of ``EnvGroup``. Returns 0: no episode is cut off."""
        self.env_steps = int(state["env_steps"][0])
        self.frames, self.reset_frames = (int(x) for x in state["counters"])
        self.frame_counts.copy_(torch.tensor([self.frames, self.reset_frames]))
        self.log.set_state(part_of(state, "log."))
        self.running.copy_(torch.from_numpy(np.stack([self.log.score, self.log.steps, self.log.frames])))
        env_state = part_of(state, "env.")
        self.observations = self.env.set_state(env_state)
        self.starts = torch.from_numpy(np.asarray(state["starts"])).to(self.device)
        self.lives = torch.from_numpy(np.asarray(state["lives"])).to(self.device)
        saved = state.get("policy_state")
        self.policy_state = None if saved is None else torch.from_numpy(np.asarray(saved)).to(self.device)
        return 0

    def close(self) -> None:
        """Close the environments."""
        self.env.close()


class DeviceRollout:
    """A rollout in progress: a batch on the device, and the values fetched when it is complete.

    It keeps one final observation per environment, that of its truncated step. There is at most one such
    step, because a rollout is shorter than the shortest truncated episode (``config/train.py`` checks this).
    """

    def __init__(self, group: DeviceEnvGroup, unroll_length: int) -> None:
        T, B = unroll_length, len(group)
        x = group.observations
        self.batch = empty_batch(T, B, tuple(x.shape[1:]), x.dtype, group.device)
        self.ended = torch.zeros(T, B, dtype=torch.bool, device=group.device)
        self.totals = torch.zeros(T, 3, B, dtype=torch.float64, device=group.device)
        self.played = 0  # steps since the last fetch, the newest in row `last`
        self.last = -1
        self.cut_at = torch.full((B,), -1, dtype=torch.int64, device=group.device)
        self.cut_observations = torch.zeros_like(x)
        self.cut_states = None if group.policy_state is None else torch.zeros_like(group.policy_state)

    def play_rows(self, rows: Iterable[int], group: DeviceEnvGroup, policy: Policy) -> None:
        """Step every environment once per row, in order, and record the steps, without a read-back."""
        for t in rows:
            self._play_step(t, group, policy)

    def _play_step(self, t: int, group: DeviceEnvGroup, policy: Policy) -> None:
        batch = self.batch
        acted = group.decide(policy)
        batch.observations[t].copy_(group.observations)
        batch.starts[t].copy_(group.starts)
        batch.actions[t].copy_(acted.actions)
        batch.behaviour_log_prob[t].copy_(acted.log_prob)
        batch.behaviour_values[t].copy_(acted.values)
        batch.behaviour_scores[t].copy_(acted.scores)
        batch.policy_version[t].copy_(policy.version)
        outcome = group.step(acted)
        for name in ("rewards", "terminated", "truncated", "life_lost"):
            getattr(batch, name)[t].copy_(outcome[name])
        self.ended[t].copy_(outcome["ended"])
        self.totals[t].copy_(outcome["totals"])
        cut = outcome["truncated"]
        # Where rows are reused, the truncation of the row's previous step is no longer valid.
        self.cut_at.masked_fill_(self.cut_at == t, -1)
        self.cut_at.masked_fill_(cut, t)
        shape = (-1,) + (1,) * (self.cut_observations.ndim - 1)
        torch.where(cut.view(shape), outcome["final_obs"], self.cut_observations, out=self.cut_observations)
        if self.cut_states is not None:
            self.cut_states = torch.where(cut.view(1, -1, 1), acted.state, self.cut_states)
        self.played, self.last = self.played + 1, t

    def finish(self, group: DeviceEnvGroup, first_row: int = 0, columns: slice = slice(None)) -> Batch:
        """As ``HostRollout.finish``. This is the only place where the host waits for the device."""
        T = len(self.batch.actions)
        batch, _, _ = window_of(self.batch, group, first_row, columns)
        new = (torch.arange(self.played, device=group.device) + self.last + 1 - self.played) % T
        group.fetch_counts(self.ended[new], self.totals[new])
        self.played = 0
        cut_at = self.cut_at[columns]
        which = (cut_at >= 0).nonzero().squeeze(1)
        if len(which):
            which = which[((cut_at[which] - first_row) % T).argsort(stable=True)]  # by time, as on the host
            batch.truncated_at = torch.stack([(cut_at[which] - first_row) % T, which], dim=1)
            batch.truncated_observations = self.cut_observations[columns][which]
            batch.truncated_states = (
                None if self.cut_states is None else self.cut_states[:, columns][:, which]
            )
        return batch

    def get_state(self) -> dict[str, Tensor]:
        """Return the rows played so far, and the final observations of truncated steps."""
        return rows_of(self.batch) | {
            "cut.at": self.cut_at.cpu(),
            "cut.observations": self.cut_observations.cpu(),
        }

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Restore a state returned by ``get_state``."""
        load_rows(self.batch, state)
        self.cut_at.copy_(state["cut.at"])
        self.cut_observations.copy_(state["cut.observations"])
