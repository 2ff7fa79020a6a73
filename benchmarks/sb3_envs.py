"""Compare Stable-Baselines3's PPO on its usual Atari environments with the same on parcade's, interleaved.

    python benchmarks/sb3_envs.py [--game breakout] [--steps 4096] [--repeats 3]

The learner is the same; only the environments differ: ``make_atari_env`` with ``VecFrameStack``, and
``parcade.integrations.sb3.make_vec`` with the same frame skip, stack, size and reward clipping.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

from parcade.envs.games import canonical_game
from parcade.integrations.sb3 import make_vec
from parcade.machine import commit, machine

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "sb3_envs.json"
NUM_ENVS = 8
LEARNER = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "learning_rate": 2.5e-4, "clip_range": 0.1}


def own(game: str) -> VecEnv:
    """Stable-Baselines3's environments."""
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    name = "".join(word.capitalize() for word in canonical_game(game).split("_"))
    return VecFrameStack(make_atari_env(f"{name}NoFrameskip-v4", NUM_ENVS, seed=0), 4)


def parcades(game: str) -> VecEnv:
    """parcade's environments, on one thread."""
    return make_vec(game, NUM_ENVS, clip_rewards=True, ale_compat=True, num_threads=1)


def steps_per_cpu_second(env: VecEnv, steps: int) -> tuple[float, float]:
    """Return steps per CPU-second of learning and of stepping alone with random actions."""
    learner = PPO("CnnPolicy", env, seed=0, device="cpu", **LEARNER)
    start = time.process_time()
    learner.learn(steps)
    learning = steps / (time.process_time() - start)
    env.reset()
    start = time.process_time()
    for _ in range(steps // NUM_ENVS):
        env.step([env.action_space.sample() for _ in range(NUM_ENVS)])
    alone = steps / (time.process_time() - start)
    env.close()
    return learning, alone


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="breakout")
    parser.add_argument("--steps", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured: dict[str, list[tuple[float, float]]] = {"sb3": [], "parcade": []}
    for _ in range(options.repeats):
        for name, make in (("sb3", own), ("parcade", parcades)):
            measured[name].append(steps_per_cpu_second(make(options.game), options.steps))
            print(name, [round(rate) for rate in measured[name][-1]], flush=True)
    pairs = list(zip(measured["parcade"], measured["sb3"], strict=True))
    ratios = {
        kind: statistics.median(ours[i] / theirs[i] for ours, theirs in pairs)
        for i, kind in enumerate(("learning", "stepping"))
    }
    result = {**vars(options), "steps_per_cpu_second": measured, "ratio": ratios}
    RESULTS.write_text(json.dumps({**result, "commit": commit(), "machine": machine()}, indent=1) + "\n")
    print({kind: round(ratio, 2) for kind, ratio in ratios.items()})


if __name__ == "__main__":
    main()
