"""Frames to a fixed score with 1, 2, 4 and 8 actor-learners, on the serial asynchronous schedule.

    python benchmarks/async_speedup.py [--score 0.9] [--total-frames 400000] [--seeds 10]
    python benchmarks/async_speedup.py --engine ray --learners 1 2      # wall clock, one process per learner
    python benchmarks/async_speedup.py --game pong                      # hours

This is the experiment of Mnih 2016, table 2 and figure 3, scaled down to one machine and the built-in task
``tiny_catch``, or at full size on Pong: do more actor-learners learn from fewer frames? Each learner has the
same number of environments in every configuration. On the serial schedule, a learner's parameters are as many
updates old as there are other learners, so the result does not depend on the machine. On Ray, learners run
concurrently, and the metric is the wall clock of this machine.

The score is that of the greedy policy on unseen episodes, evaluated at fixed intervals (see ``TASKS``); the
scores during training come from exploration, whose epsilons differ between rows. Frames of the evaluation are
not counted, its time is. An interrupted benchmark resumes row by row.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from script_arguments import script_parser, whole_number

from parcade.build.learner import make_policy
from parcade.config import TrainConfig
from parcade.envs import make_vec
from parcade.machine.facts import commit, machine
from parcade.machine.timing import process_cpu_seconds
from parcade.model.parameters import load_weights
from parcade.model.policy import Policy
from parcade.topology.engine import PartLost
from parcade.topology.run import make_driver, make_engine
from parcade.training_flags import parse_training

RESULTS = Path(__file__).resolve().parent / "results" / "async_speedup"
LEARNERS = (1, 2, 4, 8)
ENVS_PER_LEARNER = 4
UNSEEN_SEED = 1 << 20

COMMON = "--network mlp --hidden 64 --normalize-input"
Q = (
    "--algorithm async-q --method one_step --learning-rate 2e-3 --final-learning-rate 5e-4 "
    "--target-period 30 --unroll-length 2"
)
PONG = (
    "--algorithm async-q --method n_step --unroll-length 8 --optimizer adam --learning-rate 5e-4 "
    "--final-learning-rate 2e-4 --target-period 250 --epsilon-until 0.05 --no-different-epsilons "
    "--normalize-input --image-height 42 --image-width 42 --network fine_cnn --hidden 256"
)


@dataclass(frozen=True)
class Task:
    """What is learned: named flags, and when and how the greedy policy is scored."""

    rows: dict[str, str]
    score: float
    total_frames: int
    seeds: int
    episodes: int
    frames_between: int


# The learning rates are those that learn the task with one learner. The two kinds of epsilon address the
# paper's question about exploration; both anneal within the first 20,000 frames.
TASKS = {
    "tiny_catch": Task(
        {
            "async-q, equal epsilons": (
                f"{Q} {COMMON} --epsilon-until 0.05 --no-different-epsilons --epsilon-end 0.1"
            ),
            "async-q, different epsilons": f"{Q} {COMMON} --epsilon-until 0.05 --different-epsilons",
            "a3c": f"--algorithm a3c {COMMON} --learning-rate 3e-3 --final-learning-rate 3e-3",
        },
        score=0.9,
        total_frames=400_000,
        seeds=10,
        episodes=200,
        frames_between=100,
    ),
    "pong": Task(
        {"async-q": PONG}, score=0.0, total_frames=16_000_000, seeds=5, episodes=10, frames_between=100_000
    ),
}


def command(name: str, learners: int, seed: int, arguments: argparse.Namespace) -> str:
    """The command a user would type to run the training of this row."""
    return (
        f"parcade train {arguments.game} {TASKS[arguments.game].rows[name]} --engine {arguments.engine} "
        f"--num-learners {learners} --num-envs {learners * ENVS_PER_LEARNER} --seed {seed} "
        f"--total-frames {arguments.total_frames}"
    )


@torch.no_grad()
def greedy_score(policy: Policy, config: TrainConfig, episodes: int) -> float:
    """Mean score of the policy's most likely actions over unseen episodes."""
    env = make_vec(config.game, episodes, config.run.backend, settings=config.env)
    observations, _ = env.reset(seed=np.arange(UNSEEN_SEED, UNSEEN_SEED + episodes))
    scores, going = np.zeros(episodes), np.ones(episodes, bool)
    while going.any():
        actions = policy.act(torch.as_tensor(observations), None).actions.numpy()
        observations, rewards, terminated, truncated, _ = env.step(actions)
        scores += rewards * going
        going &= ~(terminated | truncated)
    env.close()
    return float(scores.mean())


