"""Pong to a mean of 18 over 100 games on the device, a seed a row: V-trace on staggered consoles."""

from __future__ import annotations

import json
import time

from gpu_results import Clock, Gpu, Results

TABLE = "gpu_training.csv"
TARGET = 18.0
KEPT = ("score_mean", "wall_seconds", "frames", "updates", "frames_per_second")


def training(clock: Clock, device: Gpu, results: Results, *, num_seeds: int) -> None:
    """Seeds that have not come to 18 yet; run directories go under the folder of the results. Errors: DeviceLost."""
    try:
        import parcade.train  # noqa: F401
    except ImportError as error:
        print(f"training: {error.name} is not installed here; pip install it, or copy its wheel along", flush=True)
        return
    done = {int(row["seed"]) for row in results.rows(TABLE) if float(row["score_mean"] or -99) >= TARGET}
    card = device.card().get("name", "")
    for seed in range(num_seeds):
        case = f"training/{seed}"
        if seed in done or case in results.skip:
            continue
        if clock.left_seconds < 60:
            print("training: the rest is for the next call", flush=True)
            return
        with results.noted(device, TABLE, case, seed=seed, card=card):
            result = train(seed, results, int(clock.left_seconds - 20))
            kept = {name: result[name] for name in KEPT}
            results.append(TABLE, seed=seed, **kept, milestones=json.dumps(result["milestones"]), card=card)


def train(seed: int, results: Results, seconds: int) -> dict:
    """One run, for so many seconds at most; its `result.json`."""
    from parcade.algorithms.vtrace import VTraceConfig
    from parcade.config import RunConfig, TrainConfig
    from parcade.envs.settings import EnvSettings
    from parcade.policy import NetworkConfig
    from parcade.train import run_training, start_run

    run = RunConfig(
        algorithm="vtrace", backend="native", device="cuda", seed=seed, target_score=TARGET, total_frames=400_000_000, time_limit=f"{seconds}s",
        run_dir=str(results.folder / "runs" / f"gpu-pong-{seed}-{int(time.time())}"), precision="bfloat16",
    )  # fmt: skip
    hyper = VTraceConfig(
        num_envs=1200, num_groups=20, unroll_length=20, learning_rate=1e-3, final_learning_rate=3e-4,
        network=NetworkConfig(network="nature_cnn", hidden=512),
    )  # fmt: skip
    config = TrainConfig("pong", run, EnvSettings(), hyper)
    return run_training(config, start_run(config))
