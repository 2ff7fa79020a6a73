"""Compare the native consoles of two source trees and ale-py: interleaved, same actions, CPU time.

    python benchmarks/versions.py --before DIR [--games pong breakout ...] [--rounds 9] [--out FILE]

`DIR` is another checkout; the tree of this file is `after`. Each plays in its own process, and rounds are
interleaved. Outputs are hashed and must be equal. ``pipeline``: 84x84, frame skip 4, stack of 4, maximum of
two frames, one thread; hashing is not timed. ``raw``: frame by frame with `Arcade.act` without reading the
screen, against ale-py's `ALEInterface.act`. Rates are frames per CPU-second; a ratio is the median of the
rounds' ratios.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from script_arguments import game_name, output_file, script_parser, whole_number

ROOT = Path(__file__).resolve().parent.parent
GAMES = ("pong", "breakout", "seaquest", "qbert", "beam_rider", "space_invaders")
NUM_ENVS, STEPS, FRAME_SKIP = 32, 20, 4


def pipeline(game: str, backend: str):
    """Return a function that plays [steps, envs] actions.

    It returns frames, CPU-seconds, which leave out hashing, and a digest of the outputs.
    """
    from parcade import make_vec

    env = make_vec(game, NUM_ENVS, backend, image_height=84, image_width=84, num_threads=1)
    env.reset(seed=np.arange(NUM_ENVS, dtype=np.int32) + 1)

    def play(actions: np.ndarray) -> tuple[int, float, bytes]:
        frames, seconds, seen = 0, 0.0, hashlib.sha256()
        for row in actions % env.single_action_space.n:
            began = time.process_time()
            observations, rewards, _, _, infos = env.step(row)
            seconds += time.process_time() - began
            frames += int(infos["frames"].sum())
            seen.update(np.ascontiguousarray(observations).tobytes() + rewards.astype(np.int64).tobytes())
        return frames, seconds, seen.digest()

    return play


def raw_native(game: str):
    """Like `pipeline` for the consoles of one arcade, frame by frame."""
    from parcade import Arcade

    arcade = Arcade(game, NUM_ENVS)
    arcade.reset(seed=1)

    def play(actions: np.ndarray) -> tuple[int, float, bytes]:
        began = time.process_time()
        for row in actions:
            for _ in range(FRAME_SKIP):
                arcade.act(row)
        if arcade.game_over.all():
            arcade.reset()
        return actions.size * FRAME_SKIP, time.process_time() - began, arcade.ram.tobytes()

    return play


def raw_ale(game: str):
    """Like `pipeline` for one console of ale-py, whose screen is never read."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(ale_py.roms.get_rom_path(game))
    ale.reset_game()

    def play(actions: np.ndarray) -> tuple[int, float, bytes]:
        few = actions[:, :4].ravel().tolist()
        began = time.process_time()
        for action in few:
            for _ in range(FRAME_SKIP):
                ale.act(action)
        if ale.game_over():
            ale.reset_game()
        return len(few) * FRAME_SKIP, time.process_time() - began, b""

    return play


def work(game: str, kind: str) -> None:
    """Worker: for every seed on stdin, play a round and print frames per CPU-second and the digest."""
    ways = {
        "pipeline": lambda: pipeline(game, "native"),
        "raw": lambda: raw_native(game),
        "ale-pipeline": lambda: pipeline(game, "ale"),
        "ale-raw": lambda: raw_ale(game),
    }
    play = ways[kind]()
    print("ready", flush=True)
    for line in sys.stdin:
        actions = np.random.default_rng(int(line)).integers(0, 18, (STEPS, NUM_ENVS))
        frames, seconds, seen = play(actions)
        print(frames / seconds, hashlib.sha256(seen).hexdigest(), flush=True)


def start(tree: Path, game: str, kind: str) -> subprocess.Popen:
    """Start a worker on the sources of `tree`."""
    command = [sys.executable, __file__, "--work", game, kind]
    worker = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tree)},
    )
    if worker.stdout.readline() != "ready\n":
        raise RuntimeError(f"{' '.join(command)} on {tree} did not start")
    return worker


def compare(game: str, kind: str, before: Path, rounds: int) -> dict[str, object]:
    """A row.

    Errors: RuntimeError if the outputs of the versions differ, or in the pipeline those of ale-py.
    """
    workers = {
        "ale": start(ROOT, game, f"ale-{kind}"),
        "before": start(before, game, kind),
        "after": start(ROOT, game, kind),
    }
    rates: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(rounds + 1):
        seen = {}
        for name, worker in workers.items():
            worker.stdin.write(f"{turn}\n")
            worker.stdin.flush()
            rate, seen[name] = worker.stdout.readline().split()
            if turn:  # the first round is the warm-up
                rates[name].append(float(rate))
        if kind == "raw":
            del seen["ale"]
        if len(set(seen.values())) > 1:
            raise RuntimeError(f"{game}, {kind}, round {turn}: outputs differ: {seen}")
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    row: dict[str, object] = {"game": game, "kind": kind} | {
        name: round(statistics.median(values)) for name, values in rates.items()
    }
    for name, over, under in (
        ("gain", "after", "before"),
        ("before_to_ale", "before", "ale"),
        ("after_to_ale", "after", "ale"),
    ):
        ratios = [a / b for a, b in zip(rates[over], rates[under], strict=True)]
        row[name] = [
            round(float(value), 2) for value in (statistics.median(ratios), min(ratios), max(ratios))
        ]
    return row


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--games", type=game_name, nargs="+", default=GAMES)
    parser.add_argument("--rounds", type=whole_number, default=9)
    parser.add_argument("--out", type=output_file, default=ROOT / "benchmarks" / "results" / "lines.json")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(*arguments.work)
        return
    if arguments.before is None or not (arguments.before / "parcade").is_dir():
        parser.error(f"--before {arguments.before}: expected a checkout of parcade to compare with")
    from parcade.machine.facts import commit, machine

    load, rows = os.getloadavg()[0], []
    for game in arguments.games:
        for kind in ("raw", "pipeline"):
            rows.append(compare(game, kind, arguments.before.resolve(), arguments.rounds))
            print(rows[-1], flush=True)
    result = {
        "command": " ".join(["python benchmarks/versions.py", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine(),
        "load_at_start": load,
        "rounds": arguments.rounds,
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
