"""Compare the native consoles with ale-py's ``AtariVectorEnv`` and EnvPool: interleaved, outputs hashed.

    python benchmarks/consoles.py [--games pong breakout ... | all] [--repeats 5] [--steps 100] [--size 84 42]
                                  [--threads 1 2]

There are two kinds of rows. ``pipeline``: frame skip 4, max-pool, grey, resize, stack of 4, 16 environments,
``start_states`` exact; frames per CPU-second on one thread, and per second of wall clock on one and two
threads. ``raw``: one console, ``act`` alone; ale-py's screen is never read. The observations of the timed
steps are hashed: those of parcade and ale-py must be equal. EnvPool seeds its games differently, so it is
only timed; it is skipped if it is not installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from script_arguments import game_name_or_all, output_file, script_parser, whole_number

from parcade import Arcade, make_vec
from parcade.atari import games
from parcade.machine.facts import commit, machine

RESULTS = Path(__file__).resolve().parent / "results"
GAMES = ("pong", "breakout", "seaquest", "ms_pacman", "qbert", "space_invaders", "beam_rider")
NUM_ENVS = 16
FRAME_SKIP = 4


class Timed:
    """Wraps a step function: measures frames, CPU-seconds and seconds per call and hashes the outputs."""

    def __init__(self, step: Callable[[np.ndarray], tuple[int, list[np.ndarray]]]) -> None:
        self.step = step
        self.digest = hashlib.sha256()

    def play(self, actions: np.ndarray) -> tuple[float, float]:
        """Play these actions and return frames per CPU-second and frames per second."""
        frames, cpu, wall = 0, 0.0, 0.0
        for row in actions:
            cpu_before, before = time.process_time(), time.perf_counter()
            played, shown = self.step(row)
            wall += time.perf_counter() - before
            cpu += time.process_time() - cpu_before
            frames += played
            for array in shown:
                self.digest.update(np.ascontiguousarray(array).tobytes())
        return frames / cpu, frames / wall


def parcade_env(game: str, backend: str, size: int, num_threads: int) -> Timed:
    """The complete pipeline of one of parcade's backends."""
    env = make_vec(game, NUM_ENVS, backend, image_height=size, image_width=size, num_threads=num_threads)
    env.reset(seed=np.arange(NUM_ENVS, dtype=np.int32) + 1)

    def step(row: np.ndarray) -> tuple[int, list[np.ndarray]]:
        observations, rewards, terminated, truncated, infos = env.step(row)
        return int(infos["frames"].sum()), [observations, rewards.astype(np.int64), terminated, truncated]

    return Timed(step)


def envpool_env(game: str, size: int, num_threads: int) -> Timed | None:
    """The same pipeline in EnvPool, or None if it is not installed."""
    try:
        import envpool
    except ImportError:
        return None
    name = games.title(game)
    env = envpool.make(
        f"{name}-v5", env_type="gymnasium", num_envs=NUM_ENVS, num_threads=num_threads, img_height=size,
        img_width=size, stack_num=4, frame_skip=FRAME_SKIP, noop_max=30, episodic_life=False,
        reward_clip=False, seed=1, repeat_action_probability=0.0,
    )  # fmt: skip
    env.reset()
    return Timed(lambda row: (env.step(row.astype(np.int32)) and NUM_ENVS * FRAME_SKIP, []))


def raw_native(game: str) -> Timed:
    """One native console, one frame per call of ``act``."""
    arcade = Arcade(game, 1)
    arcade.reset(seed=1)

    def step(rows: np.ndarray) -> tuple[int, list[np.ndarray]]:
        shown = []
        for row in rows:
            rewards = arcade.act(row)
            if arcade.game_over[0]:
                arcade.reset()
            shown += arcade.ram.copy(), rewards.astype(np.int64)
        return len(rows), shown

    return Timed(step)


def raw_ale(game: str) -> Timed:
    """One ale-py console; its screen is never read."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 1)
    ale.loadROM(ale_py.roms.get_rom_path(game))
    ale.reset_game()

    def step(rows: np.ndarray) -> tuple[int, list[np.ndarray]]:
        shown = []
        for row in rows:
            reward = ale.act(int(row[0]))
            if ale.game_over():
                ale.reset_game()
            shown += ale.getRAM(), np.array([reward], np.int64)
        return len(rows), shown

    return Timed(step)


def compare(ways: dict[str, Timed], actions: Callable[[], np.ndarray], repeats: int) -> dict[str, object]:
    """Measure all candidates interleaved on the same actions.

    Errors: AssertionError if the outputs of ale and native differ.
    """
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    wall: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        row = actions()
        for name, way in ways.items():
            rates = way.play(row)
            if repeat:  # the first repeat is the warm-up
                cpu[name].append(rates[0])
                wall[name].append(rates[1])
    seen = {name: way.digest.hexdigest() for name, way in ways.items()}
    assert seen["ale"] == seen["native"], "the backends differ"
    result: dict[str, object] = {"digest": seen["native"][:16]}
    for unit, rates in (("per_cpu_second", cpu), ("per_second", wall)):
        ratios = [native / ale for native, ale in zip(rates["native"], rates["ale"], strict=True)]
        result[unit] = {name: round(statistics.median(values)) for name, values in rates.items()} | {
            "ratio": round(statistics.median(ratios), 2),
            "lowest": round(min(ratios), 2),
            "highest": round(max(ratios), 2),
        }
    return result


def pipeline_row(game: str, size: int, num_threads: int, repeats: int, steps: int) -> dict[str, object]:
    """Measure the complete pipeline at one size and number of threads."""
    generator = np.random.default_rng(0)
    ways = {backend: parcade_env(game, backend, size, num_threads) for backend in ("ale", "native")}
    if (pool := envpool_env(game, size, num_threads)) is not None:
        ways["envpool"] = pool
    num_actions = int(make_vec(game, 1, "ale").single_action_space.n)
    measured = compare(ways, lambda: generator.integers(0, num_actions, (steps, NUM_ENVS)), repeats)
    return {"game": game, "kind": "pipeline", "size": size, "threads": num_threads, **measured}


def raw_row(game: str, repeats: int, steps: int) -> dict[str, object]:
    """Measure emulation alone."""
    generator = np.random.default_rng(0)
    ways = {"ale": raw_ale(game), "native": raw_native(game)}
    # Many frames per reading of the clocks, which takes 0.6 us.
    measured = compare(ways, lambda: generator.integers(0, 18, (steps, FRAME_SKIP * NUM_ENVS, 1)), repeats)
    return {"game": game, "kind": "raw", "threads": 1, **measured}


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--games", type=game_name_or_all, nargs="+", default=GAMES, help="names, or all")
    parser.add_argument("--threads", type=whole_number, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=whole_number, default=5)
    parser.add_argument("--steps", type=whole_number, default=100)
    parser.add_argument("--size", type=whole_number, nargs="+", default=[84, 42])
    parser.add_argument("--out", type=output_file, default=RESULTS / "consoles.json")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    rows = []
    for game in sorted(games.load_games()) if arguments.games == ["all"] else arguments.games:
        rows.append(raw_row(game, arguments.repeats, arguments.steps))
        print(rows[-1], flush=True)
        for size in arguments.size:
            for threads in arguments.threads:
                rows.append(pipeline_row(game, size, threads, arguments.repeats, arguments.steps))
                print(rows[-1], flush=True)
    command = " ".join(["python benchmarks/consoles.py", *sys.argv[1:]])
    result = {
        "command": command,
        "commit": commit(),
        "machine": machine(),
        "load_at_start": load,
        "rows": rows,
    }
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