def run_row(name: str, learners: int, seed: int, arguments: argparse.Namespace) -> dict:
    """Train until the score is reached; ``frames`` is None if it is not reached within the frame budget."""
    kept, task = results_of(arguments, ".jsonl"), TASKS[arguments.game]
    typed = command(name, learners, seed, arguments)
    for line in kept.read_text().splitlines() if kept.exists() else ():
        row = json.loads(line)
        if row["command"] == typed and row.get("target", task.score) == arguments.score:
            return row
    config = parse_training(typed.split()[2:])
    torch.set_num_threads(1)
    policy, engine = make_policy(config), make_engine(config)
    cpu = process_cpu_seconds()
    try:
        driver = make_driver(config, engine)
        driver.begin()
        started, score, asked_at = time.perf_counter(), -math.inf, 0
        while score < arguments.score and driver.tally.frames < arguments.total_frames:
            driver.advance(driver.tally.frames / arguments.total_frames)
            if driver.tally.frames < asked_at + task.frames_between:
                continue
            asked_at = driver.tally.frames
            try:
                load_weights(policy, driver.weights()[1])
            except PartLost:
                continue
            score = greedy_score(policy, config, task.episodes)
        row = {
            "row": name,
            "learners": learners,
            "seed": seed,
            "command": typed,
            "target": arguments.score,
            "frames": driver.tally.frames if score >= arguments.score else None,
            "score": score,
            "updates": driver.updates,
            "wall_seconds": round(time.perf_counter() - started, 2),
            "cpu_seconds": round(process_cpu_seconds() - cpu, 2) if arguments.engine == "serial" else None,
            "commit": commit(),
            "machine": machine(),
        }
    finally:
        engine.close()
    RESULTS.mkdir(parents=True, exist_ok=True)
    with kept.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(name, learners, seed, row["frames"], row["score"], row["wall_seconds"], flush=True)
    return row


def results_of(arguments: argparse.Namespace, suffix: str) -> Path:
    """Return the file of results of this game and engine."""
    of_game = "" if arguments.game == "tiny_catch" else f"{arguments.game}-"
    return RESULTS / f"{of_game}{arguments.engine}{suffix}"


def table(rows: list[dict], arguments: argparse.Namespace) -> str:
    """Tabulate medians over seeds, their spread, and the gain of n learners in frames (Ray: and seconds)."""
    timed = arguments.engine != "serial"
    lines = [
        f"# Frames to a greedy score of {arguments.score} on {arguments.game}, engine {arguments.engine}",
        "",
        "Median over seeds [min-max]; a dash if a seed missed the score. Gain: frames (seconds) of one "
        "learner over those of n.",
        "",
        "| | learners | frames | gain |" + (" seconds | gain |" if timed else ""),
        "|---|---|---|---|" + ("---|---|" if timed else ""),
    ]
    for name in TASKS[arguments.game].rows:
        bases: dict[str, float] = {}
        for n in arguments.learners:
            own = [row for row in rows if row["row"] == name and row["learners"] == n]
            cells = [name, str(n)]
            for what in ("frames", "wall_seconds") if timed else ("frames",):
                if not own or any(row["frames"] is None for row in own):
                    cells += ["-", "-"]
                    continue
                values = [row[what] for row in own]
                median = statistics.median(values)
                base = bases.setdefault(what, median) if n == 1 else bases.get(what)
                kind = ",.0f" if what == "frames" else ",.2f"
                cells += [
                    f"{median:{kind}} [{min(values):{kind}}-{max(values):{kind}}]",
                    f"{base / median:.2f}" if base else "-",
                ]
            lines.append("| " + " | ".join(cells) + " |")
    m = rows[0]["machine"]
    lines += [
        "",
        f"Commit {rows[0]['commit']}; {m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB. Commands:",
        "",
    ]
    lines += [
        f"    {command(name, n, 0, arguments)}"
        for name in TASKS[arguments.game].rows
        for n in arguments.learners[:1]
    ]
    return "\n".join([*lines, ""])


def main() -> int:
    """Run the missing rows, then write the table."""
    parser = script_parser(__doc__)
    parser.add_argument("--game", choices=TASKS, default="tiny_catch")
    parser.add_argument("--score", type=float, help="default: the game's")
    parser.add_argument("--total-frames", type=whole_number, help="default: the game's")
    parser.add_argument("--seeds", type=whole_number, help="default: the game's")
    parser.add_argument("--engine", choices=("serial", "ray"), default="serial")
    parser.add_argument("--learners", type=whole_number, nargs="+", default=LEARNERS)
    arguments = parser.parse_args()
    for name in ("score", "total_frames", "seeds"):
        if getattr(arguments, name) is None:
            setattr(arguments, name, getattr(TASKS[arguments.game], name))
    rows = [
        run_row(name, learners, seed, arguments)
        for seed in range(arguments.seeds)
        for name in TASKS[arguments.game].rows
        for learners in arguments.learners
    ]
    text = table(rows, arguments)
    results_of(arguments, ".md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
