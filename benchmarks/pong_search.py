"""Search the settings of ``make pong``: candidates on several seeds, with a budget of CPU time for each.

    python benchmarks/pong_search.py [CANDIDATE ...] [--seeds 101 102 103] [--cpu-seconds 400] [--list]

A candidate is a set of flags on top of ``START``; ``pong_fast`` is ``minibatches_of_64_entropy_0.02``. A
trial ends when the mean score of 100 episodes reaches 18, or when its budget is used up. An interrupted trial
continues from its checkpoint; one with a larger budget than before is resumed. Seeds below 100 are for the
reported runs and are refused here. Every trial is a row in ``benchmarks/results/pong_search.json``.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from curves import is_started
from script_arguments import positive

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "pong_search.json"
RUNS = ROOT / "runs" / "pong_search"
START = (
    "--algorithm ppo --image-height 42 --image-width 42 --network fine_cnn --hidden 256 --precision auto "
    "--num-envs 32 --unroll-length 32 --epochs 3 --num-minibatches 4 --learning-rate 1e-3 "
    "--final-learning-rate 2e-4 --entropy-weight 0.01 --final-entropy-weight 0.005 --schedule-share 0.45 "
    "--value-weight 2 --max-grad-norm 1 --threads-per-rank 1 --total-frames 6000000 "
    "--target-score 18"
)
COMMON = f"{START} --report-seconds 5 --checkpoint-seconds 60"
FIRST_SEED = 100
LOOK_SECONDS = 2

CANDIDATES: dict[str, str] = {
    "base": "",
    "lambda_0.97": "--gae-lambda 0.97 --unroll-length 64 --num-minibatches 8",
    "epochs_2": "--epochs 2",
    "epochs_1": "--epochs 1 --num-minibatches 8",
    "stack_2": "--frame-stack 2",
    "minibatches_of_128": "--epochs 2 --num-minibatches 8",
    "minibatches_of_128_hidden_128": "--epochs 2 --num-minibatches 8 --hidden 128",
    "minibatches_of_64": "--epochs 2 --num-minibatches 16",
    "minibatches_of_64_epochs_1": "--epochs 1 --num-minibatches 16",
    "minibatches_of_64_rate_7e-4": "--epochs 2 --num-minibatches 16 --learning-rate 7e-4",
    "minibatches_of_64_rate_1.4e-3": (
        "--epochs 2 --num-minibatches 16 --learning-rate 1.4e-3 --final-learning-rate 3e-4"
    ),
    "minibatches_of_64_entropy_0.02": (
        "--epochs 2 --num-minibatches 16 --entropy-weight 0.02 --final-entropy-weight 0.01"
    ),
    "minibatches_of_64_entropy_0.02_rate_to_5e-4": (
        "--epochs 2 --num-minibatches 16 --entropy-weight 0.02 --final-entropy-weight 0.01 "
        "--final-learning-rate 5e-4"
    ),
    "minibatches_of_32": "--epochs 2 --num-minibatches 32",
}


def last_report(run: Path) -> dict:
    """The newest line of a run's metrics; empty before the first."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1]) if lines else {}


def run_trial(run: Path, flags: str, seed: int, budget: float) -> dict:
    """Run or resume one trial until it has reached its score or used up its budget; returns its row."""
    started = is_started(run)
    words = (
        ["--resume", str(run)] if started else ["pong", *COMMON.split(), *flags.split(), "--seed", str(seed)]
    )
    result = run / "result.json"
    if not (result.exists() and json.loads(result.read_text())["finished_by"] != "stopped"):
        extra = [] if started else ["--run-dir", str(run)]
        process = subprocess.Popen([sys.executable, "-m", "parcade", "train", *words, *extra], cwd=ROOT)
        try:
            while process.poll() is None:
                time.sleep(LOOK_SECONDS)
                if last_report(run).get("cpu_seconds", 0) >= budget:
                    process.send_signal(signal.SIGINT)
                    process.wait(60)
        finally:
            process.terminate()
    made = json.loads(result.read_text())
    keys = (
        "finished_by",
        "cpu_seconds",
        "steps",
        "score_mean",
        "episodes",
        "milestones",
        "commit",
        "machine",
    )
    return {"flags": flags, "seed": seed, **{key: made[key] for key in keys}}


def is_done(row: dict | None, budget: float) -> bool:
    """Whether a trial needs no more time."""
    return row is not None and (row["finished_by"] == "target_score" or row["cpu_seconds"] >= budget)


def main() -> int:
    """Run the candidates asked for, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("candidates", nargs="*", metavar="CANDIDATE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103])
    parser.add_argument("--cpu-seconds", type=positive, default=400)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    unknown = [name for name in options.candidates if name not in CANDIDATES]
    if unknown:
        parser.error(f"unknown candidate {unknown[0]!r}; expected one of {', '.join(CANDIDATES)}")
    if min(options.seeds) < FIRST_SEED:
        parser.error(f"seed {min(options.seeds)} is below {FIRST_SEED}; those are for the reported runs")
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for seed in options.seeds:
        for name in options.candidates or CANDIDATES:
            key = f"{name}-s{seed}"
            if not options.list and not is_done(rows.get(key), options.cpu_seconds):
                rows[key] = run_trial(RUNS / key, CANDIDATES[name], seed, options.cpu_seconds)
                RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
            if row := rows.get(key):
                to = {score: round(mark["cpu_seconds"]) for score, mark in row["milestones"].items()}
                cost = f"{row['cpu_seconds']:.0f} CPU-s, {row['steps']:,} steps"
                print(f"{key}: {row['score_mean']} after {cost}; {to}")
            elif options.list:
                print(f"{key}: not run")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
