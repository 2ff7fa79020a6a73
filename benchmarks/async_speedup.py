"""Frames to a fixed score with 1, 2, 4 and 8 actor-learners, on the serial asynchronous schedule.

    python benchmarks/async_speedup.py [--game tiny_catch] [--score 0.5] [--total-frames 400000] [--seeds 3]

The experiment of Mnih 2016, table 2 and figure 3, at the size of one machine: do more actor-learners learn from fewer
frames? Each learner has as many environments, whatever their number. The serial schedule gives every learner parameters
as many updates old as there are others, so the answer does not depend on the machine. Resumable row by row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "async_speedup"
LEARNERS = (1, 2, 4, 8)
ENVS_PER_LEARNER = 4
# name: flags; the two kinds of epsilon are the paper's question about exploration.
ROWS = {
    "async-q, equal epsilons": "--algorithm async-q --method one_step --no-different-epsilons --epsilon-end 0.05",
    "async-q, different epsilons": "--algorithm async-q --method one_step --different-epsilons",
    "a3c": "--algorithm a3c",
}
PONG = "--backend native --image-height 42 --image-width 42"


def flags_of(name: str, game: str) -> str:
    """A row's flags for a game: step sizes are those that learn it with one learner."""
    q = name.startswith("async-q")
    if game == "tiny_catch":
        common = "--network mlp --hidden 64"
        own = "--learning-rate 2e-3 --final-learning-rate 5e-4 --target-period 30 --unroll-length 2 --epsilon-until 0.3"
        own = own if q else "--learning-rate 3e-3 --final-learning-rate 3e-3"
    else:
        common = PONG
        own = "--learning-rate 5e-4 --final-learning-rate 2e-4 --optimizer adam --target-period 250" if q else (
            "--learning-rate 5e-4 --final-learning-rate 3e-4 --optimizer adam --normalize-advantages --gae-lambda 0.95"
        )
    return f"{ROWS[name]} {common} {own} --normalize-input"


def run_row(name: str, learners: int, seed: int, arguments: argparse.Namespace) -> dict:
    """One run to the score; frames is None where it was not reached within the frames there are."""
    label = f"{arguments.game}-{name.replace(', ', '-').replace(' ', '-')}-n{learners}-s{seed}"
    path = RESULTS / f"{label}.json"
    if path.exists():
        return json.loads(path.read_text())
    run = ROOT / "runs" / "async_speedup" / label
    words = f"train {arguments.game} {flags_of(name, arguments.game)} --engine serial --num-learners {learners}"
    words += f" --num-envs {learners * ENVS_PER_LEARNER} --seed {seed} --total-frames {arguments.total_frames}"
    words += f" --target-score {arguments.score} --run-dir {run} --report-seconds 30 --checkpoint-seconds 600"
    subprocess.run([sys.executable, "-m", "parcade", *words.split()], check=True, cwd=ROOT)
    result = json.loads((run / "result.json").read_text())
    reached = result["finished_by"] == "target_score"
    row = {"row": name, "learners": learners, "seed": seed, "command": "parcade " + words.rsplit(" --run-dir", 1)[0]}
    row |= {"frames": result["frames"] if reached else None, "score": result["score_mean"], "updates": result["updates"]}
    row |= {name: result[name] for name in ("cpu_seconds", "wall_seconds", "commit", "machine")}
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(row) + "\n")
    return row


def table(rows: list[dict], arguments: argparse.Namespace) -> str:
    """Medians over the seeds, their spread, and the speed-up in frames over one learner."""
    lines = [
        f"# Frames to a score of {arguments.score} on {arguments.game}",
        "",
        "Median over seeds [least-greatest]; a dash where not all seeds reached it. Gain: frames of one learner over those of n.",
        "",
        "| | learners | frames | gain |",
        "|---|---|---|---|",
    ]
    for name in ROWS:
        base = None
        for n in LEARNERS:
            frames = [row["frames"] for row in rows if row["row"] == name and row["learners"] == n]
            if not frames or None in frames:
                lines.append(f"| {name} | {n} | - | - |")
                continue
            median = statistics.median(frames)
            base = base or (median if n == 1 else None)
            gain = f"{base / median:.2f}" if base else "-"
            lines.append(f"| {name} | {n} | {median:,.0f} [{min(frames):,}-{max(frames):,}] | {gain} |")
    m = rows[0]["machine"]
    lines += ["", f"Commit {rows[0]['commit']}; {m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB.", ""]
    return "\n".join(lines)


def main() -> int:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="tiny_catch")
    parser.add_argument("--score", type=float, default=0.5)
    parser.add_argument("--total-frames", type=int, default=400_000)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    rows = [
        run_row(name, learners, seed, arguments)
        for seed in range(arguments.seeds)
        for name in ROWS
        for learners in LEARNERS
    ]
    text = table(rows, arguments)
    (RESULTS / f"{arguments.game}.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
