"""Cost of thread oversubscription: the same job on 1, 2 and 4 ranks with default pools and one thread.

    python benchmarks/oversubscription.py [--ranks 1 2 4] [--repeats 3] [--seconds 10]

Compares four ways to size the thread pools, interleaved:

- default: every library sizes its own pool, one thread per core in every rank, and waiting threads spin
- default, waiting asleep: the same with OMP_WAIT_POLICY=PASSIVE, which parcade sets
- sixteen: --threads-per-rank 16, which is the default on a machine with sixteen cores
- one: --threads-per-rank 1

The job is Karpathy's policy gradient, whose matrix products are small. It grows with the number of ranks, so
that every rank has the same work: four environments. The benchmark reports steps per CPU-second as well as
steps per second: threads that spin waste CPU time, which is visible even on a busy machine. It also runs the
doctor on the first way and keeps its finding.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from script_arguments import output_file, positive, script_parser, whole_number

from parcade.machine.facts import available_cores, commit, machine
from parcade.profile.recorded_command import RecordedCommand, record, train_command

RESULT = Path(__file__).resolve().parent / "results" / "oversubscription.json"
# How long libgomp spins by default, about 3 ms. Set explicitly, it overrides parcade's
# OMP_WAIT_POLICY=PASSIVE.
LIBGOMP_DEFAULT_SPIN = "300000"
WAYS = {
    "default": (-1, {"GOMP_SPINCOUNT": LIBGOMP_DEFAULT_SPIN}),
    "default, waiting asleep": (-1, {}),
    "sixteen": (16, {"GOMP_SPINCOUNT": LIBGOMP_DEFAULT_SPIN}),
    "one": (1, {}),
}
JOB = "pong --preset karpathy_2016 --games-per-update 16 --frame-limit 1000"
ENVS_PER_RANK = 4
POOL_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def measure(way: str, ranks: int, seconds: float) -> dict[str, float]:
    """Rates of one run."""
    threads, environment = WAYS[way]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = [
            *JOB.split(),
            "--num-envs",
            str(ENVS_PER_RANK * ranks),
            "--engine",
            "mpi",
            "--ranks",
            str(ranks),
            "--threads-per-rank",
            str(threads),
        ]
        command = train_command([*flags, "--checkpoint-seconds", "86400"], folder / "run")
        words = ["env", *(word for name in POOL_VARIABLES for word in ("-u", name))]
        words += [f"{name}={value}" for name, value in environment.items()]
        recording = RecordedCommand([*words, *command], way, seconds, barrier=False, limit_seconds=1200)
        profile = record(recording, folder, folder)
    switches = sum(rank.involuntary_switches / rank.window_seconds for rank in profile.ranks)
    return {
        "steps_per_second": profile.steps_per_second,
        "steps_per_cpu_second": profile.steps_per_second / profile.cores_used,
        "threads": sum(rank.widest_pool for rank in profile.ranks),
        "involuntary_switches_per_second": switches,
    }


def doctors_finding(ranks: int) -> dict[str, str] | None:
    """The doctor's finding about this many ranks with default threads."""
    words = ["doctor", "--engine", "mpi", "--ranks", str(ranks), "--threads-per-rank", "-1", "--json"]
    environment = {name: value for name, value in os.environ.items() if name not in POOL_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-m", "parcade", *words],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )
    findings = json.loads(done.stdout)["findings"]
    return next((finding for finding in findings if finding["rule"] == "threads-oversubscribed"), None)


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--ranks", type=whole_number, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repeats", type=whole_number, default=3)
    parser.add_argument("--seconds", type=positive, default=10.0)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--out", type=output_file, default=RESULT)
    arguments = parser.parse_args()
    if "one" not in arguments.ways:
        parser.error("--ways needs one, which the others are compared with")
    load = os.getloadavg()[0]
    samples: dict[str, list[dict[str, float]]] = {}
    for _ in range(arguments.repeats):
        for ranks in arguments.ranks:
            for way in arguments.ways:
                measured = measure(way, ranks, arguments.seconds)
                samples.setdefault(f"{ranks} rank(s), {way}", []).append(measured)
                print(ranks, way, {name: round(value, 1) for name, value in measured.items()}, flush=True)
    medians = {
        name: {figure: statistics.median(sample[figure] for sample in many) for figure in many[0]}
        for name, many in samples.items()
    }
    ratios = {
        f"{ranks} rank(s), over {way}": {
            figure: medians[f"{ranks} rank(s), one"][figure] / medians[f"{ranks} rank(s), {way}"][figure]
            for figure in ("steps_per_second", "steps_per_cpu_second")
        }
        for ranks in arguments.ranks
        for way in arguments.ways
        if way != "one"
    }
    finding = doctors_finding(max(arguments.ranks))
    for name, ratio in ratios.items():
        print(
            f"{name}: one thread is {ratio['steps_per_second']:.2f} times as fast, "
            f"{ratio['steps_per_cpu_second']:.2f} times per CPU-second"
        )
    print(f"the doctor: {finding['says']}; {finding['fix']}" if finding else "the doctor finds nothing")
    result = {
        "command": " ".join(["python benchmarks/oversubscription.py", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine(),
        "cores": available_cores(),
        "load_at_start": load,
        "one_thread_over_others": ratios,
        "doctor": finding,
        "medians": medians,
        "samples": samples,
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
