"""Training on the device, a run a row: V-trace on staggered consoles, as CuLE's schedule has it.

| stage    | what                                                                                                        |
|----------|-------------------------------------------------------------------------------------------------------------|
| training | Pong to a mean of 18 over 100 games, a seed a row                                                           |
| games    | 10 million steps of BeamRider, Breakout, Qbert and SpaceInvaders                                            |
| schedule | consoles, groups and unrolls of CuLE's Table 3 on Pong: frames a second alone do not learn, updates do      |
| networks | frames and updates a second against the size of the network                                                 |
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass

from gpu_results import ROOT, Clock, Gpu, Results

TABLE = "gpu_training.csv"
TARGET = 18.0
LEAST_SECONDS = 20  # that a run is worth
START_SECONDS = 120  # that a process may take besides
NEEDED = ("ale_py", "gymnasium", "psutil", "rich", "safetensors", "threadpoolctl", "tyro")
STEPS = 10_000_000
FRAMES_A_STEP = 4


@dataclass(frozen=True)
class Case:
    """One run; `seconds` at most, or until the mean score of 100 games is `target`."""

    stage: str
    game: str = "pong"
    num_envs: int = 1200
    num_groups: int = 20
    unroll_length: int = 20
    network: str = "nature_cnn"
    hidden: int = 512
    seed: int = 0
    seconds: int = 300
    target: float | None = None
    total_frames: int = 400_000_000

    @property
    def columns(self) -> dict[str, str]:
        """What tells its row from others."""
        kept = ("stage", "game", "num_envs", "num_groups", "unroll_length", "network", "hidden", "seed")
        return {name: str(getattr(self, name)) for name in kept}


def cases(stage: str, num_seeds: int) -> list[Case]:
    """The runs of a stage."""
    if stage == "training":
        return [Case(stage, seed=seed, target=TARGET) for seed in range(num_seeds)]
    if stage == "games":
        games = ("beam_rider", "breakout", "qbert", "space_invaders")
        return [Case(stage, game, seconds=300, total_frames=STEPS * FRAMES_A_STEP) for game in games]
    if stage == "schedule":  # environments, groups, steps to an unroll
        table = ((1200, 20, 20), (1200, 5, 5), (1200, 1, 5), (120, 20, 20), (120, 5, 5), (120, 1, 5))
        return [Case(stage, num_envs=n, num_groups=g, unroll_length=t, seconds=90, target=TARGET) for n, g, t in table]
    sizes = (("small_cnn", 256), ("nature_cnn", 512), ("impala_resnet", 256))
    return [Case(stage, network=network, hidden=hidden, seconds=LEAST_SECONDS) for network, hidden in sizes]


def train_stage(
    stage: str, clock: Clock, device: Gpu, results: Results, *, num_seeds: int = 5, dollars_an_hour: float | None = None, on: str = "cuda"
) -> None:
    """Runs of a stage that have no row yet; of `training`, that have not come to 18. Run directories go under the folder of the results.

    Errors: DeviceLost.
    """
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            print(f"{stage}: {package} is not installed here; pip install it, or copy its wheel along", flush=True)
            return
    rows = [row for row in results.rows(TABLE) if stage != "training" or float(row["score_mean"] or -99) >= TARGET]
    card = device.card().get("name", "")
    for case in cases(stage, num_seeds):
        name = f"{stage}/" + "-".join(list(case.columns.values())[1:])
        if any(all(row[key] == value for key, value in case.columns.items()) for row in rows) or name in results.skip:
            continue
        if clock.left_seconds < LEAST_SECONDS + 15:
            print(f"{stage}: the rest is for the next call", flush=True)
            return
        with results.noted(device, TABLE, name, **case.columns, card=card):
            result = train(case, results, min(case.seconds, int(clock.left_seconds - 15)), on)
            results.append(TABLE, **case.columns, **figures(result, dollars_an_hour), card=card)


def figures(result: dict, dollars_an_hour: float | None) -> dict:
    """Columns of a run's `result.json`; frames to a dollar where the price of an hour is known."""
    kept = {name: result[name] for name in ("finished_by", "score_mean", "wall_seconds", "frames", "steps", "updates", "frames_per_second")}
    kept["updates_per_second"] = round(result["updates"] / result["wall_seconds"], 1) if result["wall_seconds"] else ""
    if dollars_an_hour:
        kept["frames_per_dollar"] = round(result["frames_per_second"] * 3600 / dollars_an_hour)
    return {**kept, "milestones": json.dumps(result["milestones"])}


def train(case: Case, results: Results, seconds: int, device: str) -> dict:
    """One run in a process of its own, whose clock starts with it; its `result.json`. Errors: RuntimeError with what it said last."""
    directory = results.folder / "runs" / f"{case.stage}-{case.game}-{case.seed}-{time.time_ns()}"
    flags = {
        "algorithm": "vtrace", "backend": "native", "device": device, "precision": "auto", "start_states": "cached", "seed": case.seed,
        "total_frames": case.total_frames, "time_limit": f"{seconds}s", "run_dir": directory, "num_envs": case.num_envs,
        "num_groups": case.num_groups, "unroll_length": case.unroll_length, "learning_rate": 1e-3, "final_learning_rate": 3e-4,
        "network": case.network, "hidden": case.hidden,
    }  # fmt: skip
    flags |= {} if case.target is None else {"target_score": case.target}
    command = [sys.executable, "-m", "parcade", "train", case.game]
    for name, value in flags.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds + START_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1])
    return json.loads((directory / "result.json").read_text())
