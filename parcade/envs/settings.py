"""Settings of environments: one frozen dataclass for every backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from parcade.atari.state import RAM_BYTES
from parcade.errors import UsageError, unknown_name
from parcade.ranges import Count, Natural, Range, check_ranges

FRAMES_PER_SECOND = 60
"""Video frames of a console per second of real time."""
SMALLEST_IMAGE = 8
"""Minimum rows and columns of an observation; smaller images show nothing of a game."""
LARGEST_IMAGE = 4096
ImageSize = Annotated[int, Range(SMALLEST_IMAGE, LARGEST_IMAGE)]
MOST_FRAMES = 2**31 - 1
KARPATHY_SHAPE = (80, 80)
RENAMED = {"view": "observations"}
"""Former names of settings."""
NAMES_ELSEWHERE = {
    "obs_type": "observations",
    "grayscale": "observations",
    "grayscale_obs": "observations",
    "gray_scale": "observations",
    "repeat_action_probability": "sticky_actions",
    "action_repeat_probability": "sticky_actions",
    "frameskip": "frame_skip",
    "action_repeat": "frame_skip",
    "maxpool": "max_pool",
    "stack_num": "frame_stack",
    "num_stack": "frame_stack",
    "stack_size": "frame_stack",
    "img_height": "image_height",
    "img_width": "image_width",
    "screen_size": "image_height and image_width",
    "full_action_space": "full_action_set",
    "continuous": "continuous_actions",
    "continuous_action_threshold": "action_threshold",
    "use_fire_reset": "fire_reset",
    "max_episode_steps": "frame_limit, in frames",
    "max_num_frames_per_episode": "frame_limit",
    "episodic_life": "ale_compat",
    "terminal_on_life_loss": "ale_compat",
    "reward_clipping": "ale_compat",
    "reward_clip": "ale_compat",
    "clip_reward": "ale_compat",
}
"""Names that ale-py, Gymnasium, EnvPool and Stable-Baselines3 have for settings, or for arguments of
``make_vec``."""
OF_ANY_GAME = ("life_loss", "clip_rewards", "start_states", "warm_up_steps")
"""Settings that have their own checks, or that the learner applies to any game; only consoles have others."""


@dataclass(frozen=True)
class EnvSettings:
    """How frames become observations, and how episodes start and end.

    Scores are always raw points of complete episodes.
    """

    frame_skip: Annotated[int, Range(1, 1000)] = 4
    """Emulated frames per step; the action is held for all of them."""
    frame_skip_to: Annotated[int, Range(3, 1000)] | None = None
    """Emulate a random number of frames per step, from frame_skip to this; None always frame_skip. Native
    backend on the CPU."""
    max_pool: bool = True
    """Observe the maximum of the last two frames: many games draw a sprite in every other frame only."""
    sticky_actions: float = 0.0
    """Probability, per frame, that the console repeats the previous action instead of the given one."""
    noop_max: Annotated[int, Range(0, 10_000)] = 30
    """Start episodes with a random number of no-op frames below this, so that they differ; 0 disables."""
    start_states: str = "exact"
    """exact: start episodes as ale-py does; cached: from one of 30 starts, played once; or the file of a
    recording (parcade play GAME --record FILE): from one of 30 of its states. Native backend."""
    warm_up_steps: Natural = 0
    """Start each environment in mid-episode, after a random number of random steps below this; 0 disables."""
    fire_reset: bool = True
    """Press FIRE once after a reset if the game uses it; some games wait for it."""
    image_height: ImageSize = 84
    """Rows of an observation."""
    image_width: ImageSize = 84
    """Columns of an observation."""
    frame_stack: Count = 4
    """Observed frames in one observation, oldest first."""
    life_loss: bool = True
    """Stop bootstrapping at a lost life; the episode and the score continue."""
    clip_rewards: bool = True
    """Clip the learner's rewards to [-1, 1]; scores stay raw."""
    full_action_set: bool = False
    """Use all 18 joystick actions instead of the game's minimal set."""
    action_subset: tuple[int, ...] = ()
    """Indices into the game's action set that the agent may use; empty means all."""
    continuous_actions: bool = False
    """Actions are three real numbers instead of one of a set: the stick's distance from its middle, its
    angle, and the button."""
    action_threshold: Annotated[float, Range(0, 1)] = 0.5
    """A direction, or the button, of continuous actions counts where it is above this."""
    frame_limit: Annotated[int, Range(1, MOST_FRAMES)] = 108_000
    """Truncate an episode after this many emulated frames (108,000 = 30 minutes)."""
    mode: int | None = None
    """Game mode of the cartridge; None is the default. Requires the native backend."""
    difficulty: int | None = None
    """Difficulty switches of the console; None is 0. Requires the native backend."""
    observations: Literal["grey", "rgb", "ram", "karpathy_2016"] = "grey"
    """Grey or colour frames, the console's 128 bytes of RAM (image sizes and max_pool have no effect), or
    Karpathy's 80x80 difference of two binarised frames."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not 0.0 <= self.sticky_actions < 1.0:
            raise UsageError(
                f"sticky_actions={self.sticky_actions} is not in [0, 1); it is a probability, e.g. 0.25"
            )
        if self.frame_skip_to is not None and not 2 <= self.frame_skip < self.frame_skip_to:
            raise UsageError(
                f"frame_skip={self.frame_skip}, frame_skip_to={self.frame_skip_to}: expected 2 or more, and "
                "a larger number; Gym's Pong-v0 has 2 and 4"
            )
        if self.continuous_actions and self.action_subset:
            raise UsageError(
                f"action_subset={self.action_subset}: continuous actions are no set; leave one of the two out"
            )
        if self.observations == "karpathy_2016" and (
            self.image_height,
            self.image_width,
            self.frame_stack,
        ) != (210, 160, 2):
            raise UsageError(
                f"observations=karpathy_2016 requires 210x160 frames in stacks of 2; "
                f"got {self.image_height}x{self.image_width}, {self.frame_stack}; "
                "set image_height=210 image_width=160 frame_stack=2"
            )

    @property
    def most_frame_skip(self) -> int:
        """Number of frames of the longest step."""
        return self.frame_skip_to or self.frame_skip

    @property
    def mean_frame_skip(self) -> float:
        """Mean number of frames per step."""
        return (self.frame_skip + self.most_frame_skip) / 2

    @property
    def steps_per_second(self) -> float:
        """Steps per second at the speed of a real console, on average."""
        return FRAMES_PER_SECOND / self.mean_frame_skip

    @property
    def starts_from_file(self) -> bool:
        """Whether ``start_states`` names the file of a recording."""
        return self.start_states not in ("exact", "cached")

    @property
    def stack_shape(self) -> tuple[int, ...]:
        """Shape of one environment's frame stack, oldest frame first; a RAM stack of 1 has no stack axis."""
        if self.observations == "ram":
            return (self.frame_stack, RAM_BYTES) if self.frame_stack > 1 else (RAM_BYTES,)
        pixels = (self.frame_stack, self.image_height, self.image_width)
        return (*pixels, 3) if self.observations == "rgb" else pixels

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return KARPATHY_SHAPE if self.observations == "karpathy_2016" else self.stack_shape


