"""Views: observations derived from the stack of grey frames, and subsets of actions."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parcade.envs.attributes import SharedAttributes
from parcade.envs.checks import as_array, checked_actions, read_state, restore
from parcade.envs.settings import KARPATHY_SHAPE
from parcade.errors import UsageError

StepResult = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]

# Pong's two background colours as grey levels of ale-py's palette; Karpathy erased red levels 144 and 109.
PONG_BACKGROUND_GREYS = (87, 107)


def karpathy_difference(frames: np.ndarray) -> np.ndarray:
    """Compute Karpathy's observation: crop, take every other pixel, binarise, subtract the previous frame.

    The first observation of an episode is all zero: it has no previous frame (ale-py's stack holds black).

    Shapes: frames ``[n, 2, 210, 160]`` uint8, oldest first; returns ``[n, 80, 80]`` int8 in {-1, 0, 1}.
    Source: Karpathy 2016, "Deep Reinforcement Learning: Pong from Pixels".
    """
    small = frames[:, :, 35:195:2, ::2]
    drawn = small != 0
    for grey in PONG_BACKGROUND_GREYS:
        drawn &= small != grey
    drawn = drawn.view(np.int8)
    difference = drawn[:, 1] - drawn[:, 0]
    # The court is never black, so a black pixel there means that there is no previous frame.
    difference[frames[:, 0, 35, 0] == 0] = 0
    return difference


class EnvView(SharedAttributes, VectorEnv):
    """Base class of views of a vector environment; passes everything through."""

    def __init__(self, env: VectorEnv) -> None:
        self._env: Any = env  # parcade's environments can do more than a VectorEnv: rest, save their state
        self.num_envs = env.num_envs
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.metadata = env.metadata

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._env!r})"

    @property
    def description(self) -> tuple[str, ...]:  # type: ignore[override]
        """See ``SharedAttributes``."""
        return getattr(self._env, "description", ())

    @property
    def observation_space(self) -> Space:
        return batch_space(self.single_observation_space, self.batch_size or self.num_envs)

    @property
    def action_space(self) -> Space:
        return batch_space(self.single_action_space, self.batch_size or self.num_envs)

    def reset(
        self, *, seed: int | np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return self._env.reset(seed=seed, options=options)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        below = self._env if not hasattr(self, name) and hasattr(self._env, "call") else super()
        return below.call(name, *args, **kwargs)

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """How the next episode starts. TorchRL reads it here, as on Gymnasium's own vector environments."""
        return self.metadata["autoreset_mode"]

    @property
    def games(self) -> list[str]:
        """The name of each environment's game, ``[n]``. Errors: AttributeError if there are not several."""
        return self._env.games

    @property
    def can_rest(self) -> bool:
        """Whether ``step`` accepts a second argument, the mask of environments to step."""
        return getattr(self._env, "can_rest", False)

    @property
    def largest_seed(self) -> int:
        """The largest seed of ``reset``."""
        largest: int = getattr(self._env, "largest_seed", 2**32 - 1)
        return largest

    @property
    def resets_some(self) -> bool:
        """Whether ``reset`` accepts ``options={"reset_mask": mask}``."""
        return getattr(self._env, "resets_some", False)

    @property
    def gives_state(self) -> bool:
        """Whether ``get_state`` and ``set_state`` are supported."""
        return getattr(self._env, "gives_state", False)

    @property
    def can_render(self) -> bool:
        """Whether ``render`` returns frames."""
        return getattr(self._env, "can_render", False)

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the complete state as NumPy arrays, also in the middle of an episode."""
        return self._env.get_state()

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Restore a state from ``get_state``; return its observations ``[n, ...]``. Errors: UsageError."""
        return self.restore(self.read_state(state))

    def read_state(self, state: Any) -> Any:
        """See ``checks.read_state``."""
        return read_state(self._env, state)

    def restore(self, read: Any) -> np.ndarray:
        """See ``checks.restore``."""
        return restore(self._env, read)

    def step(self, actions: np.ndarray, *which: np.ndarray) -> StepResult:
        """Step every environment, or those that ``which`` selects: a mask, or numbers if asynchronous."""
        return self.shown(self._env.step(self.chosen(actions), *which))

    @property
    def batch_size(self) -> int | None:
        """Number of environments that ``recv`` returns; None if all environments step together."""
        return getattr(self._env, "batch_size", None)

    def async_reset(self, seed: int | np.ndarray | None = None) -> None:
        self._env.async_reset(seed)

    def send(self, actions: np.ndarray, env_id: np.ndarray) -> None:
        self._env.send(self.chosen(actions), env_id)

    def recv(self) -> StepResult:
        return self.shown(self._env.recv())

    def chosen(self, actions: np.ndarray) -> np.ndarray:
        """Return the actions for the environment below."""
        return actions

    def shown(self, result: StepResult) -> StepResult:
        """Return the result of a step with this view's observations."""
        return result

    def render(self) -> tuple[np.ndarray, ...]:
        return self._env.render()

    def close_extras(self, **kwargs: Any) -> None:
        self._env.close(**kwargs)


class KarpathyView(EnvView):
    """Observe ``karpathy_difference`` of two frames, ``[n, 80, 80]`` int8."""

    difference = staticmethod(karpathy_difference)

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self.single_observation_space = Box(-1, 1, KARPATHY_SHAPE, np.int8)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        observations, infos = self._env.reset(**kwargs)
        return self.difference(observations), infos

    def shown(self, result: StepResult) -> StepResult:
        observations, rewards, terminated, truncated, infos = result
        if "final_obs" in infos:
            infos["final_obs"] = self.difference(infos["final_obs"])
        return self.difference(observations), rewards, terminated, truncated, infos

    def restore(self, read: Any) -> np.ndarray:
        return self.difference(super().restore(read))


def check_subset(subset: tuple[int, ...], available: int) -> None:
    """Check that a game with this number of actions has all of a subset. Errors: UsageError."""
    if not all(0 <= action < available for action in subset):
        raise UsageError(f"action_subset={subset}: expected actions of this game, 0 to {available - 1}")


class ActionSubset(EnvView):
    """Restrict the agent to a subset of the game's actions: its action k is the game's ``subset[k]``."""

    def __init__(self, env: VectorEnv, subset: tuple[int, ...]) -> None:
        super().__init__(env)
        check_subset(subset, int(env.single_action_space.n))
        self._subset = np.array(subset)
        self.single_action_space = Discrete(len(subset))

    def chosen(self, actions: np.ndarray) -> np.ndarray:
        actions = as_array("actions", actions)
        count = actions.size if self.batch_size else self.num_envs  # asynchronous: any number of them
        return self._subset[checked_actions(actions, count, len(self._subset))]
