"""``parcade watch`` of an episode that the dashboard saved: the same frames, in a terminal or as a video."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from parcade.config import load_config
from parcade.envs import make_vec
from parcade.envs.games import is_atari
from parcade.envs.settings import FRAMES_PER_SECOND, EnvSettings
from parcade.errors import UsageError
from parcade.evaluate import FIRST_UNSEEN_ENV
from parcade.random import env_seeds
from parcade.showing import shown
from parcade.web.recordings import Recording
from parcade.web.stage import Screen


def watch_episode(path: Path, video: str = "") -> None:
    """Replay a saved episode in real time in the terminal, or into a video; say whether it had its score.

    Errors: UsageError without a terminal, for a damaged recording or a task without a picture, and for a
    replay that differs.
    """
    run = path.absolute().parent.parent
    config = load_config(run)
    if not is_atari(config.game):
        raise UsageError(f"{config.game} has no picture; replay its episodes in: parcade dashboard {run}")
    showing = shown(video, FRAMES_PER_SECOND)
    settings = dataclasses.replace(config.env, start_states="exact")
    steps, score = 0, 0.0
    with contextlib.closing(Screen(config.game, settings)) as screen:
        recording = Recording.read(run, path.stem, config, num_actions=len(screen.action_ids))
        with showing as show:
            for pictures, score in played(recording, settings, screen):
                steps += 1
                for picture in pictures:
                    show(screen.palette[picture], f"{config.game}   score {score:g}")
            if (steps, score) != (len(recording.actions), recording.score):
                raise UsageError(
                    f"{path}: the replay has score {score:g} after {steps} steps, expected "
                    f"{recording.score:g} after {len(recording.actions)}; another version of parcade "
                    "recorded it"
                )
    print(f"score {score:g} after {steps} steps, as recorded")


def played(recording: Recording, settings: EnvSettings, screen: Screen) -> Iterator[tuple[np.ndarray, float]]:
    """Play a recording; yield the pictures ``[k, height, 160]`` of every step, and the score so far."""
    console_seed, _ = env_seeds(recording.seed, FIRST_UNSEEN_ENV, 1)
    with contextlib.closing(
        make_vec(recording.game, 1, "native", settings=settings, num_threads=1)
    ) as environment:
        environment.reset(seed=console_seed)
        screen.reset(console_seed)
        score = 0.0
        for action in recording.actions:
            _, rewards, terminated, truncated, infos = environment.step(np.array([action]))
            score += float(rewards[0])
            yield screen.step(action, int(infos["frames"][0])), score
            if terminated[0] or truncated[0]:
                return
