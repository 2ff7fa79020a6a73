"""Training with consoles and network on the GPU: one row per run in gpu_training.csv, runs in DIR/runs.

    python benchmarks/gpu_training.py --minutes 9 --results DIR     # runs without a row that fit the time
    python benchmarks/gpu_training.py --stand-in --results DIR      # a tiny run of each stage, without a GPU

| stage    | runs                                                                                           |
|----------|------------------------------------------------------------------------------------------------|
| training | Pong to a mean of 18 over 100 episodes, one row per seed: V-trace on staggered consoles,       |
|          | CuLE's schedule                                                                                |
| preset   | the same with PPO on 256 consoles, `--preset pong_gpu_consoles`                                |
| schedule | consoles, groups and unrolls of CuLE's Table 3 on Pong: learning needs updates as well as      |
|          | frames/s                                                                                       |
| networks | frames and updates per second by network size                                                  |
| games    | 10 million steps of BeamRider, Breakout, Qbert and SpaceInvaders                               |

`wall_seconds` starts with the process. Rates are those after the first iterations, see `steady_rates`.
Kernels are compiled before, for all games in parallel. Call again for the remaining runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_ahead import ENVIRONMENTS, Ahead
from gpu_results import (
    TIMED_RUN,
    Clock,
    Table,
    child_environment,
    commit,
    flags,
    one_line,
    open_device,
    run,
    steady_rates,
)

from parcade.errors import UsageError
from parcade.machine.devices import STAND_IN

TARGET = 18.0
LEAST_SECONDS = 20  # minimum of a run; also the overhead of a call in addition to its run
START_SECONDS = 120  # allowance for a process in addition to its run
STEPS = 10_000_000
FRAMES_A_STEP = 4
SHAPE = ("stage", "game", "num_envs", "num_groups", "unroll_length", "network", "hidden", "seed")
KEY = (*SHAPE, "card", "commit")
RESULT = ("finished_by", "score_mean", "wall_seconds", "frames", "steps", "updates")
FIGURES = (*RESULT, "frames_per_second", "updates_per_second", "frames_per_dollar", "milestones")
STAGES = ("training", "preset", "schedule", "networks", "games")


@dataclass(frozen=True)
class Case:
    """One run, limited to `seconds` or until the mean score of 100 episodes reaches `target`."""

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
    def columns(self) -> dict[str, Any]:
        """Columns that identify the run's row."""
        return {name: getattr(self, name) for name in SHAPE}


def cases(stage: str, num_seeds: int) -> list[Case]:
    """Runs of a stage."""
    if stage == "training":
        return [Case(stage, seed=seed, target=TARGET) for seed in range(num_seeds)]
    if stage == "preset":  # the preset's own settings, except for the seed
        shape = {"num_envs": 256, "num_groups": 1, "unroll_length": 32, "network": "fine_cnn", "hidden": 256}
        limits = {"seconds": 90, "total_frames": 10_000_000, "target": TARGET}
        return [Case(stage, **shape, **limits, seed=seed) for seed in range(num_seeds)]
    if stage == "games":
        names = ("beam_rider", "breakout", "qbert", "space_invaders")
        return [Case(stage, game, total_frames=STEPS * FRAMES_A_STEP) for game in names]
    if stage == "schedule":  # environments, groups, unroll length
        table = ((1200, 20, 20), (1200, 5, 5), (1200, 1, 5), (120, 20, 20), (120, 5, 5), (120, 1, 5))
        return [
            Case(stage, num_envs=n, num_groups=g, unroll_length=t, seconds=90, target=TARGET)
            for n, g, t in table
        ]
    sizes = (("small_cnn", 256), ("nature_cnn", 512), ("impala_resnet", 256))
    return [Case(stage, network=network, hidden=hidden, seconds=LEAST_SECONDS) for network, hidden in sizes]


def tiny(case: Case) -> Case:
    """A run of a few seconds on a CPU."""
    groups = min(case.num_groups, 2)
    return replace(
        case,
        num_envs=4,
        num_groups=groups,
        unroll_length=4,
        network="small_cnn",
        hidden=16,
        seconds=240,
        target=None,
        total_frames=160,
    )


def cases_of(stage: str, options: argparse.Namespace) -> list[Case]:
    """Runs of a stage that the call requests."""
    listed = cases(stage, options.seeds)
    return [tiny(listed[0])] if options.stand_in else listed