ENV_PRESETS: dict[str, EnvSettings] = {
    # Mnih 2015, Nature 518:529: no sticky actions, random no-op starts, minimal action set, frame skip 4.
    "dqn_2015": EnvSettings(),
    # Machado 2018, arXiv 1709.06009: sticky actions instead of no-op starts, full action set, no life signal.
    "machado_2018": EnvSettings(
        sticky_actions=0.25, noop_max=0, fire_reset=False, life_loss=False, full_action_set=True
    ),
    # Karpathy 2016: sticky actions as in Gym's Pong-v0, no max-pooling, no life signal. Gym skipped 2 to 4
    # frames at random (frame_skip 2, frame_skip_to 4); this preset always skips 4, on every backend.
    "karpathy_2016": EnvSettings(
        max_pool=False,
        sticky_actions=0.25,
        noop_max=0,
        fire_reset=False,
        image_height=210,
        image_width=160,
        frame_stack=2,
        life_loss=False,
        action_subset=(2, 3),  # RIGHT and LEFT move the paddle up and down
        observations="karpathy_2016",
    ),
}


def in_colour(settings: EnvSettings) -> EnvSettings:
    """Return settings with full-size colour frames but the same episodes for the same seeds and actions."""
    return dataclasses.replace(
        settings,
        observations="rgb",
        image_height=210,
        image_width=160,
        frame_stack=1,
        max_pool=False,
        start_states="exact",
    )


def of_any_game(settings: EnvSettings) -> EnvSettings:
    """Return the settings of a task that is not an Atari game: the others have their defaults."""
    return EnvSettings(**{name: getattr(settings, name) for name in OF_ANY_GAME})


def refuse_consoles_only(game: str, names: Iterable[str]) -> None:
    """Refuse settings, by name, that only consoles have, for a task without one. Errors: UsageError."""
    consoles_only = sorted(set(names) - set(OF_ANY_GAME))
    if consoles_only:
        raise UsageError(
            f"{game} is not an Atari game and has no {', '.join(consoles_only)}; leave these settings out"
        )


def refuse_settings_of_consoles(game: str, settings: EnvSettings) -> None:
    """Refuse settings for a task without a console that differ from every preset's. Errors: UsageError."""
    changed = [
        [name for name, value in vars(settings).items() if value != getattr(preset, name)]
        for preset in ENV_PRESETS.values()
    ]
    refuse_consoles_only(game, min(changed, key=lambda names: len(set(names) - set(OF_ANY_GAME))))


def env_preset(name: str, **overrides: Any) -> EnvSettings:
    """Return a preset with some fields replaced. Errors: UsageError for an unknown preset or field."""
    if not isinstance(name, str) or name not in ENV_PRESETS:
        raise unknown_name("environment preset", name, ENV_PRESETS)
    return changed(ENV_PRESETS[name], **overrides)


def described(game: str, settings: EnvSettings, **others: Any) -> tuple[str, ...]:
    """Return the arguments of ``make_vec`` for a game, the nearest preset, and what differs from it.

    ``others`` are further arguments, shown where they are set.
    """
    differing = {
        name: {key: value for key, value in vars(settings).items() if value != getattr(preset, key)}
        for name, preset in ENV_PRESETS.items()
    }
    nearest = min(differing, key=lambda name: len(differing[name]))
    given = {"preset": nearest, **differing[nearest], **{key: each for key, each in others.items() if each}}
    return (game, *(f"{name}={value!r}" for name, value in given.items()))


def changed(settings: EnvSettings, **overrides: Any) -> EnvSettings:
    """Return settings with some fields replaced. Errors: UsageError for an unknown field."""
    known = [field.name for field in dataclasses.fields(EnvSettings)]
    for field in overrides:
        if field in RENAMED:
            raise UsageError(
                f"{field} has been renamed to {RENAMED[field]}; use {RENAMED[field]}={overrides[field]!r}"
            )
        if field in NAMES_ELSEWHERE:
            raise UsageError(f"unknown environment setting {field!r}; here it is {NAMES_ELSEWHERE[field]}")
        if field not in known:
            raise unknown_name("environment setting", field, known)
    return dataclasses.replace(settings, **overrides)
