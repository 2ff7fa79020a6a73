"""Complete episodes of perturbed policies: the experience source of evolution strategies."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from parcade.experience.env_group import EnvGroup
from parcade.experience.episodes import SCORE, EpisodeLog
from parcade.experience.population_batch import PopulationBatch, members_of, noise_of
from parcade.experience.source import Source
from parcade.files.state import behind, part_of
from parcade.model.parameters import FlatParameters, copy_module_state
from parcade.model.policy import Policy

STEPS_AT_ONCE = 2_000
"""Steps of a member that are played in one call. On a cluster, a call of minutes would count as hanging."""


class Evaluator:
    """Plays episodes of perturbed policies one after another; member i plays on lane i modulo len(lanes).

    Args:
        lanes: groups of one environment each; each is at the start of an episode between calls of ``score``.

    Call ``start`` before the first ``score``, unless the lanes are restored from a state.
    """

    def __init__(self, lanes: list[EnvGroup], policy: Policy, sigma: float, games_per_member: int) -> None:
        self.lanes = lanes
        self.sigma = sigma
        self.games_per_member = games_per_member
        self.policy = copy.deepcopy(policy).cpu().eval()
        self.flat = FlatParameters(self.policy)
        self.log = EpisodeLog(np.array([], np.int64))  # of all lanes: ``score`` empties their own logs
        self._lane = lanes[0]
        self._scores: list[float] = []  # of the member that plays

    def start(self) -> None:
        """Start an episode on every lane; discard current ones."""
        for lane in self.lanes:
            lane.start(self.policy)

    def publish(self, policy: Policy) -> None:
        """Play with this policy's input statistics; its parameters are perturbed and given to ``score``."""
        copy_module_state(policy, self.policy)

    def score(self, center: Tensor, seed: int, sign: int, member: int) -> float:
        """Return the mean score of one member, which acts greedily.

        Its trained parameters are center ``[P]`` + sign * sigma * epsilon(seed).
        """
        self.begin(center, seed, sign, member)
        while (score := self.play(STEPS_AT_ONCE)) is None:
            pass
        return score

    def begin(self, center: Tensor, seed: int, sign: int, member: int) -> None:
        """Let a member play next, with the arguments of ``score``."""
        self.flat.data.detach().copy_(center + sign * self.sigma * noise_of(seed, len(center)))
        self._lane = self.lanes[member % len(self.lanes)]
        self._scores = []

    def play(self, most_steps: int) -> float | None:
        """Play at most this many steps of the member's episodes; return its mean score if they are over."""
        lane = self._lane
        for _ in range(most_steps):
            with lane.precision.autocast():
                acted = self.policy.act(lane.observations, None, lane.policy_state, lane.starts)
            lane.step(acted)
            for row in lane.log.take_new():
                self._scores.append(row[SCORE])
                self.log.add_finished(row[None])
            if len(self._scores) >= self.games_per_member:
                return float(np.mean(self._scores))
        return None


class PopulationSource(Source):
    """Evaluates this rank's members of every generation.

    Args:
        rank, world_size: the population is split evenly over ranks, in rank order.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        policy: Policy,
        seed: int,
        population: int,
        rank: int,
        world_size: int,
    ) -> None:
        super().__init__(evaluator.lanes)
        self.evaluator = evaluator
        evaluator.start()
        self.seed = seed
        self.population = population
        self.rank, self.world_size = rank, world_size
        self.generation = 0
        self._policy = copy.deepcopy(policy).cpu()  # episodes are played on the CPU, whatever device learns

    @property
    def group_names(self) -> list[str]:
        return [f"lane{index}" for index in range(len(self.groups))]

    @property
    def episode_logs(self) -> list[EpisodeLog]:
        return [self.evaluator.log]

    def publish(self, policy: Policy) -> None:
        copy_module_state(policy, self._policy)
        self.evaluator.publish(policy)

    def next_batch(self) -> PopulationBatch:
        seeds, signs = members_of(self.seed, self.generation, self.population)
        portion = self.population // self.world_size
        own = slice(self.rank * portion, (self.rank + 1) * portion)
        center = torch.cat([p.detach().reshape(-1) for p in self._policy.parameters() if p.requires_grad])
        scores = [
            self.evaluator.score(center, seed, sign, i)
            for i, (seed, sign) in enumerate(zip(seeds[own], signs[own], strict=True))
        ]
        self.generation += 1
        return PopulationBatch(
            seeds[own], signs[own], np.array(scores), self._policy.version.reshape(1).clone()
        )

    def get_state(self) -> dict[str, np.ndarray | Tensor]:
        state: dict[str, np.ndarray | Tensor] = {
            "generation": np.int64(self.generation),
            "cut_games": np.int64(self.cut_games),
        }
        for name, lane in zip(self.group_names, self.evaluator.lanes, strict=True):
            state |= behind(f"{name}.", lane.get_state())
        return state

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self.generation, self.cut_games = int(state["generation"]), int(state["cut_games"])
        for name, lane in zip(self.group_names, self.evaluator.lanes, strict=True):
            lane.set_state(part_of(state, f"{name}."), self.evaluator.policy)
