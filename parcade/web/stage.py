"""An agent at work: one policy plays one console, and what it saw, weighed and did at every step.

The policy observes through the environment it was trained on. The pictures come from a second console with
the same seed and actions that plays frame by frame, so that every frame is shown, not only every fourth. Both
play parcade's own consoles, which are exact, whichever backend trained the agent.

An episode is ``(seed, actions)``: every episode begins with a reset by its own seed, so it replays exactly.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import torch

from parcade.agent import Agent
from parcade.envs import make_vec
from parcade.envs.games import is_atari
from parcade.envs.native import console_settings
from parcade.envs.settings import EnvSettings, in_colour
from parcade.envs.tiny import TINY_TASKS
from parcade.errors import UsageError
from parcade.evaluate import FIRST_UNSEEN_ENV
from parcade.model.actions import BoxActions
from parcade.model.precision import Precision
from parcade.random import env_seeds, uniforms
from parcade.web.saliency import SALIENCIES


def check_playable(game: str) -> None:
    """Check that the server may play a game: a Gymnasium id could import a module. Errors: UsageError."""
    if not is_atari(game) and game not in TINY_TASKS:
        raise UsageError(f"{game} is not played here; only Atari games and the built-in tasks are")


class Screen:
    """The picture of a console, every frame, as indices into a palette.

    Attributes: ``palette`` ``[256, 3]`` uint8; ``height`` in lines, each of 160 pixels; ``action_ids``, the
    joystick actions of the agent's actions by ale-py's numbers.
    """

    def __init__(self, game: str, settings: EnvSettings) -> None:
        from parcade.atari.preprocess import rgb_table
        from parcade.atari.vector import VectorConsoles

        shown = dataclasses.replace(in_colour(settings), frame_skip=1, frame_skip_to=None)
        self._consoles = VectorConsoles(game, 1, num_threads=1, **console_settings(shown))
        self._subset = settings.action_subset
        self.palette = rgb_table(self._consoles.machine.pal)
        self.height = self._consoles.machine.height
        ids = self._consoles.action_set.tolist()
        self.action_ids = [ids[i] for i in self._subset] if self._subset else ids

    def reset(self, console_seed: np.ndarray) -> np.ndarray:
        """Start an episode; return its first picture, ``[1, height, 160]`` uint8."""
        self._consoles.reset(console_seed)
        return self._consoles.palette_frames()

    def step(self, action: int, frames: int) -> np.ndarray:
        """Hold an action for the frames of a step; return their pictures ``[k, height, 160]``.

        k is below ``frames`` if the episode ends.
        """
        actions = np.array([self._subset[action] if self._subset else action])
        pictures = []
        for _ in range(frames):
            result = self._consoles.step(actions)
            if result.terminated[0] or result.truncated[0]:
                break  # the console already shows the next episode
            pictures.append(self._consoles.palette_frames()[0])
        return np.array(pictures, np.uint8).reshape(-1, self.height, 160)

    def close(self) -> None:
        """Stop the console's threads."""
        self._consoles.close()


@dataclass(frozen=True)
class Moment:
    """One step: what was observed, weighed and done, and what it led to.

    Shapes: observation ``[...]`` as the network gets it; action_values ``[A]``, probabilities of the
    actions or their Q values; pictures ``[k, height, 160]``; saliency ``[height, width]`` uint8 or None.
    """

    observation: np.ndarray
    action_values: np.ndarray
    value: float
    action: int
    reward: float
    score: float
    step: int
    lives: int
    ended: bool
    pictures: np.ndarray
    saliency: np.ndarray | None


@dataclass
class Episode:
    """What replays an episode: its seed and actions, and its score as a check."""

    seed: int
    actions: list[int] = field(default_factory=list)
    score: float = 0.0
    ended: bool = False


class Stage:
    """Plays episodes of one agent. ``start`` begins one; every ``step`` returns its ``Moment``.

    Args:
        agent: may be replaced by one of the same run between steps.
        with_pictures: also play the console that is shown.
    """

    def __init__(self, agent: Agent, *, with_pictures: bool = True) -> None:
        config = agent.config
        check_playable(config.game)
        if isinstance(agent.policy.actions, BoxActions):
            raise UsageError(
                f"{config.game} has continuous actions; only agents with a set of actions are shown here, "
                "the others by parcade watch and parcade eval --video"
            )
        self.agent = agent
        settings = dataclasses.replace(config.env, start_states="exact")
        self._env = make_vec(config.game, 1, "native", settings=settings, num_threads=1)
        self.screen = Screen(config.game, settings) if is_atari(config.game) and with_pictures else None
        self._precision = Precision(config.run.precision)
        self.start(0)

    def start(self, seed: int) -> np.ndarray:
        """Begin the episode of ``seed``; return its first picture ``[k, height, 160]``, k = 0 without one."""
        console_seed, self._noise_key = env_seeds(seed, FIRST_UNSEEN_ENV, 1)
        observations, infos = self._env.reset(seed=console_seed)
        self._observation = np.array(observations)
        self._state = self.agent.policy.initial_state(1)
        self._begins, self._lives = True, int(infos["lives"][0])
        self.episode = Episode(seed)
        return self.screen.reset(console_seed) if self.screen else np.zeros((0, 1, 160), np.uint8)

    @torch.no_grad()
    def step(self, *, greedy: bool = False, saliency: str = "", action: int | None = None) -> Moment:
        """Play one step; ``action`` replays a recorded one. Call ``start`` after the episode has ended."""
        policy, episode = self.agent.policy, self.episode
        observed = torch.from_numpy(self._observation)
        starts = torch.tensor([self._begins])
        with self._precision.autocast():
            output = policy(observed[None], self._state, starts[None])
            if action is None:
                acted = policy.act(observed, self._uniforms(greedy), self._state, starts)
                action = int(acted.actions[0])
        scores = output.scores[0, 0].float()
        action_values = scores.softmax(-1) if policy.head == "actor_critic" else scores
        heat = SALIENCIES[saliency](policy, observed, self._state, starts, action) if saliency else None
        seen, self._state = self._observation[0], output.state
        reward, ended, frames = self._advance(action)
        pictures = self.screen.step(action, frames) if self.screen else np.zeros((0, 1, 160), np.uint8)
        return Moment(
            observation=seen,
            action_values=action_values.numpy(),
            value=float(output.values[0, 0]),
            action=action,
            reward=reward,
            score=episode.score,
            step=len(episode.actions),
            lives=self._lives,
            ended=ended,
            pictures=pictures,
            saliency=heat,
        )

    def _uniforms(self, greedy: bool) -> torch.Tensor | None:
        """Return the random numbers of a decision, which depend on seed and step only; None if greedy."""
        if greedy or self.agent.acts_greedily:
            return None
        steps = np.array([len(self.episode.actions)])
        return torch.from_numpy(uniforms(self._noise_key, steps, 2)).float()

    def _advance(self, action: int) -> tuple[float, bool, int]:
        """Play a step of the agent's environment; return the reward, whether it ended, and its frames."""
        observations, rewards, terminated, truncated, infos = self._env.step(np.array([action]))
        self._observation = np.array(observations)
        self._begins, self._lives = False, int(infos["lives"][0])
        reward, ended = float(rewards[0]), bool(terminated[0] or truncated[0])
        self.episode.actions.append(action)
        self.episode.score += reward
        self.episode.ended = ended
        return reward, ended, int(infos["frames"][0])

    def close(self) -> None:
        """Close the consoles."""
        self._env.close()
        if self.screen:
            self.screen.close()
