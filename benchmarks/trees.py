"""Compare two source trees by five interleaved jobs of fixed work: CPU-seconds of each, median and ratio.

    git worktree add /tmp/before COMMIT
    python benchmarks/trees.py /tmp/before [--repeats 3]

The jobs: consoles alone, PPO for 100,000 frames, PQN, PPO on two MPI ranks, IMPALA on Ray.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from script_arguments import output_file, whole_number

from parcade.machine.facts import machine

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "trees.json"
CONSOLES = """
import numpy as np, parcade
env = parcade.make_vec("pong", 32, "native", num_threads=1)
env.reset(seed=0)
player = np.random.default_rng(0)
for _ in range(3000):
    env.step(player.integers(0, 6, 32))
"""
TRAIN = "train pong --target-score None --threads-per-rank 1 --report-seconds 60 --seed 1"
# The epochs and minibatches are given, because those of the preset may differ between two trees.
PPO = f"{TRAIN} --preset pong_fast --epochs 3 --num-minibatches 4 --total-frames 100000"
JOBS = {
    "ppo": PPO,
    "pqn": f"{TRAIN} --preset pong_pqn --total-frames 60000",
    "ppo on two ranks": f"{PPO} --engine mpi --ranks 2",
    "impala on Ray": f"{TRAIN} --preset pong_impala --engine ray --total-frames 60000",
}


def environment(tree: Path) -> dict[str, str]:
    """The environment of a job that runs a tree."""
    return {**os.environ, "PYTHONPATH": str(tree), "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}


def cpu_seconds(tree: Path, job: str) -> float:
    """CPU-seconds of one job in one tree."""
    if job == "consoles":
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", CONSOLES], cwd=tree, env=environment(tree), check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "parcade", *JOBS[job].split(), "--run-dir", str(run)]
        subprocess.run(command, cwd=tree, env=environment(tree), check=True, capture_output=True)
        return json.loads((run / "result.json").read_text())["cpu_seconds"]


def commit_of(tree: Path) -> str:
    """Commit of a tree."""
    command = ["git", "-C", str(tree), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("--repeats", type=whole_number, default=3)
    parser.add_argument("--out", type=output_file, default=RESULT)
    options = parser.parse_args()
    rows: dict[str, dict] = {}
    for job in ("consoles", *JOBS):
        cpu_seconds(options.before, job), cpu_seconds(ROOT, job)  # what is compiled is compiled now
        pairs = [(cpu_seconds(options.before, job), cpu_seconds(ROOT, job)) for _ in range(options.repeats)]
        ratio = statistics.median(after / before for before, after in pairs)
        rows[job] = {"cpu_seconds": pairs, "ratio": round(ratio, 3)}
        print(f"{job}: {ratio:.3f} of the time before", flush=True)
    commits = {"before": commit_of(options.before), "after": commit_of(ROOT)}
    options.out.write_text(
        json.dumps({"jobs": rows, "commits": commits, "machine": machine()}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
