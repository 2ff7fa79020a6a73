"""Gymnasium's registry: ``gymnasium.make("parcade/Pong-v0")`` and ``gymnasium.make_vec`` of every Atari game.

``parcade/PongNoFrameskip-v4`` is the raw game (``raw.py``).

Importing ``parcade`` after ``gymnasium`` registers the games; ``"parcade:parcade/Pong-v0"`` imports it. Where
``parcade`` was imported first, importing this module or using a name of ``parcade`` does.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from parcade.atari.games import load_games, title
from parcade.atari.held_keys import ACTION_NAMES, keys_to_action
from parcade.envs.games import action_ids, canonical_game, is_atari
from parcade.envs.make import make_vec, with_output
from parcade.envs.settings import env_preset
from parcade.envs.tiny import TINY_TASKS
from parcade.errors import UsageError, unknown_name
from parcade.integrations.autoreset import DelayedReset
from parcade.integrations.raw import NO_FRAMESKIP
from parcade.integrations.window import RENDER_MODES, check_render_mode
from parcade.ranges import whole

OTHER_STEPS_PER_SECOND = 15.0
"""Steps per second at which environments are shown that do not say it themselves."""


def env_id(game: str) -> str:
    """The registered id of a game, such as ``parcade/SpaceInvaders-v0`` of ``space_invaders``.

    Errors: UsageError for an unknown game, with the nearest name.
    """
    known = registered_games()
    name = game if game in known else canonical_game(game)
    if name not in known:
        raise unknown_name("game", game, known)
    return f"parcade/{title(name)}-v0"


def raw_env_id(game: str) -> str:
    """The registered id of a raw game, such as ``parcade/SpaceInvadersNoFrameskip-v4``."""
    return f"parcade/{title(game)}NoFrameskip-v4"


def registered_games() -> tuple[str, ...]:
    """Every game, and the tiny tasks."""
    return (*load_games(), *TINY_TASKS)


def register() -> None:
    """Register every game, ready for training and raw, and every tiny task, if not registered yet."""
    for game in registered_games():
        if env_id(game) not in gymnasium.registry:
            gymnasium.register(
                env_id(game),
                entry_point="parcade.integrations.gym:AtariEnv",
                vector_entry_point="parcade.integrations.gym:make_registered_vec",
                kwargs={"game": game},
                disable_env_checker=True,
            )
    for game in load_games():
        if raw_env_id(game) not in gymnasium.registry:
            gymnasium.register(
                raw_env_id(game),
                entry_point="parcade.integrations.raw:RawAtariEnv",
                kwargs={"game": game, **NO_FRAMESKIP},
                disable_env_checker=True,
            )


def make_registered_vec(
    game: str,
    num_envs: int,
    *,
    autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    render_mode: str | None = None,
    output: str | None = None,
    **settings: Any,
) -> VectorEnv:
    """``make_vec`` with a choice of how the next episode starts. Errors: UsageError."""
    try:
        mode = AutoresetMode(autoreset_mode)
    except ValueError as error:
        names = ", ".join(each.value for each in AutoresetMode)
        raise UsageError(f"autoreset_mode={autoreset_mode!r}: expected one of {names}") from error
    if render_mode not in (None, "rgb_array"):
        raise UsageError(f"render_mode={render_mode!r}: a vector environment renders 'rgb_array' or None")
    delayed = mode != AutoresetMode.SAME_STEP
    env = make_vec(game, num_envs, output=None if delayed else output, **settings)
    if render_mode:
        _check_renders(env)
    if delayed:
        env = with_output(DelayedReset(env, mode), output)
    env.render_mode = render_mode
    env.metadata = {
        "render_fps": OTHER_STEPS_PER_SECOND,
        **env.metadata,
        "render_modes": ["rgb_array"] if getattr(env, "can_render", False) else [],
    }
    return env


def make(game: str, *, render_mode: str | None = None, **settings: Any) -> gymnasium.Env:
    """Create one environment of a game, on the CPU, without Gymnasium's registry.

    Args:
        game: any name that ``make_vec`` takes, of one game.
        render_mode: ``rgb_array``: ``render()`` returns the frame in colour; ``human``: a window shows it.
        settings: arguments of ``make_vec``, such as ``preset`` or ``frame_stack=1``.

    Returns:
        A ``gymnasium.Env``. Observations have no axis for environments, e.g. uint8 ``[4, 84, 84]``; rewards
        are raw points. ``AtariEnv`` describes its infos and its end of an episode.

    Errors: UsageError for an unknown name, and for settings of several environments or of a GPU.
    """
    return AtariEnv(game, render_mode=render_mode, **settings)


class UnexpectedArgument(UsageError, TypeError):
    """A setting that does not exist, as the TypeError from which TorchRL's GymEnv learns to leave it out."""


