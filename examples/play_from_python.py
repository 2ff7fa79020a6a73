"""Load a trained agent and play one episode: ``python examples/play_from_python.py RUN_DIR``."""

import sys

import numpy as np

import parcade
from parcade.errors import reported


def main(run: str) -> None:
    agent = parcade.load(run)
    env = agent.make_env(1)
    observations, _ = env.reset(seed=np.array([12345]))
    starts, score = np.ones(1, bool), 0.0
    while True:
        actions = agent.act(observations, starts)
        observations, rewards, terminated, truncated, _ = env.step(actions)
        score += float(rewards[0])
        starts = terminated | truncated
        if starts[0]:
            print(f"{agent.config.game}: {score:g} points")
            return


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python examples/play_from_python.py RUN_DIR, for example zoo:pong")
    with reported("play_from_python.py"):
        main(sys.argv[1])
