"""Frames to a fixed score with 1, 2, 4 and 8 actor-learners, on the serial asynchronous schedule.

    python benchmarks/async_speedup.py [--game tiny_catch] [--score 0.5] [--total-frames 400000] [--seeds 3]
    python benchmarks/async_speedup.py --engine ray --learners 1 2      # wall clock, each learner a process

The experiment of Mnih 2016, table 2 and figure 3, at the size of one machine: do more actor-learners learn from fewer
frames? Each learner has as many environments, whatever their number. The serial schedule gives every learner parameters
as many updates old as there are others, so the answer does not depend on the machine; on Ray learners run at the same time, and
what counts is the wall clock of this machine. Resumable row by row.
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
    engine = arguments.engine
    prefix = arguments.game if engine == "serial" else f"{arguments.game}-{engine}"
    label = f"{prefix}-{name.replace(', ', '-').replace(' ', '-')}-n{learners}-s{seed}"
    path = RESULTS / f"{label}.json"
    if path.exists():
        return json.loads(path.read_text())
    run = ROOT / "runs" / "async_speedup" / label
    words = f"train {arguments.game} {flags_of(name, arguments.game)} --engine {engine} --num-learners {learners}"
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
    """Medians over the seeds, their spread, and what n learners gain over one: in frames, on Ray in wall clock too."""
    timed = arguments.engine != "serial"
    lines = [
        f"# Frames to a score of {arguments.score} on {arguments.game}, engine {arguments.engine}",
        "",
        "Median over seeds [least-greatest]; a dash where not all seeds reached it. Gain: frames (seconds) of one learner over those of n.",
        "",
        "| | learners | frames | gain |" + (" seconds | gain |" if timed else ""),
        "|---|---|---|---|" + ("---|---|" if timed else ""),
    ]
    for name in ROWS:
        bases: dict[str, float] = {}
        for n in arguments.learners:
            own = [row for row in rows if row["row"] == name and row["learners"] == n]
            cells = [name, str(n)]
            for what in ("frames", "wall_seconds") if timed else ("frames",):
                values = [row[what] for row in own]
                if not own or any(row["frames"] is None for row in own):
                    cells += ["-", "-"]
                    continue
                median = statistics.median(values)
                base = bases.setdefault(what, median) if n == 1 else bases.get(what)
                cells += [f"{median:,.0f} [{min(values):,.0f}-{max(values):,.0f}]", f"{base / median:.2f}" if base else "-"]
            lines.append("| " + " | ".join(cells) + " |")
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
    parser.add_argument("--engine", choices=("serial", "ray"), default="serial")
    parser.add_argument("--learners", type=int, nargs="+", default=LEARNERS)
    arguments = parser.parse_args()
    rows = [
        run_row(name, learners, seed, arguments)
        for seed in range(arguments.seeds)
        for name in ROWS
        for learners in arguments.learners
    ]
    text = table(rows, arguments)
    (RESULTS / f"{arguments.game}-{arguments.engine}.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