class AtariEnv(gymnasium.Env):
    """One Atari game as a Gymnasium environment.

    Args:
        game: a name as ``make_vec`` takes it.
        render_mode: ``rgb_array``: ``render()`` returns the frame in colour; ``human``: a window shows it.
        settings: arguments of ``make_vec``, such as ``backend``, ``preset`` or ``frame_stack``.

    Infos of ``reset`` and ``step`` are numbers: ``lives``, ``frames``, ``reset_frames``. The consoles restart
    within the step that ends an episode: from then on ``lives`` and ``render`` show the next episode, while
    the observation is the last one of the old. Errors: UsageError.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": OTHER_STEPS_PER_SECOND}  # noqa: RUF012

    def __init__(self, game: str, *, render_mode: str | None = None, **settings: Any) -> None:
        check_render_mode(render_mode)
        if not isinstance(game, str):
            raise UsageError(f"game={game!r}: expected a name, e.g. 'pong'; for several games use make_vec")
        if settings.get("batch_size"):
            raise UsageError("batch_size is for vector environments; leave it out")
        if "frameskip" in settings:
            raise UnexpectedArgument("unexpected keyword argument 'frameskip'; did you mean 'frame_skip'?")
        if "num_envs" in settings:
            raise UsageError("num_envs is for vector environments; use make_vec, or leave it out")
        if settings.get("device") == "cuda":
            raise UsageError("device 'cuda' is for vector environments; use make_vec, or device 'cpu'")
        self._envs: Any = make_vec(game, 1, **settings)
        if render_mode:
            _check_renders(self._envs)
        self.render_mode = render_mode
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space
        self.metadata = {
            "render_modes": list(RENDER_MODES) if getattr(self._envs, "can_render", False) else [],
            "render_fps": self._envs.metadata.get("render_fps", OTHER_STEPS_PER_SECOND),
        }
        self._action_ids = _action_ids(game, settings)
        self._is_seeded = False
        self._largest_seed: int = getattr(self._envs, "largest_seed", 2**32 - 1)
        # The start of the next episode, if the last one is over.
        self._next: tuple[np.ndarray, dict[str, Any]] | None = None
        self._window: Any = None
        self._description = (game, *getattr(self._envs, "description", ())[1:])

    def __str__(self) -> str:
        game, *settings = self._description
        return f"<{type(self).__name__}<{', '.join([self.spec.id if self.spec else game, *settings])}>>"

    __repr__ = __str__

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; return its first observation and infos.

        An integer seeds the console; without one, its random stream continues. ``options`` are those of
        ``reset`` of the vector environment. Errors: UsageError.
        """
        seed = None if seed is None else whole("seed", seed, 0, self._largest_seed)
        super().reset(seed=seed)
        if seed is None and not options and self._next is not None:
            started = self._next
        else:
            if seed is None and not self._is_seeded:
                seed = int(self.np_random.integers(2**31))
            observations, infos = self._envs.reset(seed=seed, options=options)
            started = observations[0], _of_one(infos)
            self._is_seeded = True
        self._next = None
        self._show()
        return started

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Play one step; return observation, raw reward in points, terminated, truncated and infos.

        Errors: UsageError for an action out of range, and after the end of an episode.
        """
        if self._next is not None:
            raise UsageError("the episode is over; call reset first")
        observations, rewards, terminated, truncated, infos = self._envs.step(np.array([action]))
        observation, is_over = observations[0], bool(terminated[0] or truncated[0])
        info = _of_one(infos)
        if is_over:
            self._next = observation, {**info, "frames": 0}
            observation, info["reset_frames"] = infos["final_obs"][0], 0
        self._show()
        return observation, float(rewards[0]), bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> np.ndarray | None:
        """Return the current frame, uint8 ``[height, 160, 3]``, with render mode ``rgb_array``; else None."""
        return np.asarray(self._envs.render()[0]) if self.render_mode == "rgb_array" else None

    def get_action_meanings(self) -> list[str]:
        """Return ale-py's name of each action, such as ``NOOP`` or ``UPRIGHTFIRE``; none for other tasks."""
        return [ACTION_NAMES[each] for each in self._action_ids]

    def get_keys_to_action(self) -> dict[tuple[str, ...], int]:
        """Return the actions by the keys w, s, a, d, space and e, for ``gymnasium.utils.play``."""
        return keys_to_action(self._action_ids)

    def _show(self) -> None:
        if self.render_mode == "human":
            from parcade.integrations.window import Window

            self._window = self._window or Window(self.spec.id if self.spec else "parcade")
            self._window.show(self._envs.render()[0], self.metadata["render_fps"])

    def close(self) -> None:
        """Stop the threads and close the window."""
        self._envs.close()
        if self._window is not None:
            self._window.close()
            self._window = None


def _action_ids(game: str, settings: dict[str, Any]) -> list[int]:
    """Return ale-py's id of each action; none if they are continuous, and of a task that is not its game."""
    name = canonical_game(game)
    if not is_atari(name):
        return []
    names = ("full_action_set", "action_subset", "continuous_actions")
    given = {key: settings[key] for key in names if key in settings}
    chosen = settings.get("settings") or env_preset(settings.get("preset") or "dqn_2015", **given)
    return [] if chosen.continuous_actions else action_ids(name, chosen)


def _of_one(infos: dict[str, np.ndarray]) -> dict[str, Any]:
    """The infos of the only environment, as numbers."""
    return {name: int(infos[name][0]) for name in ("lives", "frames", "reset_frames")}


def _check_renders(envs: VectorEnv) -> None:
    """Refuse environments that have no frames to show. Errors: UsageError."""
    if not getattr(envs, "can_render", False):
        raise UsageError(
            "render_mode needs an Atari game on backend 'native' with observations of frames; "
            "use these, or leave render_mode out"
        )


register()
