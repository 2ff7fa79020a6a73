"""IMPALA on Ray with 1, 2 and 4 actors: acting, learning and data volume, interleaved with RLlib's IMPALA.

    python benchmarks/throughput.py [--actors 1 2 4] [--seconds 60] [--repeats 2] [--rllib PYTHON]

Pong at 84 x 84, a stack of four, the Nature CNN, five environments per actor, unrolls of 20 steps, 500 steps
per update, everything on CPUs with one thread per part. CPU time covers the process tree, Ray's own processes
included, between the first report after start-up and the last one. ``--rllib`` is a Python that has
``ray[rllib]``; without it only parcade is measured. Both use the same cores. Results:
``benchmarks/results/throughput.json``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from script_arguments import output_file, positive, script_parser, whole_number

from parcade.machine.facts import commit, machine

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "throughput.json"
ENVS_PER_ACTOR, UNROLL_LENGTH, STEPS_PER_UPDATE, FRAME_SKIP = 5, 20, 500, 4
WARM_UP_SECONDS = 20.0


def parcade_command(backend: str, actors: int, seconds: float, run: Path) -> list[str]:
    """The training command as a user would type it."""
    sizes = f"--num-actors {actors} --num-envs {ENVS_PER_ACTOR * actors} --unroll-length {UNROLL_LENGTH}"
    unrolls = STEPS_PER_UPDATE // (UNROLL_LENGTH * ENVS_PER_ACTOR)
    flags = (
        f"pong --algorithm impala --engine ray --backend {backend} {sizes} --unrolls-per-update {unrolls} "
        "--network nature_cnn"
    )
    limits = f"--time-limit {seconds:.0f}s --report-seconds 5 --checkpoint-seconds 86400"
    return [sys.executable, "-m", "parcade", "train", *flags.split(), *limits.split(), "--run-dir", str(run)]


class Tree:
    """CPU seconds of a process and of all descendants seen so far."""

    def __init__(self, pid: int) -> None:
        self.root = psutil.Process(pid)
        self.seen: dict[tuple[int, float], float] = {}

    def cpu_seconds(self) -> float:
        for process in [self.root, *self.root.children(recursive=True)]:
            try:
                times = process.cpu_times()
                self.seen[process.pid, process.create_time()] = times.user + times.system
            except psutil.NoSuchProcess:
                continue
        return sum(self.seen.values())


def measure(command: list[str], reports: Path, seconds: float) -> dict[str, float]:
    """Run a command that appends lines of counters; return rates from its first warm to its last line."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "PARCADE_PLAIN": "1",
        "RAY_DEDUP_LOGS": "0",
    }
    with open(reports.with_suffix(".out"), "w") as out, open(reports.with_suffix(".err"), "w") as errors:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=errors)
    tree, marks, number = Tree(process.pid), [], 0
    deadline = time.monotonic() + seconds + 180
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
        lines = reports.read_text().splitlines() if reports.exists() else []
        if len(lines) > number:
            number = len(lines)
            row = json.loads(lines[-1])
            marks.append(
                (
                    time.monotonic(),
                    tree.cpu_seconds(),
                    row["steps"],
                    row.get("learned", row.get("updates", 0) * STEPS_PER_UPDATE),
                )
            )
    if process.poll() is None:
        process.kill()
    if process.wait() != 0 or not marks:
        raise SystemExit(
            f"{command[2]} ended with {process.returncode}: {reports.with_suffix('.err').read_text()[-2000:]}"
        )
    warm = [mark for mark in marks if mark[0] - marks[0][0] >= WARM_UP_SECONDS / 2]
    if len(warm) < 2:
        raise SystemExit(f"{command[2]} reported {len(warm)} times after its warm-up; give it more --seconds")
    wall, cpu, steps, learned = (last - first for first, last in zip(warm[0], warm[-1], strict=True))
    return {
        "frames_per_second": steps * FRAME_SKIP / wall,
        "samples_learned_per_second": learned / wall,
        "cpu_seconds_per_1000_frames": 1000 * cpu / (steps * FRAME_SKIP),
        "cores_used": cpu / wall,
    }


def bytes_moved(actors: int) -> dict[str, int]:
    """Bytes of an unroll and of the weights in the object store, from one update in one process."""
    from parcade.topology.engine import SerialEngine
    from parcade.topology.run import make_driver
    from parcade.training_flags import parse_training

    words = parcade_command("native", actors, 1, Path("none"))[4:-2]
    driver = make_driver(parse_training(words), SerialEngine())
    driver.begin()
    driver.advance(0.0)
    unroll = driver.players.calls[0].data if driver.players.calls else driver.queue.waiting[0].data
    sizes = {"unroll": unroll, "weights": driver.players.weights[driver.players.version]}
    return {
        name: sum(array.nbytes for array in driver.engine.fetch(data).values())
        for name, data in sizes.items()
    }


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--actors", type=whole_number, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=positive, default=60)
    parser.add_argument("--repeats", type=whole_number, default=2)
    parser.add_argument("--rllib", default="")
    parser.add_argument("--out", type=output_file, default=RESULT)
    arguments = parser.parse_args()
    load, sizes = os.getloadavg()[0], bytes_moved(max(arguments.actors))
    ways = ["native", "ale", *(["rllib"] if arguments.rllib else [])]
    found: dict[tuple[int, str], list[dict]] = {
        (actors, way): [] for actors in arguments.actors for way in ways
    }
    for _ in range(arguments.repeats):
        for (actors, way), rows in found.items():
            with tempfile.TemporaryDirectory() as directory:
                run = Path(directory) / "run"
                if way == "rllib":
                    command = [
                        arguments.rllib,
                        "benchmarks/rllib_impala.py",
                        *map(str, (actors, ENVS_PER_ACTOR, arguments.seconds)),
                    ]
                    reports = Path(directory) / "rllib.out"
                else:
                    command, reports = (
                        parcade_command(way, actors, arguments.seconds, run),
                        run / "metrics.jsonl",
                    )
                    run.mkdir()
                rows.append(measure(command, reports, arguments.seconds))
                print(actors, way, {name: round(value, 3) for name, value in rows[-1].items()}, flush=True)
    medians = [
        {
            "actors": actors,
            "way": way,
            **{name: statistics.median(row[name] for row in rows) for name in rows[0]},
            "repeats": rows,
        }
        for (actors, way), rows in found.items()
    ]
    result = {
        "command": " ".join(
            ["python benchmarks/throughput.py", *(w for w in sys.argv[1:] if w != arguments.rllib)]
        ),
        "bytes": sizes,
        "rows": medians,
        "load_at_start": load,
        "commit": commit(),
        "machine": machine(),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
