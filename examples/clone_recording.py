"""Learn to act as a person, or an agent, did in a recording of ``parcade play`` or ``parcade duel``.

    parcade play pong --record mine.json
    python examples/clone_recording.py mine.json --epochs 10 --episodes 3

The recording holds actions, not images: the program replays it, and observes every step as an agent would.
A step's label is the action that player A held for most of its frames. The last fifth of the steps is the
test set. At the end, the clone plays episodes itself, in the recorded mode and difficulty; a match of two has
none, and its clone plays the game for one player.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's waiting threads leave the cores to others

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import parcade
from parcade.atari.games import load_games
from parcade.atari.recording import Recording, load_recording
from parcade.data_parallel import Fit, FitConfig, connect, fit
from parcade.duels.observation import PlayerObservations
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError, reported
from parcade.flags import parse
from parcade.model.policy import NetworkConfig, Policy
from parcade.ranges import Count, Natural, Positive, Range, check_ranges

NUM_ACTIONS = 18
"""ale-py's action ids. A person may press keys that the game does not use."""


@dataclass(frozen=True)
class Flags:
    """Learn to act as in a recording."""

    recording: Annotated[str, "positional"]
    """A file of parcade play GAME --record FILE, or of parcade duel."""
    epochs: Count = 10
    """Passes over the training data."""
    batch_size: Count = 64
    """Samples per update."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam."""
    network: str = "auto"
    """The network, as in parcade train; fine_cnn sees more of small images."""
    hidden: Count = 128
    """Width of the dense layer."""
    image_size: Count = 84
    """Rows and columns of an observation."""
    episodes: Natural = 1
    """Number of episodes that the clone plays at the end; 0 disables."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Seed of the initial weights, the order of the samples and the episodes."""

    def __post_init__(self) -> None:
        check_ranges(self)


def steps_of(recording: Recording, settings: EnvSettings) -> TensorDataset:
    """Replay a recording; return observations ``[n, 4, size, size]`` uint8 and ale-py actions ``[n]`` int64.

    The first step of an episode is left out: a replay shows frames, and none precedes it.
    Errors: ValueError if the replay differs from what was recorded.
    """
    skip = settings.frame_skip
    replay = recording.replay()
    seen: list[np.ndarray] = []
    labels: list[int] = []
    for episode in recording.episodes:
        actions = [action for action, _, frames in episode for _ in range(frames)]
        observed, before = None, None
        for frame, (session, _) in zip(range(len(actions)), replay, strict=False):
            arcade = session.arcade
            if observed is None:
                observed = PlayerObservations(settings, 1, arcade.height, pal=arcade.machine.pal)
            if frame % skip == skip - 2:
                before = arcade.screen[0]
            if frame % skip == skip - 1 and frame + skip < len(actions):
                observed.push(0, arcade.screen[0], before)
                seen.append(observed.observations()[0].copy())
                held = Counter(actions[frame + 1 : frame + 1 + skip])
                labels.append(held.most_common(1)[0][0])
    next(replay, None)  # compares the replay with what was recorded
    observations = np.array(seen, np.uint8).reshape(-1, *settings.stack_shape)
    return TensorDataset(torch.from_numpy(observations), torch.tensor(labels, dtype=torch.int64))


class Clone(nn.Module):
    """A policy as a classifier, from observations ``[n, 4, size, size]`` to scores ``[n, 18]``."""

    def __init__(self, observations: Tensor, config: NetworkConfig) -> None:
        super().__init__()
        shape, dtype = tuple(observations.shape[1:]), observations.numpy().dtype
        self.policy = Policy(shape, dtype, NUM_ACTIONS, config, "actor_critic")
        if self.policy.statistics is not None:
            self.policy.statistics.merge(self.policy.statistics.moments_of(observations[None]))

    def forward(self, observations: Tensor) -> Tensor:
        return self.policy(observations[None]).scores[0]


def agreement_percent(module: nn.Module, data: TensorDataset) -> float:
    """Return how often the clone's likeliest action is the recorded one, in percent."""
    observations, actions = data.tensors
    guesses = torch.cat([module(part).argmax(1) for part in observations.split(1024)])
    return 100.0 * float((guesses == actions).double().mean())


def play(module: Clone, game: str, settings: EnvSettings, episodes: int, seed: int) -> list[float]:
    """Let the clone play complete episodes, with the actions that the game knows; return their scores."""
    known = list(load_games()[game].get("legal_actions", range(NUM_ACTIONS)))
    env = parcade.make_vec(game, 1, settings=settings)
    observations, _ = env.reset(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    scores, score = [], 0.0
    while len(scores) < episodes:
        with torch.no_grad():
            chances = module(torch.as_tensor(observations))[:, known].softmax(1)
        action = torch.multinomial(chances, 1, generator=generator)[:, 0]
        observations, rewards, terminated, truncated, _ = env.step(action.numpy())
        score += float(rewards[0])
        if terminated[0] or truncated[0]:
            scores.append(score)
            score = 0.0
    env.close()
    return scores


def clone(flags: Flags) -> tuple[Fit, float]:
    """Learn from a recording; return the fit, and the most frequent action's test agreement in percent."""
    settings = EnvSettings(
        image_height=flags.image_size, image_width=flags.image_size, full_action_set=True, frame_limit=18_000
    )
    try:
        recording = load_recording(Path(flags.recording))
        steps = steps_of(recording, settings)
    except (OSError, ValueError) as error:
        raise UsageError(f"{flags.recording} cannot be used: {error}") from None
    split = len(steps) * 4 // 5
    if split < flags.batch_size:
        raise UsageError(
            f"{flags.recording} has {len(steps)} steps, too few for a batch of {flags.batch_size}; "
            "record a longer one"
        )
    train, test = TensorDataset(*steps[:split]), TensorDataset(*steps[split:])
    torch.manual_seed(flags.seed)
    module = Clone(train.tensors[0], NetworkConfig(network=flags.network, hidden=flags.hidden))
    exchange = connect("local")
    done = fit(
        module,
        train,
        F.cross_entropy,
        FitConfig(flags.epochs, flags.batch_size, flags.epochs, flags.seed),
        exchange=exchange,
        optimizer=lambda parameters: torch.optim.Adam(parameters, flags.learning_rate),
        evaluate=lambda m: {
            "train_agreement": agreement_percent(m, train),
            "test_agreement": agreement_percent(m, test),
        },
    )
    exchange.close()
    most_frequent = train.tensors[1].mode().values
    baseline = 100.0 * float((test.tensors[1] == most_frequent).double().mean())
    print(
        f"{len(steps):,} steps of {recording.game}; agreement on the test set "
        f"{done.evaluations[-1]['test_agreement']:.1f} %, always the most frequent action {baseline:.1f} %"
    )
    if flags.episodes:
        played = replace(settings, mode=recording.mode, difficulty=recording.difficulty)
        scores = play(module, recording.game, played, flags.episodes, flags.seed)
        print(f"the clone's scores: {' '.join(f'{score:g}' for score in scores)}")
    return done, baseline


if __name__ == "__main__":
    with reported("clone_recording.py"):
        clone(parse(Flags, sys.argv[1:], prog="examples/clone_recording.py"))
