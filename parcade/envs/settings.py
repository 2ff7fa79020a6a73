"""What a game looks like to an agent: one frozen dataclass, the same for every backend."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from parcade.atari.state import RAM_BYTES
from parcade.errors import UsageError, unknown_name

SMALLEST_IMAGE = 8
"""Rows and columns: below this a picture shows nothing of a game."""
KARPATHY_SHAPE = (80, 80)
RENAMED = {"view": "observations"}
"""Settings by the names they once had."""


@dataclass(frozen=True)
class EnvSettings:
    """How frames become observations and how episodes start and end. Scores are always raw points of whole games."""

    frame_skip: int = 4
    """Emulated frames per step; the action is held, the last two frames are max-pooled."""
    max_pool: bool = True
    """Show the brighter of the last two frames, which undoes the flicker of sprites drawn every other frame."""
    sticky_actions: float = 0.0
    """Probability, per frame, that the console repeats the previous action instead of the given one."""
    noop_max: int = 30
    """Starts wait a random number of frames below this, so that games differ; 0 turns it off."""
    start_states: Literal["exact", "cached"] = "exact"
    """exact: every episode starts as ale-py's do; cached: with one of 30 such starts, played once. Native consoles only."""
    warm_up_steps: int = 0
    """Each environment begins in the middle of a game, after a random number of random steps below this; 0 turns it off."""
    fire_reset: bool = True
    """Press FIRE once after a reset, where the game has it: some games wait for it."""
    image_height: int = 84
    """Rows of an observation."""
    image_width: int = 84
    """Columns of an observation."""
    frame_stack: int = 4
    """Observed frames in one observation, oldest first."""
    life_loss: bool = True
    """A lost life ends bootstrapping (never the episode and never the score)."""
    clip_rewards: bool = True
    """The learner sees rewards clipped to [-1, 1]; scores stay raw."""
    full_action_set: bool = False
    """All 18 joystick actions instead of the game's minimal set."""
    action_subset: tuple[int, ...] = ()
    """Places in the game's action set that the agent may use; empty is all of them."""
    frame_limit: int = 108_000
    """An episode is truncated after this many emulated frames (108,000 = 30 minutes)."""
    mode: int | None = None
    """The cartridge's game mode; None is its first. Needs a backend that can set it."""
    difficulty: int | None = None
    """The console's difficulty switches; None is 0. Needs a backend that can set it."""
    observations: Literal["grey", "rgb", "ram", "karpathy_2016"] = "grey"
    """What is observed: frames in grey or in colour, the console's 128 bytes of RAM (image sizes and max_pool mean nothing then),
    or Karpathy's 80x80 difference of two binarised frames."""

    def __post_init__(self) -> None:
        for name, low in (
            ("frame_skip", 1),
            ("image_height", SMALLEST_IMAGE),
            ("image_width", SMALLEST_IMAGE),
            ("frame_stack", 1),
        ):
            if getattr(self, name) < low:
                raise UsageError(f"{name}={getattr(self, name)} is below {low}; use {low} or more")
        if self.noop_max < 0 or self.warm_up_steps < 0 or self.frame_limit < 1:
            raise UsageError(
                f"noop_max={self.noop_max}, warm_up_steps={self.warm_up_steps}, frame_limit={self.frame_limit}: "
                "expected noop_max >= 0, warm_up_steps >= 0 and frame_limit >= 1"
            )
        if self.start_states not in ("exact", "cached"):
            raise UsageError(f"start_states={self.start_states!r}: expected 'exact' or 'cached'")
        if not 0.0 <= self.sticky_actions < 1.0:
            raise UsageError(
                f"sticky_actions={self.sticky_actions} is not in [0, 1); it is a probability, e.g. 0.25"
            )
        if self.observations not in ("grey", "rgb", "ram", "karpathy_2016"):
            raise UsageError(
                f"observations={self.observations!r}: expected 'grey', 'rgb', 'ram' or 'karpathy_2016'"
            )
        if self.observations == "karpathy_2016" and (
            self.image_height,
            self.image_width,
            self.frame_stack,
        ) != (210, 160, 2):
            raise UsageError(
                f"observations=karpathy_2016 is made from 210x160 frames, 2 at a time; got {self.image_height}x{self.image_width}, "
                f"{self.frame_stack}; set image_height=210 image_width=160 frame_stack=2"
            )

    @property
    def stack_shape(self) -> tuple[int, ...]:
        """Shape of the observed frames that a backend gives for one environment, oldest first; of RAM a stack of 1 has no axis."""
        if self.observations == "ram":
            return (self.frame_stack, RAM_BYTES) if self.frame_stack > 1 else (RAM_BYTES,)
        pixels = (self.frame_stack, self.image_height, self.image_width)
        return (*pixels, 3) if self.observations == "rgb" else pixels

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return KARPATHY_SHAPE if self.observations == "karpathy_2016" else self.stack_shape


ENV_PRESETS: dict[str, EnvSettings] = {
    # Mnih 2015, Nature 518:529: no sticky actions, random no-op starts, minimal actions, 4 frames a step.
    "dqn_2015": EnvSettings(),
    # Machado 2018, arXiv 1709.06009: sticky actions instead of no-op starts, all actions, no life signal.
    "machado_2018": EnvSettings(
        sticky_actions=0.25, noop_max=0, fire_reset=False, life_loss=False, full_action_set=True
    ),
    # Karpathy 2016: sticky actions as Gym's Pong-v0 had them, single frames, complete games. Gym skipped 2 to 4
    # frames at random; here it is always 4, which ale-py's vector env can do.
    "karpathy_2016": EnvSettings(
        max_pool=False,
        sticky_actions=0.25,
        noop_max=0,
        fire_reset=False,
        image_height=210,
        image_width=160,
        frame_stack=2,
        life_loss=False,
        action_subset=(2, 3),  # RIGHT and LEFT, which move the paddle up and down
        observations="karpathy_2016",
    ),
}


def in_colour(settings: EnvSettings) -> EnvSettings:
    """The same games as a person would see them: with the same seeds and actions, frame for frame."""
    return dataclasses.replace(
        settings,
        observations="rgb",
        image_height=210,
        image_width=160,
        frame_stack=1,
        max_pool=False,
        start_states="exact",
    )


def env_preset(name: str, **overrides: object) -> EnvSettings:
    """A preset with some fields replaced. Errors: UsageError for an unknown preset or field."""
    if name not in ENV_PRESETS:
        raise unknown_name("environment preset", name, ENV_PRESETS)
    known = {field.name for field in dataclasses.fields(EnvSettings)}
    for field in overrides:
        if field in RENAMED:
            raise UsageError(
                f"{field} is called {RENAMED[field]} now; use {RENAMED[field]}={overrides[field]!r}"
            )
        if field not in known:
            raise unknown_name("environment setting", field, known)
    return dataclasses.replace(ENV_PRESETS[name], **overrides)
