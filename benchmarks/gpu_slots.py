"""How often the GPU's consoles need an older picture, and that every game equals the CPU engine: all games, the kernels run on the CPU.

    python benchmarks/gpu_slots.py [--games pong ...] [--steps 250]     # appends to benchmarks/results/gpu_slots.csv

A row a game; those that are there already are left alone. Four consoles, sticky actions, random actions, episodes of at most 500
frames. Observations, final observations, rewards and flags of every step are compared with `VectorConsoles`.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from parcade.atari import VectorConsoles, games
from parcade.atari.cuda.engine import HostThreads
from parcade.atari.cuda.vector import DeviceConsoles
from parcade.report.machine import commit

RESULT = Path(__file__).parent / "results" / "gpu_slots.csv"
COLUMNS = ("game", "consoles", "steps", "episodes", "steps_in_slots", "steps_not_whole", "incomplete", "first_difference", "commit")
CONSOLES = 4
EPISODE_FRAMES = 500


def measure(game: str, steps: int) -> dict:
    """Play both engines; `steps_in_slots` and `steps_not_whole` are shares of all consoles' steps."""
    settings = {"repeat_action_probability": 0.25, "max_num_frames_per_episode": EPISODE_FRAMES}
    expected, consoles = VectorConsoles(game, CONSOLES, **settings), DeviceConsoles(game, CONSOLES, HostThreads(0), **settings)
    first = "" if np.array_equal(expected.reset(seed=0)[0], consoles.reset(seed=0)[0]) else "reset"
    player = np.random.default_rng(0)
    episodes, in_slots, not_whole = 0, 0, 0
    for step in range(steps):
        actions = player.integers(0, len(consoles.action_set), CONSOLES)
        want, got = expected.step(actions), consoles.step(actions)
        ended = want.terminated | want.truncated
        equal = all(np.array_equal(getattr(want, name), getattr(got, name)) for name in ("observations", "rewards", "terminated", "truncated"))
        if ended.any():
            equal = equal and np.array_equal(want.final_observations[ended], got.final_observations[ended])
        if not equal:
            first = first or f"step {step}"
        episodes += int(ended.sum())
        in_slots += int(consoles.in_slot.sum())
        not_whole += int((consoles.whole == 0).sum())
    return {
        "game": game, "consoles": CONSOLES, "steps": steps, "episodes": episodes, "steps_in_slots": round(in_slots / steps / CONSOLES, 4),
        "steps_not_whole": round(not_whole / steps / CONSOLES, 4), "incomplete": consoles.num_incomplete(), "first_difference": first,
        "commit": commit(),
    }  # fmt: skip


def main() -> None:
    """Measure the games that have no row yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=sorted(games.load_games()))
    parser.add_argument("--steps", type=int, default=250)
    arguments = parser.parse_args()
    done = set()
    if RESULT.exists():
        with RESULT.open(newline="") as file:
            done = {row["game"] for row in csv.DictReader(file)}
    for game in arguments.games:
        if game in done:
            continue
        row = measure(game, arguments.steps)
        is_new = not RESULT.exists()
        with RESULT.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
