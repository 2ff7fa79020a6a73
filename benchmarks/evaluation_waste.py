"""Cost of an error report after every epoch, and the speed-up from reporting every 30 epochs.

    python benchmarks/evaluation_waste.py [--repeats 5] [--ranks 1 2 4] [--epochs 60]

Runs the same fit of examples/mnist.py on scikit-learn's digits with both settings, interleaved, with one
thread per rank. Rank 0 computes the report; the other ranks wait for it in their next Allreduce. Speed is
samples per second of wall clock, which other work on the machine disturbs, so compare runs that are adjacent
in time.
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

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "evaluation_waste.json"
OFTEN, SELDOM = 1, 30


def measure(ranks: int, evaluate_every: int, epochs: int) -> dict[str, float]:
    """Sample rate and time shares of one fit, start-up excluded.

    Shares: rank 0 evaluates; the last rank only waits.
    """
    from parcade.cluster import mpi

    with tempfile.TemporaryDirectory() as directory:
        flags = f"--epochs {epochs} --evaluate-every {evaluate_every} --run-dir {directory}/run"
        command = [sys.executable, str(ROOT / "examples" / "mnist.py"), *flags.split()]
        launch = [mpi.find_mpiexec(), "-n", str(ranks)] if ranks > 1 else []
        environment = mpi.rank_environment(1) | {"PYTHONPATH": str(ROOT)}
        subprocess.run([*launch, *command], check=True, capture_output=True, timeout=600, env=environment)
        result = json.loads((Path(directory) / "run" / "result.json").read_text())
    scopes = result["scope_seconds"]
    total = [sum(seconds[rank] for seconds in scopes.values()) for rank in range(ranks)]
    return {
        "samples_per_second": result["samples_per_second"],
        "first_rank_evaluate_share": scopes["evaluate"][0] / total[0],
        "last_rank_communicate_share": scopes["communicate"][-1] / total[-1],
    }


def main() -> int:
    from parcade.machine.facts import commit, machine

    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=whole_number, default=5)
    parser.add_argument("--ranks", type=whole_number, nargs="+", default=[1, 2, 4])
    parser.add_argument("--epochs", type=whole_number, default=60)
    parser.add_argument("--out", type=output_file, default=RESULT)
    arguments = parser.parse_args()
    load, rows = os.getloadavg()[0], []
    samples = {ranks: {OFTEN: [], SELDOM: []} for ranks in arguments.ranks}
    for _ in range(arguments.repeats):
        for ranks in arguments.ranks:
            for every in (OFTEN, SELDOM):
                samples[ranks][every].append(measure(ranks, every, arguments.epochs))
    for ranks, both in samples.items():
        ratios = [
            seldom["samples_per_second"] / often["samples_per_second"]
            for often, seldom in zip(both[OFTEN], both[SELDOM], strict=True)
        ]
        median = {
            every: {k: statistics.median(s[k] for s in many) for k in many[0]} for every, many in both.items()
        }
        rows.append(
            {
                "ranks": ranks,
                "speed_up": statistics.median(ratios),
                "speed_ups": sorted(ratios),
                "medians": median,
            }
        )
        print(
            f"{ranks} rank(s): {statistics.median(ratios):.2f}x [{min(ratios):.2f}-{max(ratios):.2f}] with a "
            f"report every {SELDOM} epochs instead of {OFTEN}; the report took "
            f"{median[OFTEN]['first_rank_evaluate_share']:.0%} of rank 0's time, and the last rank spent "
            f"{median[OFTEN]['last_rank_communicate_share']:.0%} communicating "
            f"(then {median[SELDOM]['last_rank_communicate_share']:.0%})",
            flush=True,
        )
    ranks = " ".join(map(str, arguments.ranks))
    result = {
        "command": f"python benchmarks/evaluation_waste.py --repeats {arguments.repeats} --ranks {ranks} "
        f"--epochs {arguments.epochs}",
        "commit": commit(),
        "machine": machine(),
        "load_at_start": load,
        "rows": rows,
        "samples": samples,
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
