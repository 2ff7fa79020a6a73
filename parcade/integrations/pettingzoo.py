"""PettingZoo: ``parallel_env(game)`` is a match of two agents on one console, for example for self-play.

docs/integrations.md has more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from parcade.atari.duel import Duel
from parcade.atari.preprocess import rgb_frames
from parcade.atari.two_players import SERVE_FRAMES, with_fire
from parcade.duels.observation import PlayerObservations
from parcade.envs.checks import checked_action
from parcade.envs.games import action_ids
from parcade.envs.settings import EnvSettings, env_preset
from parcade.envs.views import check_subset
from parcade.errors import UsageError, missing_extra
from parcade.integrations.window import RENDER_MODES, Window, check_render_mode
from parcade.ranges import whole

try:
    from pettingzoo import AECEnv, ParallelEnv
    from pettingzoo.utils import parallel_to_aec
except ImportError as error:
    raise missing_extra("pettingzoo", "pettingzoo", "parcade.integrations.pettingzoo") from error

AGENTS = ("first_0", "second_0")
"""Player A and player B, with the names of PettingZoo's own Atari games."""
MATCH_FRAMES = 36_000
"""Frames after which a match is truncated: ten minutes, as in ``parcade duel``."""
SETTINGS = (
    "frame_skip", "max_pool", "image_height", "image_width", "frame_stack", "full_action_set",
    "action_subset", "frame_limit", "observations",
)  # fmt: skip
"""The settings of ``make_vec`` that a match has."""
LARGEST_SEED = 2**31 - 1


def parallel_env(game: str, **arguments: Any) -> MatchEnv:
    """Return a match of two agents; ``MatchEnv`` has the arguments. Errors: UsageError."""
    return MatchEnv(game, **arguments)


def env(game: str, **arguments: Any) -> AECEnv:
    """Return a match in which the agents act one after the other, as PettingZoo's AEC API has it.

    The frames of a step are played when both have acted. Errors: UsageError.
    """
    return parallel_to_aec(MatchEnv(game, **arguments))


