"""Batches of complete episodes: a fixed number per batch, each played by a single policy version.

Every environment plays the same number of episodes and then pauses. Long episodes are therefore never
dropped, and no episode is played by two policies. A batch is padded to its longest episode; ``mask`` marks
the real steps.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from parcade.experience.batch import Batch, empty_batch
from parcade.experience.env_group import EnvGroup
from parcade.experience.source import Source
from parcade.files.state import behind, part_of
from parcade.machine.timing import Timer
from parcade.model.parameters import copy_module_state
from parcade.model.policy import Acted, Policy

OUTCOMES = ("rewards", "terminated", "truncated", "life_lost")


class EpisodesSource(Source):
    """Batches of ``games_per_env`` complete episodes from each environment.

    Args:
        groups: groups of one environment each, or of several that can pause individually (``can_rest``).
        games_per_env: complete episodes per environment and batch.
        policy: a policy without recurrent state; a copy of it plays, on the same device.
        num_threads: threads that step groups in parallel; 1 steps them in order, with the same results.
    """

    def __init__(
        self, groups: list[EnvGroup], games_per_env: int, policy: Policy, *, num_threads: int, timer: Timer
    ) -> None:
        super().__init__(groups)
        self.games_per_env = games_per_env
        self.timer = timer
        self._policy = copy.deepcopy(policy).eval()
        self._pool = (
            ThreadPoolExecutor(num_threads, "parcade-episodes") if min(num_threads, len(groups)) > 1 else None
        )
        for group in groups:
            group.start(self._policy)

    def publish(self, policy: Policy) -> None:
        copy_module_state(policy, self._policy)

    def next_batch(self) -> Batch:
        with self.timer.scope("preprocess"):
            return self._lay_out(self._play())

    def _play(self) -> list[dict[str, Tensor]]:
        """Step until every environment has played its episodes. Returns one dict per step.

        A dict holds columns ``[k, ...]`` of the k environments that played: the batch's fields, and
        ``episode`` and ``t``, the column and row of the step in the batch.
        """
        sizes = [len(group) for group in self.groups]
        episode = np.arange(sum(sizes)) * self.games_per_env  # [N] of each environment, the current one
        end = episode + self.games_per_env
        t = np.zeros(sum(sizes), np.int64)
        steps = []
        while (playing := episode < end).any():
            step, ended = self._step(np.split(playing, np.cumsum(sizes)[:-1]))
            step |= {"episode": torch.from_numpy(episode[playing]), "t": torch.from_numpy(t[playing])}
            steps.append(step)
            t[playing] += 1
            episode[ended] += 1
            t[ended] = 0
        return steps

    def _step(self, playing: list[np.ndarray]) -> tuple[dict[str, Tensor], np.ndarray]:
        """Step the environments where ``playing`` is true (``[n]`` bool per group).

        Returns columns ``[k, ...]`` of the k environments that played, and ``[N]`` bool: whether
        an episode ended.
        """
        seen, acted = self._decide(playing)
        decisions = _split(acted, [int(some.sum()) for some in playing])
        with self.timer.scope("emulate"):
            outcomes = list(
                (self._pool.map if self._pool else map)(_step_group, self.groups, playing, decisions)
            )
        everyone = np.concatenate(playing)
        outcome = {name: np.concatenate([o[name] for o in outcomes]) for name in OUTCOMES}
        step = seen | {
            "actions": acted.actions,
            "behaviour_log_prob": acted.log_prob,
            "behaviour_values": acted.values,
            "behaviour_scores": acted.scores,
        }
        step |= {name: torch.from_numpy(column[everyone]) for name, column in outcome.items()}
        return step, outcome["terminated"] | outcome["truncated"]

    def _decide(self, playing: list[np.ndarray]) -> tuple[dict[str, Tensor], Acted]:
        """Run one forward pass for all playing environments. Returns its inputs and the decisions."""
        chosen = [(group, torch.from_numpy(some)) for group, some in zip(self.groups, playing, strict=True)]
        noise = np.concatenate(
            [group.noise()[some] for group, some in zip(self.groups, playing, strict=True)]
        )
        observations = torch.cat([group.observations[some] for group, some in chosen])
        starts = torch.cat([group.starts[some] for group, some in chosen])
        device = self._policy.version.device
        with self.timer.scope("infer"), self.groups[0].precision.autocast(device.type):
            asked = (x.to(device) for x in (observations, torch.from_numpy(noise).float()))
            acted = self._policy.act(*asked, None, starts.to(device))
        acted = Acted(*(None if column is None else column.cpu() for column in acted))
        return {"observations": observations, "starts": starts}, acted

    def _lay_out(self, steps: list[dict[str, Tensor]]) -> Batch:
        """Arrange steps in a batch ``[T, B]`` with one episode per column, each starting at row 0."""
        t, episode = (torch.cat([step.pop(name) for step in steps]) for name in ("t", "episode"))
        first = steps[0]["observations"]
        T, B = int(t.max()) + 1, self.games_per_env * sum(map(len, self.groups))
        batch = empty_batch(T, B, tuple(first.shape[1:]), first.dtype, kind=self.groups[0].actions)
        batch.policy_version.fill_(int(self._policy.version))
        batch.mask.zero_()
        batch.mask[t, episode] = True
        for name in steps[0]:
            column = getattr(batch, name)
            column[t, episode] = torch.cat([step[name] for step in steps]).to(column.dtype)
        return batch

    def get_state(self) -> dict[str, np.ndarray | Tensor]:
        state: dict[str, np.ndarray | Tensor] = {"cut_games": np.int64(self.cut_games)}
        for name, group in zip(self.group_names, self.groups, strict=True):
            state |= behind(f"{name}.", group.get_state())
        return state

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        # All episodes have ended between batches, so a resume cuts none off. Environments that cannot save
        # their state only continue with other seeds than an uninterrupted run.
        self.cut_games = int(state["cut_games"])
        for name, group in zip(self.group_names, self.groups, strict=True):
            group.set_state(part_of(state, f"{name}."), self._policy)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        super().close()


def _step_group(group: EnvGroup, playing: np.ndarray, acted: Acted) -> dict[str, np.ndarray]:
    if group.can_rest:
        return group.step_some(playing, acted)
    if playing.all():
        return group.step(acted)
    return {"rewards": np.zeros(1), **{name: np.zeros(1, np.bool_) for name in OUTCOMES[1:]}}


def _split(acted: Acted, sizes: list[int]) -> list[Acted]:
    """Split the decisions for all environments by group."""
    columns = [acted.actions, acted.log_prob, acted.values, acted.scores]
    return [
        Acted(*parts, state=None) for parts in zip(*(column.split(sizes) for column in columns), strict=True)
    ]
