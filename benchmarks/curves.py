"""Learning curves on Pong for every algorithm and seed in one command; resumable row by row.

    python benchmarks/curves.py [ROW ...] [--list]

A row is NAME-sSEED. A row whose result is in ``benchmarks/results/curves`` is not run again; an interrupted
one resumes from its checkpoint. The table and the plot are rewritten after each row.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from parcade.cluster.processes import still_running
from parcade.files.run_directory import complete_checkpoints, is_finished
from parcade.report.plots import plot_curves, score_curve

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
RUNS = ROOT / "runs" / "curves"

# name: (flags, seeds). A run ends at its target score.
ROWS: dict[str, tuple[str, tuple[int, ...]]] = {
    "ppo-ale": ("--preset pong_fast --backend ale", (21,)),
    "ppo-native": ("--preset pong_fast --backend native", (21, 22, 23, 24, 25)),
    "pqn": ("--preset pong_pqn --backend native", (0, 1, 2)),
    "a2c": ("--preset pong_a2c --backend native", (0, 1, 2)),
    "vtrace": ("--preset pong_vtrace --backend native", (0, 1, 2)),
    "vtrace-seeded": ("--preset pong_vtrace --backend native --warm-up-steps 1000", (0, 1, 2)),
    "impala": ("--preset pong_impala --backend native", (0, 1, 2)),
    "apex": ("--preset pong_apex --backend native --checkpoint-seconds 300", (0, 1, 2)),
    "dqn": ("--preset pong_dqn --backend native --checkpoint-seconds 300", (0, 1, 2)),
    "gorila": ("--preset pong_gorila --backend native", (0,)),
    "a3c": ("--preset pong_a3c --backend native", (0,)),
    "async-q": ("--preset pong_async_q --backend native", (0,)),
    "ga3c": ("--preset pong_ga3c --backend native", (0,)),
    "es": ("--preset pong_es --backend native --time-limit 2h", (0,)),
    "reinforce": ("--preset karpathy_2016 --backend native --target-score 0.01", (0, 1, 2)),
}
COMMON = "--threads-per-rank 1 --report-seconds 20 --checkpoint-seconds 60"


def command(name: str, seed: int) -> str:
    """The command of a row as a user would type it."""
    return f"parcade train pong {COMMON} {ROWS[name][0]} --seed {seed}"


def run_row(name: str, seed: int) -> None:
    """Run one row to its end and save its curve."""
    run = RUNS / f"{name}-s{seed}"
    started = is_started(run)
    words = (
        ["train", "--resume", str(run)]
        if started
        else [*command(name, seed).split()[1:], "--run-dir", str(run)]
    )
    if not is_finished(run):
        subprocess.run([sys.executable, "-m", "parcade", *words], check=True, cwd=ROOT)
    keep(name, seed, run)


def is_started(run: Path) -> bool:
    """Whether a run can be resumed. What is left of a start without a checkpoint is removed."""
    if run.is_dir() and (record := still_running(run)):
        sys.exit(f"{run} is still trained by {record.name}, {record.place}; end it first")
    if complete_checkpoints(run) or is_finished(run):
        return True
    shutil.rmtree(run, ignore_errors=True)
    return False


def keep(name: str, seed: int, run: Path) -> None:
    """Copy a finished run's result and its curve, thinned to about 200 points, into the results folder."""
    result = json.loads((run / "result.json").read_text())
    if result["finished_by"] == "stopped":
        return
    curve = score_curve(run)
    every = max(1, len(curve["frames"]) // 200)
    thinned = {key: values[::every].round(3).tolist() for key, values in curve.items()}
    (RESULTS / "curves").mkdir(parents=True, exist_ok=True)
    row = {"command": command(name, seed), **result, "curve": thinned}
    (RESULTS / "curves" / f"{name}-s{seed}.json").write_text(json.dumps(row) + "\n")


def write_table() -> None:
    """Write ``benchmarks/results/pong.md`` and its plot from the existing rows."""
    rows = [
        {"name": path.stem.rsplit("-", 1)[0], **json.loads(path.read_text())}
        for path in sorted((RESULTS / "curves").glob("*.json"))
    ]
    lines = [
        "# Pong: time to a score",
        "",
        "Mean raw score of the last 100 complete episodes (`dqn_2015`: no sticky actions; `karpathy_2016` "
        "for reinforce).",
        "CPU-seconds cover the process tree, start-up included; the machine also ran other work. A commit is",
        "dirty if files were uncommitted when the run ended, mostly results of other rows. CPU-seconds of",
        "different CPUs do not compare, steps do; an AMD EPYC without a family is one of family 25 (Zen 4).",
        "",
        "| row | seed | ended by | score | steps | CPU-s | CPU-s to 0 | CPU-s to 18 | commit | CPU |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        score = "-" if row["score_mean"] is None else f"{row['score_mean']:.2f}"
        to = [row["milestones"].get(score, {}).get("cpu_seconds", "-") for score in ("0", "18")]
        lines.append(
            f"| {row['name']} | {row['seed']} | {row['finished_by']} | {score} "
            f"| {row['steps']:,} | {row['cpu_seconds']:,.0f} | {to[0]} | {to[1]} | {row['commit']} "
            f"| {row['machine']['cpu']} |"
        )
    machines = {
        f"{r['machine']['cpu']}, {r['machine']['cores']} cores, {r['machine']['memory_gib']} GiB"
        for r in rows
    }
    lines += ["", f"Machine: {'; '.join(sorted(machines))}.", "", "Commands:", ""]
    lines += [f"    {row['command']}" for row in rows]
    lines += ["", "![curves](pong.png)", ""]
    (RESULTS / "pong.md").write_text("\n".join(lines))
    curves: dict[str, list] = {}
    for row in rows:
        curves.setdefault(row["name"], []).append(row["curve"])
    if curves:
        title = "Pong from pixels"
        plot_curves(
            curves,
            RESULTS / "pong.png",
            x="frames",  # of the rows' CPUs, CPU-seconds do not compare
            x_label="frames",
            title=title,
            target=18,
            logarithmic=True,
        )


def main(wanted: list[str]) -> int:
    """Run the requested rows, by default all of them."""
    rows = {f"{name}-s{seed}": (name, seed) for name, (_, seeds) in ROWS.items() for seed in seeds}
    if "--list" in wanted:
        print("\n".join(rows))
        return 0
    if {"-h", "--help"} & set(wanted):
        print(__doc__)
        return 0
    unknown = [row for row in wanted if row not in rows]
    if unknown:
        print(f"unknown row {unknown[0]!r}; expected one of {', '.join(rows)}", file=sys.stderr)
        return 2
    for row in wanted or rows:
        if (RESULTS / "curves" / f"{row}.json").exists():
            print(f"{row} is in benchmarks/results/curves already; remove its file to train it again")
        else:
            run_row(*rows[row])
        write_table()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
