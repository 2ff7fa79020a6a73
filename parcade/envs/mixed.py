"""Several games in one vector environment, in one contiguous block of environments per game."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parcade.atari.games import load_games
from parcade.atari.held_keys import ACTION_NAMES
from parcade.envs.checks import Checked, check_is_state, read_state, restore
from parcade.envs.games import action_ids
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError
from parcade.files.state import behind, part_of

NUM_ACTIONS, NOOP = len(ACTION_NAMES), 0
Stepped = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]


def have_one_action_set(games: list[str]) -> bool:
    """Whether the minimal action sets of Atari games are the same, in the same order."""
    return len({tuple(load_games()[game].get("actions", range(NUM_ACTIONS))) for game in games}) == 1


def with_all_actions(game: str, settings: EnvSettings) -> EnvSettings:
    """Return settings with which a game has all 18 actions, by ale-py's ids; those it lacks do nothing.

    ale-py's full set of Skiing and Lost Luggage has only nine.
    """
    settings = dataclasses.replace(settings, full_action_set=True)
    legal = action_ids(game, settings)
    if len(legal) == NUM_ACTIONS:
        return settings
    subset = tuple(legal.index(each if each in legal else NOOP) for each in range(NUM_ACTIONS))
    return dataclasses.replace(settings, action_subset=subset)


def portions_of(num_envs: int, count: int) -> list[int]:
    """Divide ``num_envs`` among ``count`` games as evenly as possible; the first games get the remainder."""
    return [num_envs // count + (k < num_envs % count) for k in range(count)]


class MixedVectorEnv(Checked, VectorEnv):
    """Several vector environments, concatenated and stepped as one. ``make_vec`` documents the conventions.

    Attributes: ``games`` is the name of each environment's game, ``[n]`` strings.

    Errors: UsageError if observation spaces or action spaces differ.
    """

    autoreset_mode = AutoresetMode.SAME_STEP

    def __init__(self, envs: list[VectorEnv], games: list[str]) -> None:
        first = envs[0]
        for env, game in zip(envs, games, strict=True):
            if (
                env.single_observation_space != first.single_observation_space
                or env.single_action_space != first.single_action_space
            ):
                raise UsageError(
                    f"{game} has observations {env.single_observation_space} and "
                    f"actions {env.single_action_space}, "
                    f"{games[0]} has {first.single_observation_space} and {first.single_action_space}; "
                    "expected the same for all games of one environment"
                )
        self.description = (str(games), *getattr(first, "description", ())[1:])
        self._envs = envs
        self.largest_seed = min(getattr(env, "largest_seed", self.largest_seed) for env in envs)
        sizes = [env.num_envs for env in envs]
        self._edges = np.cumsum(sizes)[:-1]
        self.games = [game for game, size in zip(games, sizes, strict=True) for _ in range(size)]
        self.num_envs = sum(sizes)
        self.single_observation_space, self.single_action_space = (
            first.single_observation_space, first.single_action_space,
        )  # fmt: skip
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}

    @property
    def can_rest(self) -> bool:
        """Whether ``step`` accepts a second argument, the mask of environments to step."""
        return all(getattr(env, "can_rest", False) for env in self._envs)

    @property
    def resets_some(self) -> bool:
        """Whether ``reset`` accepts a mask of the environments to reset."""
        return all(getattr(env, "resets_some", False) for env in self._envs)

    @property
    def gives_state(self) -> bool:
        """Whether ``get_state`` and ``set_state`` are supported."""
        return all(getattr(env, "gives_state", False) for env in self._envs)

    @property
    def can_render(self) -> bool:
        """Whether ``render`` returns frames."""
        return all(getattr(env, "can_render", False) for env in self._envs)

    def render(self) -> tuple[np.ndarray, ...]:
        """Return the current frame of every environment, as those of one game do. Errors: UsageError."""
        self.check_open("render")
        return tuple(frame for env in self._envs for frame in env.render())

    def reset(
        self, *, seed: int | np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Start a new episode in every environment.

        ``seed`` ``[n]`` seeds each environment; an int seeds environment i with seed + i. With
        ``options={"reset_mask": mask}``, bool ``[n]``, the other environments continue their episodes.
        """
        mask = self.check_mask(options) if self.resets_some else None
        if seed is None and not self.is_reset and self.gives_state:
            seed = 0  # each game alone would number its environments from 0
        seed = self.check_reset(seed, None if self.resets_some else options)
        nothing = [None] * len(self._envs)
        seeds = nothing if seed is None else np.split(seed, self._edges)
        chosen = nothing if mask is None else [{"reset_mask": part} for part in np.split(mask, self._edges)]
        told = [
            env.reset(seed=seeds_of_env, options=options_of_env)
            for env, seeds_of_env, options_of_env in zip(self._envs, seeds, chosen, strict=True)
        ]
        return self._join([each[0] for each in told]), self._infos([each[1] for each in told])

    def step(self, actions: np.ndarray, *playing: np.ndarray) -> Stepped:
        """Step every environment, or those selected by ``playing``; ``make_vec`` documents the results.

        Shapes: actions ``[n]`` int, playing ``[n]`` bool.
        """
        actions = self.check_actions(actions, *playing)  # before any of the games has played
        parts = zip(*(self._split(column) for column in (actions, *playing)), strict=True)
        told = [env.step(*part) for env, part in zip(self._envs, parts, strict=True)]
        joined = [self._join([each[i] for each in told]) for i in range(4)]
        return (*joined, self._infos([each[4] for each in told]))

    def _split(self, column: np.ndarray) -> list[np.ndarray]:
        """Split an array ``[n, ...]`` into one part per game."""
        return np.split(np.asarray(column), self._edges)

    def _join(self, parts: list[np.ndarray]) -> np.ndarray:
        """Concatenate the parts of all games."""
        return np.concatenate(parts)

    def _infos(self, parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        infos = {
            name: np.concatenate([part[name] for part in parts])
            for name in ("lives", "frames", "reset_frames")
        }
        if any("final_obs" in part for part in parts):
            shape = self.single_observation_space.shape
            final = np.zeros((self.num_envs, *shape), self.single_observation_space.dtype)
            ended = np.zeros(self.num_envs, np.bool_)
            for part, rows, which in zip(
                parts, np.split(final, self._edges), np.split(ended, self._edges), strict=True
            ):
                if "final_obs" in part:
                    rows[:], which[:] = part["final_obs"], part["_final_obs"]
            infos |= {"final_obs": final, "_final_obs": ended}
        return infos

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the state of all games; the names of game k start with ``k.``. Errors: UsageError."""
        self.check_started()
        state: dict[str, np.ndarray] = {}
        for k, env in enumerate(self._envs):
            state |= behind(f"{k}.", env.get_state())
        return state

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Restore a state from ``get_state``; return its observations ``[n, ...]``.

        Errors: UsageError for a state that does not fit one of the games; all keep theirs then.
        """
        return self.restore(self.read_state(state))

    def read_state(self, state: Any) -> list[Any]:
        """Check the states of all games, before any is restored. Errors: UsageError."""
        self.check_open("set_state")
        check_is_state(state)
        return [read_state(env, part_of(state, f"{k}.")) for k, env in enumerate(self._envs)]

    def restore(self, read: list[Any]) -> np.ndarray:
        """Restore what ``read_state`` has returned; return the observations ``[n, ...]``."""
        shown = [restore(env, part) for env, part in zip(self._envs, read, strict=True)]
        self.is_reset = True
        return self._join(shown)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments of every game."""
        for env in self._envs:
            env.close(**kwargs)
