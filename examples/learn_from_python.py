"""Train from Python, with callbacks that watch the run and end it.

python examples/learn_from_python.py tiny_catch --score 0.9
python examples/learn_from_python.py pong --score 0 --total-frames 2000000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import parcade
from parcade.errors import reported
from parcade.report.callbacks import Episode, Report


class Best(parcade.Callback):
    """Remembers the best episode and the newest checkpoint, and ends the run at a mean score."""

    def __init__(self, wanted: float) -> None:
        self.wanted = wanted
        self.episode: Episode | None = None
        self.checkpoint: Path | None = None

    def on_episode(self, episode: Episode) -> None:
        if self.episode is None or episode.score > self.episode.score:
            self.episode = episode

    def on_checkpoint(self, directory: Path) -> None:
        self.checkpoint = directory

    def on_report(self, report: Report) -> bool:
        return report.score_mean is not None and report.score_mean >= self.wanted


def main(words: list[str] | None = None) -> parcade.Trained:
    """Train, and let the agent play five steps in five environments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("game")
    parser.add_argument("--score", type=float, required=True, help="end the run at this mean score")
    parser.add_argument("--total-frames", type=int, default=100_000)
    parser.add_argument("--run-dir", default="")
    given = parser.parse_args(words)
    best = Best(given.score)
    trained = parcade.learn(
        given.game,
        algorithm="ppo",
        num_envs=16,
        unroll_length=32,
        report_seconds=0.5,
        total_frames=given.total_frames,
        run_dir=given.run_dir,
        callbacks=[best, lambda report: print(f"callback: {report.frames:,} frames, {report.score_mean}")],
    )
    print(f"{trained.result['finished_by']} after {trained.result['frames']:,} frames in {trained.run}")
    print(f"best episode: {best.episode}; checkpoint: {best.checkpoint}")
    agent = trained.agent()
    env = agent.make_env(5)
    observations, _ = env.reset(seed=0)
    score = 0.0
    for _ in range(5):
        observations, rewards, *_ = env.step(agent.act(observations, greedy=True))
        score += rewards.mean()
    env.close()
    print(f"mean reward of five steps in five environments: {score:g}")
    return trained


if __name__ == "__main__":
    with reported("learn_from_python.py"):
        main()
