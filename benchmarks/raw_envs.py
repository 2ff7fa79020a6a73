"""Compare raw games, one console each, with ale-py's own environments, interleaved, alone and under wrappers.

    python benchmarks/raw_envs.py [--game breakout] [--steps 2000] [--repeats 7]

Random actions, CPU time per step of this process. A step under a wrapper has four frames, a raw one has one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing
from script_arguments import game_name, whole_number
from stable_baselines3.common.atari_wrappers import AtariWrapper

from parcade.atari.games import title
from parcade.integrations.gym import register
from parcade.machine.facts import commit, machine

ROOT = Path(__file__).resolve().parents[1]
WRAPPERS = {"raw": lambda env: env, "AtariPreprocessing": AtariPreprocessing, "AtariWrapper": AtariWrapper}


def microseconds(env: gymnasium.Env, steps: int) -> float:
    """CPU time of a step."""
    player = np.random.default_rng(0)
    env.reset(seed=1)
    start = time.process_time()
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(int(player.integers(env.action_space.n)))
        if terminated or truncated:
            env.reset()
    return (time.process_time() - start) / steps * 1e6


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", type=game_name, default="breakout")
    parser.add_argument("--steps", type=whole_number, default=2000)
    parser.add_argument("--repeats", type=whole_number, default=7)
    options = parser.parse_args()
    gymnasium.register_envs(ale_py)
    register()
    names = {
        "ale-py": f"ALE/{title(options.game)}-v5",
        "parcade": f"parcade/{title(options.game)}NoFrameskip-v4",
    }
    rules = {"frameskip": 1, "repeat_action_probability": 0.0}
    result = {"command": f"python benchmarks/raw_envs.py {' '.join(sys.argv[1:])}".strip(), **vars(options)}
    for wrapper, wrap in WRAPPERS.items():
        times: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(options.repeats):
            for name, each in names.items():
                times[name].append(microseconds(wrap(gymnasium.make(each, **rules)), options.steps))
        ratios = [theirs / ours for theirs, ours in zip(*times.values(), strict=True)]
        result[wrapper] = {"microseconds_per_step": times, "ratio": statistics.median(ratios)}
        print(f"{wrapper}: {statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]", flush=True)
    path = ROOT / "benchmarks" / "results" / "raw_envs.json"
    path.write_text(json.dumps({**result, "commit": commit(), "machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
