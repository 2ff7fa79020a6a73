"""Evaluate a trained agent: scores of complete episodes on unseen seeds, video, and a terminal view."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parcade.agent import Agent
from parcade.envs import make_vec
from parcade.envs.games import is_atari
from parcade.envs.settings import in_colour
from parcade.errors import UsageError
from parcade.experience.env_group import EnvGroup
from parcade.experience.episodes import ENV, SCORE, STEPS
from parcade.machine.timing import Timer
from parcade.model.policy import Acted
from parcade.model.precision import Precision
from parcade.random import env_seeds
from parcade.ranges import whole
from parcade.showing import Show, check_video, in_terminal, in_video, require_terminal

# Index of the first evaluation environment, far beyond any training index: the seeds never coincide.
FIRST_UNSEEN_ENV = 1 << 40
# An ale-py console takes about 0.5 s of CPU time to build, so few consoles play several episodes each.
MAX_ENVS = 8
MOST_EPISODES = 10_000_000  # their scores are kept in memory, and most games need years for them


def _group(agent: Agent, num_envs: int, seed: int, epsilon: float | None, **env: Any) -> EnvGroup:
    """Return environments of unseen seeds; ``epsilon`` replaces that of an agent that learned Q values."""
    console_seeds, noise_keys = env_seeds(seed, FIRST_UNSEEN_ENV, num_envs)
    group = EnvGroup(
        agent.make_env(num_envs, **env),
        np.arange(num_envs),
        console_seeds,
        noise_keys,
        clip_rewards=False,
        life_loss=False,
        precision=Precision(agent.config.run.precision),
        timer=Timer(),
    )
    group.start(agent.policy)
    group.epsilon = torch.full((num_envs,), epsilon_of(agent, epsilon, greedy=False))
    return group


def epsilon_of(agent: Agent, epsilon: float | None, *, greedy: bool) -> float:
    """Return the probability of random actions of such an evaluation, as its result has it."""
    if greedy:
        return 0.0
    if epsilon is None or agent.policy.head != "q":
        epsilon = float(agent.policy.epsilon)
    return float(str(np.float32(epsilon)))  # 0.05, not 0.0500000007 as of a float32


def evaluate(
    agent: Agent,
    episodes: int,
    *,
    seed: int = 0,
    greedy: bool = False,
    epsilon: float | None = None,
    on_episode: Callable[[float], None] | None = None,
    **env: Any,
) -> dict[str, Any]:
    """Play complete episodes on unseen seeds and return their scores and statistics.

    ``epsilon`` replaces that of an agent that learned Q values; others sample as they learned. ``on_episode``
    is called with the score of every counted episode as it ends. ``env`` replaces some settings of the
    agent's environment, e.g. ``frame_limit``.

    Every environment plays a fixed number of episodes, so that short episodes are not over-represented. The
    result holds the scores ``[episodes]``, ordered by environment, then episode; their mean, median, standard
    deviation (of exactly these scores), minimum and maximum; and the mean number of steps.
    Errors: UsageError when episodes is below 1 or above 10,000,000, seed below 0, greedy no bool or epsilon
    no probability.
    """
    episodes = whole("episodes", episodes, 1, MOST_EPISODES)
    seed = _checked_seed(seed, greedy=greedy, epsilon=epsilon)
    num_envs = min(episodes, MAX_ENVS)
    wanted = np.full(num_envs, episodes // num_envs)  # episodes of each environment
    wanted[: episodes % num_envs] += 1
    group = _group(agent, num_envs, seed, epsilon, **env)
    finished: list[list[np.ndarray]] = [[] for _ in range(num_envs)]
    try:
        while any(len(rows) < count for rows, count in zip(finished, wanted, strict=True)):
            group.step(_decide(agent, group, greedy))
            for row in group.log.take_new():
                env_index = int(row[ENV])
                if len(finished[env_index]) < wanted[env_index]:
                    finished[env_index].append(row)
                    if on_episode:
                        on_episode(float(row[SCORE]))
    finally:
        group.close()
    rows = np.concatenate(finished)
    scores = rows[:, SCORE]
    return {
        "game": agent.config.game,
        "episodes": episodes,
        "seed": seed,
        "greedy": bool(greedy or agent.acts_greedily),
        "epsilon": epsilon_of(agent, epsilon, greedy=bool(greedy)),
        "trained_frames": agent.frames,
        "score_mean": float(scores.mean()),
        "score_median": float(np.median(scores)),
        "score_deviation": float(scores.std()),
        "score_min": float(scores.min()),
        "score_max": float(scores.max()),
        "steps_mean": float(rows[:, STEPS].mean()),
        "scores": scores.tolist(),
    }


def _checked_seed(seed: Any = 0, *, greedy: Any = False, epsilon: Any = None, **env: Any) -> int:
    """Check how an agent is to play; return the seed. Errors: UsageError."""
    if not isinstance(greedy, bool | np.bool_):
        raise UsageError(f"greedy={greedy!r}: expected True or False")
    if epsilon is not None and not (isinstance(epsilon, Real) and 0 <= epsilon <= 1):
        raise UsageError(f"epsilon={epsilon!r} is not in [0, 1]; it is a probability, e.g. 0.05")
    return whole("seed", seed, 0)


def _decide(agent: Agent, group: EnvGroup, greedy: bool) -> Acted:
    if greedy or agent.acts_greedily:
        with group.precision.autocast():
            return agent.policy.act(group.observations, None, group.policy_state, group.starts)
    return group.decide(agent.policy)


def check_video_of(agent: Agent, path: str) -> None:
    """Check that a video of an agent can be written, before any episode is played. Errors: UsageError."""
    require_screen(agent.config.game)
    check_video(path)


def require_screen(game: str) -> None:
    """Check that a task has a screen to show. Errors: UsageError."""
    if not is_atari(game):
        raise UsageError(f"{game} has no screen; only Atari games can be watched")


def played_frames(
    agent: Agent, *, seed: int = 0, greedy: bool = False, epsilon: float | None = None, **env: Any
) -> Iterator[tuple[np.ndarray, float, bool]]:
    """Play episodes and yield, per step, a colour frame, the score so far and whether the episode ended.

    The agent plays as in ``evaluate``. Frames are ``[210, 160, 3]`` uint8. They come from a second console
    with the same seeds and actions, so that they do not depend on the agent's observations.
    Errors: UsageError, as ``evaluate``.
    """
    seed, config = _checked_seed(seed, greedy=greedy, epsilon=epsilon), agent.config
    group = _group(agent, 1, seed, epsilon, **env)
    colour = in_colour(replace(config.env, **env))
    colour = replace(colour, start_states=env.get("start_states", colour.start_states))
    shown = make_vec(config.game, 1, config.run.backend, settings=colour)
    picture, _ = shown.reset(seed=group.console_seeds)
    yield picture[0, 0], 0.0, False
    try:
        while True:
            acted = _decide(agent, group, greedy)
            group.step(acted)
            picture, _, terminated, truncated, infos = shown.step(
                group.actions.for_env(acted.actions.numpy())
            )
            ended = bool(terminated[0] | truncated[0])
            if ended:  # the console already shows the next episode
                picture = infos["final_obs"]
            rows = group.log.take_new()
            score = float(rows[0, SCORE]) if ended else float(group.log.score[0])
            yield picture[0, 0], score, ended
    finally:
        group.close()
        shown.close()


def record_video(agent: Agent, path: str | Path, *, games: int = 1, **play: Any) -> list[float]:
    """Record complete episodes as an MP4 file and return their scores.

    ``play``: how the agent plays, as for ``played_frames``. The video is H.264 at twice the console's
    resolution and plays in real time.
    Errors: UsageError when the file cannot be written, games is below 1, or as ``evaluate`` for ``play``.
    """
    games = whole("games", games, 1)
    _checked_seed(**play)
    check_video_of(agent, str(path))
    with in_video(str(path), agent.config.env.steps_per_second) as show:
        return list(_show_episodes(agent, games, show, **play))


def watch(agent: Agent, *, games: int = 1, seed: int = 0, greedy: bool = False) -> None:
    """Show episodes in the terminal in real time, two pixels per character.

    Errors: UsageError without a terminal, when games is below 1, or seed below 0.
    """
    games = whole("games", games, 1)
    _checked_seed(seed, greedy=greedy)
    require_terminal("use: parcade eval DIR --video out.mp4")
    require_screen(agent.config.game)
    scores: list[float] = []
    frames_per_second = agent.config.env.steps_per_second
    with in_terminal(frames_per_second) as show, contextlib.suppress(KeyboardInterrupt):
        for score in _show_episodes(agent, games, show, seed=seed, greedy=greedy):
            scores.append(score)  # one by one: Ctrl-C keeps the earlier ones
    if scores:
        print(f"score {', '.join(f'{score:g}' for score in scores)}")


def _show_episodes(agent: Agent, games: int, show: Show, **play: Any) -> Iterator[float]:
    """Show episodes; yield the score of each when it ends."""
    with contextlib.closing(played_frames(agent, **play)) as played:
        for picture, score, ended in played:
            show(picture, f"score {score:g}")
            if ended:
                yield score
                games -= 1
            if games == 0:
                return
