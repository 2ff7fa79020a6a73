"""Everything that needs a GPU, in one call: facts, parity, throughput, tuning, training. Resumable; appends to results.

    python benchmarks/gpu.py --minutes 9

Stages in the order of their worth; what does not fit into the minutes is left for the next call, and rows that are there
already are not measured again:

| stage      | result                              | what                                                                 |
|------------|-------------------------------------|----------------------------------------------------------------------|
| facts      | benchmarks/results/gpu_facts.json   | card, driver, versions, compile time of every kernel                   |
| parity     | benchmarks/results/gpu_parity.csv   | every game, every frame: RAM, screen, reward, lives, end, against the CPU engine |
| throughput | benchmarks/results/gpu_speed.csv    | frames/s against consoles and game, kernel by kernel                   |
| tuning     | benchmarks/results/gpu_tuning.csv   | threads per block, registers per thread                               |
| training   | benchmarks/results/gpu_training.csv | Pong to 18, a seed a row                                              |

Parity and throughput need numpy, numba, numba-cuda, torch and ale-py's ROMs (the wheel, or --roms DIR); training needs all of
parcade's dependencies and says so where one is missing.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
RESULTS = ROOT / "benchmarks" / "results"
PARITY_CONSOLES = 32
LISTED = ["pong", "breakout", "seaquest", "ms_pacman", "qbert", "space_invaders", "beam_rider"]
COUNTS = [1, 32, 256, 1024, 4096, 16384, 65536]


class Clock:
    """The minutes of this call."""

    def __init__(self, minutes: float) -> None:
        self.end = time.monotonic() + 60 * minutes

    @property
    def left_seconds(self) -> float:
        return self.end - time.monotonic()


def append(name: str, row: dict) -> None:
    """Add a row to a CSV of the results; the first one writes the head."""
    path = RESULTS / name
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row.keys(), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    print(name.removesuffix(".csv"), *(f"{key}={value}" for key, value in row.items()), flush=True)


def rows_of(name: str) -> list[dict]:
    """Rows of an earlier call."""
    path = RESULTS / name
    return list(csv.DictReader(path.open())) if path.exists() else []


def card() -> dict:
    """What the driver says about the card."""
    wanted = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit"
    command = ["nvidia-smi", f"--query-gpu={wanted}", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(zip(wanted.split(","), (told or [""])[0].split(", "), strict=False))


def synchronize() -> None:
    """Wait for the device."""
    from numba import cuda

    cuda.synchronize()


def facts(clock: Clock) -> None:
    """Card and versions, and what compiling costs."""
    import numba
    import numba_cuda
    import torch

    from parcade.atari.engine_cuda import GpuThreads
    from parcade.atari.vector_cuda import DeviceConsoles

    started = time.perf_counter()
    consoles = DeviceConsoles("pong", 32, GpuThreads())
    consoles.reset(seed=0)
    consoles.step()
    synchronize()
    found = {
        "card": card(),
        "python": sys.version.split()[0],
        "numba": numba.__version__,
        "numba_cuda": numba_cuda.__version__,
        "torch": torch.__version__,
        "first_use_seconds": round(time.perf_counter() - started, 1),
        "bytes_per_environment": consoles.bytes_per_env,
        "commit": commit(),
    }
    (RESULTS / "gpu_facts.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found), flush=True)


def commit() -> str:
    """The commit, where git is at hand."""
    told = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    return told.stdout.strip() or os.environ.get("PARCADE_COMMIT", "unknown")


def parity(clock: Clock, num_frames: int) -> None:
    """Every game against the CPU engine, which other tests hold against ale-py; console 0 against ale-py itself where it is."""
    from parcade.atari import games

    done = {row["game"] for row in rows_of("gpu_parity.csv") if int(row["frames"]) >= num_frames}
    for game in sorted(games.load_games()):
        if game in done:
            continue
        if clock.left_seconds < 40:
            print("parity: the rest is for the next call", flush=True)
            return
        started = time.perf_counter()
        seed = int.from_bytes(os.urandom(4), "little") >> 1
        difference = first_difference(game, num_frames, seed)
        seconds = round(time.perf_counter() - started, 1)
        append(
            "gpu_parity.csv",
            {"game": game, "frames": num_frames, "consoles": PARITY_CONSOLES, "seed": seed, "first_difference": difference or "none",
             "seconds": seconds, "commit": commit()},
        )  # fmt: skip


def first_difference(game: str, num_frames: int, seed: int) -> str | None:
    """Play the same actions on both; the first difference in words."""
    from parcade.atari import Arcade

    n = PARITY_CONSOLES
    expected, got = Arcade(game, n, repeat_action_probability=0.25), Arcade(game, n, "cuda", 0.25)
    for arcade in (expected, got):
        arcade.reset(seed=seed)
    ale = make_ale(game, seed)
    player = np.random.default_rng(seed)
    host = lambda value: value.cpu().numpy() if hasattr(value, "cpu") else np.asarray(value)  # noqa: E731
    for frame in range(num_frames):
        actions = player.integers(0, 18, n)
        rewards = expected.act(actions)
        same = [("reward", rewards, host(got.act(actions))), ("RAM", expected.ram, host(got.ram))]
        same += [(name, getattr(expected, name), host(getattr(got, name))) for name in ("lives", "game_over", "frame_number")]
        if frame % 4 == 0 or frame < 60:  # drawing is the slow part of the reference
            same.append(("screen", expected.screen, host(got.screen)))
        for name, want, have in same:
            if not np.array_equal(want, have):
                return f"{name} in frame {frame} of console {np.flatnonzero((want != have).reshape(n, -1).any(1))[0]}"
        if ale is not None:
            reward = ale.act(ale_action(int(actions[0])))
            if reward != rewards[0] or not np.array_equal(ale.getRAM(), expected.ram[0]):
                return f"the CPU engine differs from ale-py in frame {frame}"
        over = expected.game_over
        if over.any():
            expected.reset(mask=over)
            got.reset(mask=over)
            if ale is not None and over[0]:
                ale.reset_game()
    return None


def make_ale(game: str, seed: int):
    """ale-py's own console, None where it is not installed."""
    try:
        import ale_py
    except ImportError:
        return None
    from parcade.atari import games

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.25)
    ale.setInt("random_seed", seed)
    ale.loadROM(games.find_rom(game))
    ale.reset_game()
    return ale


