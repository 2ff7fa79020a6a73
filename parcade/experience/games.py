"""Complete games: every batch is a fixed number of whole games, each played by one policy version.

Every environment plays its share of the games and then stands still, so no game is dropped for being long, and none
is played by two policies. A batch is padded to the longest game; ``mask`` tells real steps from padding.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from parcade.experience.batch import Batch, empty_batch
from parcade.experience.env_group import EnvGroup
from parcade.experience.episodes import EpisodeLog
from parcade.parameters import copy_module_state
from parcade.policy import Acted, Policy
from parcade.random import uniforms
from parcade.report.timing import Timer
from parcade.state import behind, part_of


class GamesSource:
    """Batches of ``games_per_env`` whole games from each environment.

    Args:
        lanes: groups of one environment each, so that one that has played its share costs nothing.
        games_per_env: whole games each lane plays for a batch.
        num_threads: threads that step lanes side by side; 1 steps them in order, with the same results.
    """

    def __init__(
        self, lanes: list[EnvGroup], games_per_env: int, policy: Policy, *, num_threads: int, timer: Timer
    ) -> None:
        self.lanes = lanes
        self.games_per_env = games_per_env
        self.timer = timer
        self.cut_games = 0
        self._policy = copy.deepcopy(policy).eval()
        self._pool = ThreadPoolExecutor(num_threads, "parcade-lane") if num_threads > 1 else None
        for lane in lanes:
            lane.start(self._policy)

    @property
    def can_resume_exactly(self) -> bool:
        return all(lane.gives_state for lane in self.lanes)

    @property
    def episode_logs(self) -> list[EpisodeLog]:
        return [lane.log for lane in self.lanes]

    @property
    def frames(self) -> int:
        return sum(lane.frames for lane in self.lanes)

    @property
    def reset_frames(self) -> int:
        return sum(lane.reset_frames for lane in self.lanes)

    @property
    def steps(self) -> int:
        return sum(lane.env_steps for lane in self.lanes)

    def publish(self, policy: Policy) -> None:
        copy_module_state(policy, self._policy)

    def next_batch(self) -> Batch:
        with self.timer.scope("preprocess"):
            return self._pad(self._play())

    def _play(self) -> list[list[dict[str, Tensor]]]:
        """The steps of every game, game by game."""
        games: list[list[dict[str, Tensor]]] = []
        playing = {i: [] for i in range(len(self.lanes))}
        games_left = [self.games_per_env] * len(self.lanes)
        while playing:
            for i, step in self._step_lanes(list(playing)):
                playing[i].append(step)
                if step["terminated"] | step["truncated"]:
                    games.append(playing[i])
                    games_left[i] -= 1
                    playing[i] = []
                    if not games_left[i]:
                        del playing[i]
        return games

    def _step_lanes(self, active: list[int]) -> list[tuple[int, dict[str, Tensor]]]:
        lanes = [self.lanes[i] for i in active]
        acted = self._decide(lanes)
        seen = [(lane.observations[0], lane.starts[0]) for lane in lanes]
        with self.timer.scope("emulate"):
            step_one = lambda pair: pair[0].step(pair[1])  # noqa: E731
            outcomes = list((self._pool.map if self._pool else map)(step_one, zip(lanes, acted, strict=True)))
        steps = []
        for (observation, start), act, outcome in zip(seen, acted, outcomes, strict=True):
            step = {
                "observations": observation,
                "starts": start,
                "actions": act.actions[0],
                "behaviour_log_prob": act.log_prob[0],
                "behaviour_values": act.values[0],
                "behaviour_scores": act.scores[0],
                "rewards": torch.tensor(float(outcome["rewards"][0])),
            }
            for name in ("terminated", "truncated", "life_lost"):
                step[name] = torch.tensor(bool(outcome[name][0]))
            steps.append(step)
        return list(zip(active, steps, strict=True))

    def _decide(self, lanes: list[EnvGroup]) -> list[Acted]:
        """One forward pass for all lanes that still play."""
        noise = np.concatenate([uniforms(lane.noise_keys, np.array([lane.env_steps]), 2) for lane in lanes])
        states = [lane.policy_state for lane in lanes]
        state = None if states[0] is None else torch.cat(states, dim=1)
        observations = torch.cat([lane.observations for lane in lanes])
        starts = torch.cat([lane.starts for lane in lanes])
        with self.timer.scope("infer"), lanes[0].precision.autocast():
            acted = self._policy.act(observations, torch.from_numpy(noise).float(), state, starts)
        columns = (acted.actions, acted.log_prob, acted.values, acted.scores)
        return [
            Acted(*parts, None if acted.state is None else acted.state[:, i : i + 1])
            for i, parts in enumerate(zip(*(column.split(1) for column in columns), strict=True))
        ]

    def _pad(self, games: list[list[dict[str, Tensor]]]) -> Batch:
        T, B = max(len(game) for game in games), len(games)
        first = games[0][0]["observations"]
        batch = empty_batch(T, B, tuple(first.shape), first.dtype)
        batch.policy_version.fill_(int(self._policy.version))
        batch.initial_policy_state = self._policy.initial_state(B)
        batch.mask.zero_()
        for b, game in enumerate(games):
            batch.mask[: len(game), b] = True
            for name in game[0]:
                getattr(batch, name)[: len(game), b] = torch.stack([step[name] for step in game])
        return batch

    def get_state(self) -> dict[str, np.ndarray | Tensor]:
        state: dict[str, np.ndarray | Tensor] = {"cut_games": np.int64(self.cut_games)}
        for i, lane in enumerate(self.lanes):
            state |= behind(f"lane{i}.", lane.get_state())
        return state

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        # Between batches every game has ended, so even environments that cannot give their state cut none short;
        # they only start from other seeds than an uninterrupted run would have.
        self.cut_games = int(state["cut_games"])
        for i, lane in enumerate(self.lanes):
            prefix = f"lane{i}."
            part = part_of(state, prefix)
            lane.set_state(part, self._policy)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        for lane in self.lanes:
            lane.close()
