"""The table of Kommaraju 2019, row by row: four games x four algorithms.

    python benchmarks/results_cray.py [ROW ...] [--list] [--frames 40000000]

A row is GAME-ALGORITHM. A row whose result is in ``benchmarks/results/cray`` is not run again; an interrupted
one resumes from its checkpoint. Where known, the study's own results (Kommaraju 2019, "Scalable Reinforcement
Learning on Cray XC", at 10 million steps) are listed next to ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from curves import is_finished

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "cray"
RUNS = ROOT / "runs" / "cray"
STEPS_PER_FRAME = 4

GAMES = ("beam_rider", "breakout", "qbert", "space_invaders")
COMMON = (
    "--backend native --image-height 42 --image-width 42 --network fine_cnn --precision auto "
    "--final-learning-rate 1e-4 --threads-per-rank 1 --checkpoint-seconds 300"
)
CONFIGURATIONS: dict[str, str] = {
    "ppo": (
        "--algorithm ppo --num-envs 32 --unroll-length 32 --epochs 3 --num-minibatches 4 --learning-rate 5e-4"
    ),
    "a2c": (
        "--algorithm a2c --num-envs 16 --unroll-length 8 --optimizer adam --learning-rate 4e-4 "
        "--normalize-advantages --gae-lambda 0.95"
    ),
    "impala": (
        "--algorithm impala --engine serial --num-envs 32 --num-actors 2 --unroll-length 20 "
        "--learning-rate 5e-4 --trace-lambda 0.95"
    ),
    "apex": (
        "--algorithm apex --engine serial --normalize-input --layer-norm --num-envs 32 --num-actors 2 "
        "--unroll-length 8 --batch-size 128 --steps-per-update 64 --n-step 5 --learning-rate 5e-4 "
        "--target-period 500 --epsilon-base 0.1 --replay-capacity 200000 --learning-starts 20000"
    ),
}
# (reward, minutes) at 10 million steps
STUDY = {
    ("beam_rider", "impala"): (2173, 28),
    ("breakout", "impala"): (374, 28),
    ("qbert", "impala"): (1077, 28),
    ("space_invaders", "impala"): (747, 28),
    ("qbert", "a2c"): (15101, 96),
    ("qbert", "ppo"): (12775, 144),
}


def command(game: str, algorithm: str, frames: int) -> str:
    """The command of a row as a user would type it."""
    return f"parcade train {game} {CONFIGURATIONS[algorithm]} {COMMON} --total-frames {frames}"


def run_row(game: str, algorithm: str, frames: int) -> None:
    """Run or resume one row to its end and save its result."""
    run = RUNS / f"{game}-{algorithm}"
    started = (run / "checkpoints").is_dir() and any((run / "checkpoints").iterdir())
    fresh = [*command(game, algorithm, frames).split()[1:], "--run-dir", str(run)]
    words = ["train", "--resume", str(run), "--total-frames", str(frames)] if started else fresh
    if not is_finished(run):
        subprocess.run([sys.executable, "-m", "parcade", *words], check=True, cwd=ROOT)
    result = json.loads((run / "result.json").read_text())
    if result["finished_by"] == "stopped":
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    row = {"command": command(game, algorithm, frames), **result}
    (RESULTS / f"{game}-{algorithm}.json").write_text(json.dumps(row) + "\n")


def write_table() -> None:
    """Write ``benchmarks/results/cray.md`` from the existing rows."""
    lines = [
        "# BeamRider, Breakout, Qbert and SpaceInvaders",
        "",
        "Mean raw score of the last 100 episodes; steps are decisions of four frames. The two columns before",
        'the commit are the reward and the minutes that Kommaraju 2019, "Scalable Reinforcement Learning on',
        'Cray XC", reports for 10 million steps on a Cray. A row of ours with fewer steps is at an earlier',
        "point of its curve. Settings and machine differ too, so the two score columns are not comparable.",
        "",
        "| game | algorithm | reward mean | steps | wall s | CPU-s | Kommaraju's reward at 10 million steps "
        "| minutes | commit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    commands, machines = [], set()
    for game in GAMES:
        for algorithm in CONFIGURATIONS:
            path = RESULTS / f"{game}-{algorithm}.json"
            reward, minutes = STUDY.get((game, algorithm), ("-", "-"))
            if not path.exists():
                lines.append(f"| {game} | {algorithm} | not run | | | | {reward} | {minutes} | |")
                continue
            row = json.loads(path.read_text())
            lines.append(
                f"| {game} | {algorithm} | {row['score_mean']:.1f} | {row['steps']:,} "
                f"| {row['wall_seconds']:,.0f} | {row['cpu_seconds']:,.0f} | {reward} | {minutes} "
                f"| {row['commit']} |"
            )
            commands.append(f"    {row['command']}")
            machines.add(
                f"{row['machine']['cpu']}, {row['machine']['cores']} cores, "
                f"{row['machine']['memory_gib']} GiB"
            )
    lines += ["", f"Machine: {'; '.join(sorted(machines))}.", "", "Commands:", "", *commands, ""]
    (RESULTS.parent / "cray.md").write_text("\n".join(lines))


def main() -> int:
    """Run the requested rows, by default all of them."""
    rows = {f"{game}-{algorithm}": (game, algorithm) for game in GAMES for algorithm in CONFIGURATIONS}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", choices=[*rows, []], default=[], metavar="ROW")
    parser.add_argument("--list", action="store_true", help="print the rows")
    parser.add_argument("--frames", type=int, default=10_000_000 * STEPS_PER_FRAME)
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(rows))
        return 0
    for row in arguments.rows or rows:
        if not (RESULTS / f"{row}.json").exists():
            run_row(*rows[row], arguments.frames)
        write_table()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