def ale_action(action: int):
    """ale-py's name of an action."""
    import ale_py

    return ale_py.Action(action)


def throughput(clock: Clock) -> None:
    """Frames/s of whole steps, and of each kernel, against the number of consoles."""
    done = {(row["game"], int(row["consoles"]), row["start_states"]) for row in rows_of("gpu_speed.csv")}
    cases = [("pong", count, states) for count in COUNTS for states in ("cached", "exact")]
    cases += [(game, 16384, "cached") for game in LISTED[1:]]
    for game, count, states in cases:
        if (game, count, states) in done:
            continue
        if clock.left_seconds < 30:
            print("throughput: the rest is for the next call", flush=True)
            return
        append("gpu_speed.csv", measure(game, count, states))


def measure(game: str, count: int, states: str, **options) -> dict:
    """Median frames/s of five repeats of at least half a second, and the seconds of each kernel in one step."""
    from parcade.atari.engine_cuda import GpuThreads
    from parcade.atari.vector_cuda import DeviceConsoles

    threads = TimedThreads(GpuThreads(**options))
    consoles = DeviceConsoles(game, count, threads, start_states=states)
    consoles.reset(seed=0)
    actions = threads.put(np.random.default_rng(0).integers(0, len(consoles.action_set), count))
    for _ in range(20):
        consoles.step(actions)
    synchronize()
    samples = []
    for _ in range(5):
        steps, started = 0, time.perf_counter()
        while time.perf_counter() - started < 0.5:
            for _ in range(4):
                consoles.step(actions)
            steps += 4
            synchronize()
        samples.append(4 * count * steps / (time.perf_counter() - started))
    threads.timing = True
    for _ in range(5):
        consoles.step(actions)
    kernels = {f"{name}_ms": round(1000 * statistics.median(times), 3) for name, times in threads.seconds.items()}
    return {
        "game": game, "consoles": count, "start_states": states, "frames_per_second": round(statistics.median(samples)),
        "lowest": round(min(samples)), "highest": round(max(samples)), "kernels": json.dumps(kernels),
        "card": card().get("name", ""), "commit": commit(),
    }  # fmt: skip