def settings(case: Case) -> dict[str, Any]:
    """Flags of a run except its folder and time limit."""
    found = {
        "backend": "native", "device": "cuda", "env_device": "cuda", "precision": "auto",
        "start_states": "cached", "seed": case.seed,
        "total_frames": case.total_frames, "num_envs": case.num_envs, "unroll_length": case.unroll_length,
        "network": case.network,
        "hidden": case.hidden,
    }  # fmt: skip
    if case.stage == "preset":
        found = {"preset": "pong_gpu_consoles", **found, "num_minibatches": min(32, case.num_envs)}
    else:
        found |= {
            "algorithm": "vtrace",
            "num_groups": case.num_groups,
            "learning_rate": 1e-3,
            "final_learning_rate": 3e-4,
        }
    return found | ({} if case.target is None else {"target_score": case.target})


def train(case: Case, folder: Path, *, stand_in: bool) -> Path:
    """Run in a separate process, whose clock starts with it, and return its directory.

    Errors: RuntimeError with the last line of its output.
    """
    directory = folder / "runs" / f"{case.stage}-{case.game}-{case.seed}-{time.time_ns()}"
    command = [sys.executable, "-m", "parcade", "train", case.game]
    for name, value in {
        **settings(case),
        **TIMED_RUN,
        "time_limit": f"{case.seconds}s",
        "run_dir": directory.resolve(),
    }.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    try:
        done = subprocess.run(
            command,
            env=child_environment(**({STAND_IN: "1"} if stand_in else {})),
            capture_output=True,
            text=True,
            timeout=case.seconds + START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"the run did not end within {START_SECONDS} s of its limit of {case.seconds} s"
        ) from error
    if done.returncode:
        raise RuntimeError(
            (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        )
    return directory


def figures(run: Path, dollars_an_hour: float | None) -> dict[str, Any]:
    """Columns of a run's directory; frames per dollar if the hourly price is known."""
    result = json.loads((run / "result.json").read_text())
    rates = steady_rates(run / "metrics.jsonl", ("frames", "updates"))
    kept = {name: result[name] for name in RESULT}
    kept |= {f"{name}_per_second": rate for name, rate in rates.items()}
    if dollars_an_hour:
        kept["frames_per_dollar"] = round(rates["frames"] * 3600 / dollars_an_hour)
    return {**kept, "milestones": json.dumps(result["milestones"])}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the options. Errors: UsageError."""
    parser = flags(__doc__)
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=STAGES)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds for Pong to 18")
    parser.add_argument(
        "--dollars-an-hour", type=float, help="hourly price of the machine, for frames per dollar"
    )
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        raise UsageError(f"--seeds {options.seeds}: expected 1 or more")
    if options.dollars_an_hour is not None and options.dollars_an_hour <= 0:
        raise UsageError(
            f"--dollars-an-hour {options.dollars_an_hour:g}: expected more than 0; omit the flag if unknown"
        )
    return options


def main(arguments: list[str] | None = None) -> None:
    """Run the cases without a row that fit into the time. Errors: UsageError."""
    options = parse(arguments)
    device, clock, where = open_device(options), Clock(60 * options.minutes), {"commit": commit()}
    where["card"] = device.card
    table = Table(options.results, "gpu_training.csv", KEY, FIGURES)
    listed = [case for stage in options.stages for case in cases_of(stage, options)]
    todo = [case for case in listed if not table.has({**case.columns, **where})]
    left = 0
    with Ahead(device) as ahead:
        for case in todo:
            ahead.ask(case.game, ENVIRONMENTS)
        for case in todo:
            is_made = ahead.wait(case.game, ENVIRONMENTS, clock.left_seconds)
            if not is_made or clock.left_seconds < case.seconds + LEAST_SECONDS:
                left += 1
                continue
            row = {**case.columns, **where}
            try:
                table.append(
                    {
                        **row,
                        **figures(
                            train(case, options.results, stand_in=options.stand_in), options.dollars_an_hour
                        ),
                    }
                )
            except RuntimeError as error:
                table.append({**row, "error": one_line(error)})
    if left:
        print(f"training: {left} runs are left for the next call", flush=True)


if __name__ == "__main__":
    run(main)
