"""``parcade bench``: frames and steps a second on this machine, of emulation alone and of whole training.

Rates are per second of wall clock and per second of CPU time of the process; on a machine that is shared with others
the second is the one to compare.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from parcade.envs import make_vec
from parcade.report.machine import commit, machine
from parcade.report.progress import process_cpu_seconds


@dataclass(frozen=True)
class BenchFlags:
    """Measure and print medians over repeats, lowest and highest in brackets."""

    game: Annotated[str, "positional"] = "pong"
    """The game."""
    num_envs: int = 8
    """Environments."""
    seconds: float = 5.0
    """Length of a repeat."""
    repeats: int = 3
    """How many."""
    backend: str = "ale"
    """Who emulates."""
    preset: str = "dqn_2015"
    """Environment preset (bench env)."""
    image_size: int = 84
    """Rows and columns of an observation (bench env)."""
    num_threads: int = 0
    """Threads that emulate; 0 lets the backend choose."""
    algorithm: str = "ppo"
    """What learns (bench train)."""
    json: str = ""
    """Also write the result to this file."""


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} [{min(values):,.0f}-{max(values):,.0f}]"


def bench_env(flags: BenchFlags) -> dict[str, Any]:
    """Random actions in ``num_envs`` games; observations are made, nothing is learned."""
    overrides = {"image_height": flags.image_size, "image_width": flags.image_size}
    overrides = overrides if flags.preset != "karpathy_2016" else {}
    env = make_vec(
        flags.game, flags.num_envs, flags.backend, preset=flags.preset, num_threads=flags.num_threads, **overrides
    )
    generator = np.random.default_rng(0)
    env.reset(seed=0)
    num_actions = int(env.single_action_space.n)
    samples: dict[str, list[float]] = {"frames_per_cpu_second": [], "frames_per_second": [], "steps_per_second": []}
    for _ in range(flags.repeats):
        frames = steps = 0
        wall, cpu = time.perf_counter(), process_cpu_seconds()
        while time.perf_counter() - wall < flags.seconds:
            infos = env.step(generator.integers(0, num_actions, flags.num_envs))[4]
            frames += int(infos["frames"].sum())
            steps += flags.num_envs
        wall, cpu = time.perf_counter() - wall, process_cpu_seconds() - cpu
        samples["frames_per_cpu_second"].append(frames / cpu)
        samples["frames_per_second"].append(frames / wall)
        samples["steps_per_second"].append(steps / wall)
    env.close()
    row = {"what": "emulation and preprocessing, random actions", "game": flags.game, "num_envs": flags.num_envs}
    return _result(flags, row, samples)


def bench_train(flags: BenchFlags) -> dict[str, Any]:
    """Whole training for a few seconds: emulation, inference and learning; start-up not counted."""
    from parcade.algorithms.table import algorithm_row
    from parcade.config import RunConfig, TrainConfig
    from parcade.train import run_training, start_run

    hyper = algorithm_row(flags.algorithm).config(num_envs=flags.num_envs)
    samples: dict[str, list[float]] = {"frames_per_cpu_second": [], "frames_per_second": [], "steps_per_second": []}
    for repeat in range(flags.repeats):
        with tempfile.TemporaryDirectory() as directory:
            run = RunConfig(
                algorithm=flags.algorithm,
                backend=flags.backend,
                time_limit=f"{flags.seconds + process_seconds_now():.1f}s",
                seed=repeat,
                run_dir=str(Path(directory) / "run"),
                threads_per_rank=flags.num_threads,
                report_seconds=0.5,
                checkpoint_seconds=3600.0,
            )
            config = TrainConfig(flags.game, run, hyper=hyper)
            path = start_run(config)
            run_training(config, path)
            for name, value in _rates(path / "metrics.jsonl").items():
                samples[name].append(value)
    row = {"what": f"training with {flags.algorithm}", "game": flags.game, "num_envs": flags.num_envs}
    return _result(flags, row, samples)


def process_seconds_now() -> float:
    """Seconds since the process began, plus a start-up's worth: a run's time limit counts from there."""
    from parcade.report.progress import process_seconds

    return process_seconds() + 5.0


def _rates(metrics: Path) -> dict[str, float]:
    """Rates between the first and the last report of a run."""
    import json

    reports = [json.loads(line) for line in metrics.read_text().splitlines()]
    first, last = reports[0], reports[-1]
    wall = max(last["wall_seconds"] - first["wall_seconds"], 1e-9)
    cpu = max(last["cpu_seconds"] - first["cpu_seconds"], 1e-9)
    frames, steps = last["frames"] - first["frames"], last["steps"] - first["steps"]
    return {"frames_per_cpu_second": frames / cpu, "frames_per_second": frames / wall, "steps_per_second": steps / wall}


def _result(flags: BenchFlags, row: dict[str, Any], samples: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "rows": [{**row, **{name: _spread(values) for name, values in samples.items()}}],
        "samples": samples,
        "flags": {name: getattr(flags, name) for name in flags.__dataclass_fields__},
        "commit": commit(),
        "machine": machine(),
    }


BENCHES: dict[str, Callable[[BenchFlags], dict[str, Any]]] = {"env": bench_env, "train": bench_train}