class MatchEnv(ParallelEnv):
    """A match of ``first_0``, player A, against ``second_0``, player B.

    Args:
        game: ``pong``, ``boxing``, ``ice_hockey``, ``fishing_derby`` or ``double_dunk``.
        render_mode: ``rgb_array``: ``render()`` returns the console's picture; ``human``: a window shows it.
        own_side: every agent sees the picture, and acts, as player A does (docs/duels.md), so that one policy
            can play both. If False, both see the console's picture and use their joysticks as they are.
        clip_rewards: rewards are -1, 0 or 1.
        settings: settings of ``parcade.make_vec`` for what agents observe and do, listed in ``SETTINGS``;
            ``frame_limit``, after which a match is truncated, is 36,000.

    Observations are those of ``make_vec``, uint8 ``[frame_stack, height, width]`` by default. Rewards are
    points and sum to 0. Infos: ``points``, the agent's on the screen, and ``frames`` of the match. In games
    that serve with FIRE, it is pressed for both agents once in 30 frames; it has no other effect in them.
    Errors: UsageError.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "name": "parcade",
        "render_modes": list(RENDER_MODES),
        "is_parallelizable": True,
    }

    def __init__(
        self,
        game: str,
        *,
        render_mode: str | None = None,
        own_side: bool = True,
        clip_rewards: bool = False,
        **settings: Any,
    ) -> None:
        check_render_mode(render_mode)
        self._settings = _match_settings(settings)
        self._own_side, self._clip_rewards = own_side, clip_rewards
        try:
            self._duel = Duel(game)
            machine = self._duel.arcade.machine
            view = (self._settings, 1, machine.height)
            self._seen = {agent: PlayerObservations(*view, pal=machine.pal) for agent in AGENTS}
        except ValueError as error:
            raise UsageError(str(error)) from None
        self._action_ids = _action_ids(self._duel.game, self._settings)
        is_difference = self._settings.observations == "karpathy_2016"
        low, high, dtype = (-1, 1, np.int8) if is_difference else (0, 255, np.uint8)
        shape = self._settings.observation_shape
        self.observation_spaces = {agent: Box(low, high, shape, dtype) for agent in AGENTS}
        self.action_spaces = {agent: Discrete(len(self._action_ids)) for agent in AGENTS}
        self.state_space = Box(0, 255, (machine.height, 160, 3), np.uint8)
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self.render_mode = render_mode
        name, speed = f"{self._duel.game}_parcade", self._settings.steps_per_second
        self.metadata = {**self.metadata, "name": name, "render_fps": speed}
        self._random = np.random.default_rng()
        self._window: Window | None = None

    def observation_space(self, agent: str) -> Box:
        """Return the space of an agent's observations."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Discrete:
        """Return the space of an agent's actions: indices into the game's action set."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Start a match; return both agents' first observations and infos. ``options`` are not used.

        ``seed`` decides this match, as that of ``Duel`` does, and all later ones without a seed.
        Errors: UsageError.
        """
        if seed is not None:
            self._random = np.random.default_rng(whole("seed", seed, 0, LARGEST_SEED))
        self._duel.reset(int(self._random.integers(LARGEST_SEED)) if seed is None else seed)
        self.agents = list(AGENTS)
        for seen in self._seen.values():
            seen.clear()
        self._observe(None)
        return self._observations(), self._infos()

    def step(
        self, actions: Mapping[str, int]
    ) -> tuple[
        dict[str, np.ndarray], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
    ]:
        """Play one step with both agents' actions.

        Return observations, rewards, terminations, truncations and infos by agent. After the end of a match
        there are no agents, and the results are empty. Errors: UsageError for other actions.
        """
        if not self.agents:
            return {}, {}, {}, {}, {}
        first, second = (self._action_id(agent, actions) for agent in AGENTS)
        points, before = self._play(first, second)
        self._observe(before)
        over = self._duel.over
        cut = not over and self._duel.frames >= self._settings.frame_limit
        reward = float(np.sign(points) if self._clip_rewards else points)
        results = (
            self._observations(),
            dict(zip(AGENTS, (reward, -reward), strict=True)),
            dict.fromkeys(AGENTS, over),
            dict.fromkeys(AGENTS, cut),
            self._infos(),
        )
        if over or cut:
            self.agents = []
        return results

    def _action_id(self, agent: str, actions: Mapping[str, int]) -> int:
        """Return ale-py's id of an agent's action. Errors: UsageError."""
        if agent not in actions:
            raise UsageError(f"no action of {agent}; both agents of a match act in every step")
        return self._action_ids[checked_action(f"action of {agent}", actions[agent], len(self._action_ids))]

    def _play(self, first: int, second: int) -> tuple[int, np.ndarray | None]:
        """Hold ale-py's action ids for a step; return the first agent's points and the last picture but one.

        There is no such picture if the match ends before the step does.
        """
        duel, limit = self._duel, self._settings.frame_limit
        if self._own_side:
            second = duel.variation.other_side.action(second)
        points, before = 0, None
        for frame in range(self._settings.frame_skip):
            if frame == self._settings.frame_skip - 1:
                before = duel.screen
            serves = duel.variation.serves_with_fire and duel.frames % SERVE_FRAMES == 0
            points += duel.act(*map(with_fire, (first, second)) if serves else (first, second))[0]
            if duel.over or duel.frames >= limit:
                break
        return points, before

    def _observe(self, before: np.ndarray | None) -> None:
        """Push the console's picture on both agents' stacks, pooled with the one before it."""
        last, other_side = self._duel.screen, self._duel.variation.other_side
        for agent, seen in self._seen.items():
            pictures = last, before
            if agent == AGENTS[1] and self._own_side:
                pictures = other_side.picture(last), None if before is None else other_side.picture(before)
            seen.push(0, *pictures)
        if self.render_mode == "human":
            self._window = self._window or Window(self.metadata["name"])
            self._window.show(self.state(), self.metadata["render_fps"])

    def _observations(self) -> dict[str, np.ndarray]:
        return {agent: self._seen[agent].observations()[0].copy() for agent in AGENTS}

    def _infos(self) -> dict[str, dict[str, Any]]:
        return {
            agent: {"points": points, "frames": self._duel.frames}
            for agent, points in zip(AGENTS, self._duel.scores, strict=True)
        }

    def state(self) -> np.ndarray:
        """Return the console's picture in colour, uint8 ``[height, 160, 3]``, for a central critic."""
        colours: np.ndarray = rgb_frames(self._duel.screen[None], pal=self._duel.arcade.machine.pal)[0]
        return colours

    def render(self) -> np.ndarray | None:
        """Return the console's picture, uint8 ``[height, 160, 3]``, with ``rgb_array``; else None."""
        return self.state() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Close the window."""
        if self._window is not None:
            self._window.close()
            self._window = None


def _action_ids(game: str, settings: EnvSettings) -> list[int]:
    """Return ale-py's ids of an agent's actions. Errors: UsageError for actions that the game lacks."""
    whole_set = action_ids(game, dataclasses.replace(settings, action_subset=()))
    check_subset(settings.action_subset, len(whole_set))
    return action_ids(game, settings)


def _match_settings(given: Mapping[str, Any]) -> EnvSettings:
    """Return settings of ``make_vec`` for a match. Errors: UsageError for one that a match does not have."""
    settings = env_preset("dqn_2015", **{"frame_limit": MATCH_FRAMES, **given})
    others = sorted(set(given) - set(SETTINGS))
    if others:
        raise UsageError(
            f"a match of two players has no {', '.join(others)}; expected some of {', '.join(SETTINGS)}"
        )
    return settings
