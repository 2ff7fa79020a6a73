"""Speed-up from 1 to 2 MPI ranks and time share of communication: the same job, interleaved.

    python benchmarks/ranks.py [--repeats 3] [--seconds 60] [--ranks 1 2]

Every rank has one thread. Steps per second of wall clock require otherwise idle cores; the result records the
load average at the start.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from script_arguments import output_file, script_parser, whole_number

RESULT = Path(__file__).resolve().parent / "results" / "ranks.json"
JOBS = {
    "ppo": "--preset pong_fast --epochs 3 --num-minibatches 4 --target-score None",
    "reinforce": "--preset karpathy_2016",
}


def measure(job: str, ranks: int, seconds: int) -> dict[str, float]:
    """Rates and time shares of one run from its second to its last report, which excludes start-up."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        flags = (
            f"{JOBS[job]} --engine mpi --ranks {ranks} --threads-per-rank 1 --report-seconds 5 "
            f"--run-dir {run}"
        )
        # The time limit includes building the consoles, about half a CPU-second each.
        limit = f"--time-limit {seconds + 30}s --checkpoint-seconds 3600"
        command = [sys.executable, "-m", "parcade", "train", "pong", *flags.split(), *limit.split()]
        subprocess.run(command, check=True, capture_output=True, timeout=10 * seconds + 300)
        reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, last, counted = reports[0], reports[-1], reports[1:]
    spans = [b["wall_seconds"] - a["wall_seconds"] for a, b in zip(reports, counted, strict=False)]
    share = sum(r["time/communicate"] * s for r, s in zip(counted, spans, strict=True)) / sum(spans)
    steps = last["steps"] - first["steps"]
    return {
        "steps_per_second": steps / (last["wall_seconds"] - first["wall_seconds"]),
        "steps_per_cpu_second": steps / (last["cpu_seconds"] - first["cpu_seconds"]),
        "communicate_share": share,
    }


def main() -> int:
    from parcade.machine.facts import commit, machine

    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=whole_number, default=3)
    parser.add_argument("--seconds", type=whole_number, default=60)
    parser.add_argument("--ranks", type=whole_number, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=output_file, default=RESULT)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    samples: dict[str, list[dict[str, float]]] = {}
    for _ in range(arguments.repeats):
        for job in JOBS:
            for ranks in arguments.ranks:
                measured = measure(job, ranks, arguments.seconds)
                samples.setdefault(f"{job}, {ranks} rank(s)", []).append(measured)
                print(job, ranks, measured, flush=True)
    summary = {
        name: {figure: statistics.median(sample[figure] for sample in many) for figure in many[0]}
        for name, many in samples.items()
    }
    for job in JOBS:
        base = summary[f"{job}, {arguments.ranks[0]} rank(s)"]["steps_per_second"]
        for ranks in arguments.ranks[1:]:
            row = summary[f"{job}, {ranks} rank(s)"]
            row["speed_up"] = row["steps_per_second"] / base
            print(
                f"{job}: {row['speed_up']:.2f}x on {ranks} ranks, "
                f"{row['communicate_share']:.1%} communicating"
            )
    command = " ".join(["python benchmarks/ranks.py", *sys.argv[1:]])
    result = {
        "command": command,
        "commit": commit(),
        "machine": machine(),
        "load_at_start": load,
        "medians": summary,
        "samples": samples,
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
