"""A run on Ray with a random kill -9 every 20 seconds, then an undisturbed run of the same number of frames.

    python benchmarks/soak.py [--minutes 10] [--every 20] [--algorithm gorila]

Kills only processes of the run's own cluster. The result records every kill with its time. At the end the
ledger of the parameter server must balance: pushed = applied + stale + outlier + lost. Results:
``benchmarks/results/soak-ALGORITHM.json``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from script_arguments import positive, script_parser

from parcade.machine.facts import commit, machine
from parcade.topology.actor import Actor
from parcade.topology.evaluating_actor import EvaluatingActor
from parcade.topology.learner import Learner, ServerLearner
from parcade.topology.replay_shard import ReplayShard
from parcade.topology.server_shard import ServerShard

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SYSTEMS = {
    "a3c": "--algorithm a3c --num-envs 8 --num-learners 2 --num-shards 2",
    "gorila": (
        "--algorithm gorila --no-bundled --num-envs 8 --num-actors 2 --num-learners 2 --num-shards 2 "
        "--num-replay-shards 2 --learning-starts 500 --replay-capacity 20000 --target-period 200 "
        "--epsilon-start 0.1 --epsilon-end 0.1"
    ),
    "impala": "--algorithm impala --num-envs 8 --num-actors 2",
    "apex": (
        "--algorithm apex --num-envs 8 --num-actors 2 --num-replay-shards 2 --learning-starts 500 "
        "--replay-capacity 20000"
    ),
}
# Classes, not names: a renamed part would no longer be killed.
PARTS = {part.__name__ for part in (Actor, EvaluatingActor, Learner, ServerLearner, ServerShard, ReplayShard)}
COMMON = (
    "--engine ray --network mlp --hidden 64 --snapshot-seconds 5 --report-seconds 5 --checkpoint-seconds 30"
)


def parts_of(driver: int) -> dict[int, str]:
    """Pid and role of every part among the driver's descendants."""
    parents, roles = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            title = (entry / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        except OSError:
            continue
        role = title.removeprefix("ray::").split(".")[0].split("(")[0]
        # Spare Ray's own agents: without them it gives up the node.
        if title.startswith("ray::") and role in PARTS:
            roles[int(entry.name)] = role

    def descends(pid: int) -> bool:
        while pid > 1:
            if pid == driver:
                return True
            pid = parents.get(pid, 0)
        return False

    return {pid: role for pid, role in roles.items() if descends(pid)}


def run(words: list[str], directory: Path, every: float | None, seconds: float) -> tuple[dict, list[dict]]:
    """Train until the time limit; ``every`` is the interval between kills.

    Return the last report and the kills.
    """
    command = [
        sys.executable,
        "-m",
        "parcade",
        "train",
        "tiny_catch",
        *words,
        "--time-limit",
        f"{seconds:.0f}s",
    ]
    process = subprocess.Popen([*command, "--run-dir", str(directory)], cwd=ROOT)
    kills: list[dict] = []
    choose, begun = random.Random(0), time.monotonic()
    next_kill = begun + (every or 0)
    while process.poll() is None and time.monotonic() - begun < seconds + 600:
        time.sleep(0.5)
        if every is None or time.monotonic() < next_kill or not (directory / "metrics.jsonl").exists():
            continue
        parts = parts_of(process.pid)
        if parts:
            # Choose the least killed role, so that every role is hit; the process within the role is random.
            seen = Counter(kill["role"] for kill in kills)
            role = min(sorted(set(parts.values())), key=lambda name: seen[name])
            pid = choose.choice([pid for pid, name in parts.items() if name == role])
            os.kill(pid, signal.SIGKILL)
            kills.append({"seconds": round(time.monotonic() - begun, 1), "role": role, "pid": pid})
            print(f"killed {role} {pid} after {kills[-1]['seconds']} s", flush=True)
        next_kill = time.monotonic() + every
    if process.poll() is None:
        process.kill()
        raise SystemExit("the run did not end: some process is stuck")
    reports = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return reports[-1], kills


def main() -> int:
    """Run the soak and the undisturbed run."""
    parser = script_parser(__doc__)
    parser.add_argument("--algorithm", choices=SYSTEMS, default="gorila")
    parser.add_argument("--minutes", type=positive, default=10)
    parser.add_argument("--every", type=positive, default=20)
    arguments = parser.parse_args()
    words = [*SYSTEMS[arguments.algorithm].split(), *COMMON.split()]
    base = ROOT / "runs" / f"soak-{arguments.algorithm}-{int(time.time())}"
    killed, kills = run(words, base / "killed", arguments.every, arguments.minutes * 60)
    frames = ["--total-frames", str(killed["frames"])]
    # Twice the time, so that the frames end this run even where other work slows it.
    undisturbed, _ = run([*words, *frames], base / "undisturbed", None, arguments.minutes * 120)
    names = ("frames", "updates", "score_mean", "wall_seconds", "cpu_seconds")
    names += tuple(name for name in killed if name.startswith(("server/", "parts/")))
    result = {
        "command": f"python benchmarks/soak.py --algorithm {arguments.algorithm} "
        f"--minutes {arguments.minutes:g} --every {arguments.every:g}",
        "kills": kills,
        "killed": {name: killed.get(name) for name in names},
        "undisturbed": {name: undisturbed.get(name) for name in names},
        "commit": commit(),
        "machine": machine(),
    }
    if "server/pushed" in killed:
        outcomes = sum(killed[f"server/{name}"] for name in ("applied", "stale", "outlier", "lost"))
        result["ledger_balances"] = killed["server/pushed"] == outcomes
    (RESULTS / f"soak-{arguments.algorithm}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(
        json.dumps(result["killed"]),
        json.dumps(result["undisturbed"]),
        Counter(kill["role"] for kill in kills),
    )
    return 0 if result.get("ledger_balances", True) else 1


if __name__ == "__main__":
    raise SystemExit(main())