class TimedThreads:
    """GPU threads that, when told to, wait after every kernel and note its time."""

    def __init__(self, threads) -> None:
        self._threads, self.timing, self.seconds = threads, False, {}

    def __getattr__(self, name: str):
        return getattr(self._threads, name)

    def launch(self, body, num_threads: int, *arguments) -> None:
        started = time.perf_counter()
        self._threads.launch(body, num_threads, *arguments)
        if self.timing:
            synchronize()
            self.seconds.setdefault(body.py_func.__name__, []).append(time.perf_counter() - started)


def tuning(clock: Clock) -> None:
    """Block sizes and register limits on Pong."""
    done = {(row["threads_per_block"], row["max_registers"]) for row in rows_of("gpu_tuning.csv")}
    for max_registers in ("", "168", "128", "96"):
        for threads_per_block in ("32", "64", "128"):
            if (threads_per_block, max_registers) in done:
                continue
            if clock.left_seconds < 90:  # another register limit compiles anew
                return
            limit = int(max_registers) if max_registers else None
            row = measure("pong", 16384, "cached", threads_per_block=int(threads_per_block), max_registers=limit)
            append("gpu_tuning.csv", {"threads_per_block": threads_per_block, "max_registers": max_registers, **row})


def training(clock: Clock, seeds: int) -> None:
    """Pong to a mean of 18 over 100 games, V-trace on staggered consoles."""
    try:
        from parcade.algorithms.vtrace import VTraceConfig
        from parcade.config import RunConfig, TrainConfig
        from parcade.envs.settings import EnvSettings
        from parcade.policy import NetworkConfig
        from parcade.train import run_training, start_run
    except ImportError as error:
        print(f"training: {error.name} is not installed here; pip install it, or copy its wheel along", flush=True)
        return
    done = {int(row["seed"]) for row in rows_of("gpu_training.csv") if float(row["score_mean"] or -99) >= 18}
    for seed in range(seeds):
        if seed in done or clock.left_seconds < 60:
            continue
        run = RunConfig(
            algorithm="vtrace", backend="native", device="cuda", seed=seed, target_score=18.0, total_frames=400_000_000,
            time_limit=f"{int(clock.left_seconds - 20)}s", run_dir=f"runs/gpu-pong-{seed}-{int(time.time())}", precision="bfloat16",
        )  # fmt: skip
        hyper = VTraceConfig(
            num_envs=1200, num_groups=20, unroll_length=20, learning_rate=1e-3, final_learning_rate=3e-4,
            network=NetworkConfig(network="nature_cnn", hidden=512),
        )  # fmt: skip
        config = TrainConfig("pong", run, EnvSettings(), hyper)
        result = run_training(config, start_run(config))
        keep = ("seed", "score_mean", "wall_seconds", "frames", "updates", "frames_per_second", "milestones")
        append("gpu_training.csv", {**{name: result[name] for name in keep}, "card": card().get("name", ""), "commit": commit()})


def main() -> None:
    """Run the stages that were asked for, in order, for as long as there is time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--stages", nargs="*", default=["facts", "parity", "throughput", "tuning", "training"])
    parser.add_argument("--frames", type=int, default=3000, help="of parity, a game")
    parser.add_argument("--seeds", type=int, default=5, help="of training")
    parser.add_argument("--roms", type=Path, help="folder with ale-py's ROMs where its wheel is not installed")
    options = parser.parse_args()
    from parcade.atari import engine_cuda, games

    if options.roms:
        games.rom_directory = lambda: options.roms
    try:
        engine_cuda.require_cuda()
    except engine_cuda.DeviceUnavailable as error:
        raise SystemExit(f"benchmarks/gpu.py: {error}") from error
    RESULTS.mkdir(parents=True, exist_ok=True)
    clock = Clock(options.minutes)
    for stage in options.stages:
        if stage == "parity":
            parity(clock, options.frames)
        elif stage == "training":
            training(clock, options.seeds)
        else:
            {"facts": facts, "throughput": throughput, "tuning": tuning}[stage](clock)


if __name__ == "__main__":
    main()
