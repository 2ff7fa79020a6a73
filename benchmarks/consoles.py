"""The native consoles against ale-py's ``AtariVectorEnv``: frames per CPU-second, interleaved, observations hashed and equal.

    python benchmarks/consoles.py [--games pong breakout ...] [--repeats 5] [--steps 100] [--size 84]

One thread, ``start_states`` exact, the whole pipeline (frame skip 4, max-pool, grey, resize, stack of 4), 4 environments.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import time
from pathlib import Path

import numpy as np

from parcade import make_vec
from parcade.report.machine import commit, machine

RESULTS = Path(__file__).resolve().parent / "results"
GAMES = ("pong", "breakout", "seaquest", "ms_pacman", "qbert", "space_invaders", "beam_rider")
NUM_ENVS = 4


def measure(env, actions: np.ndarray, digest) -> float:
    """Frames per CPU-second of playing these actions; the digest takes in all that was seen."""
    frames, cpu = 0, 0.0
    for row in actions:
        before = time.process_time()
        observations, rewards, terminated, truncated, infos = env.step(row)
        cpu += time.process_time() - before
        frames += int(infos["frames"].sum())
        for array in (observations, rewards.astype(np.int64), terminated, truncated):
            digest.update(np.ascontiguousarray(array).tobytes())
    return frames / cpu


def compare(game: str, size: int, repeats: int, steps: int) -> dict[str, object]:
    """Both backends in turn on the same seeds and actions. Errors: AssertionError when they differ."""
    envs = {
        backend: make_vec(game, NUM_ENVS, backend, image_height=size, image_width=size, num_threads=1)
        for backend in ("ale", "native")
    }
    digests = {backend: hashlib.sha256() for backend in envs}
    rates: dict[str, list[float]] = {backend: [] for backend in envs}
    for env in envs.values():
        env.reset(seed=np.arange(NUM_ENVS) + 1)
    generator = np.random.default_rng(0)
    for repeat in range(repeats + 1):
        actions = generator.integers(0, int(envs["ale"].single_action_space.n), (steps, NUM_ENVS))
        for backend, env in envs.items():
            rate = measure(env, actions, digests[backend])
            if repeat:  # the first is the warm-up
                rates[backend].append(rate)
    for env in envs.values():
        env.close()
    assert digests["ale"].digest() == digests["native"].digest(), f"{game}: the backends differ"
    ratios = [native / ale for native, ale in zip(rates["native"], rates["ale"], strict=True)]
    return {
        "game": game,
        "size": size,
        "ale": round(statistics.median(rates["ale"])),
        "native": round(statistics.median(rates["native"])),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_lowest": round(min(ratios), 2),
        "ratio_highest": round(max(ratios), 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", nargs="+", default=GAMES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--size", type=int, nargs="+", default=[84, 42])
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    rows = []
    for size in arguments.size:
        for game in arguments.games:
            rows.append(compare(game, size, arguments.repeats, arguments.steps))
            print(rows[-1], flush=True)
    command = f"python benchmarks/consoles.py --repeats {arguments.repeats} --steps {arguments.steps}"
    result = {"command": command, "commit": commit(), "machine": machine(), "load_at_start": load, "rows": rows}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "consoles.json").write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
