"""Scaling of the native consoles over 1, 2, 4, ... threads: frames/s, serial costs, and a prediction.

    python benchmarks/threads.py [--threads 1 2 ...] [--envs 128 256] [--size 84 42] [--game pong]
                                 [--against TREE]

Measures complete calls of ``env.step`` with random actions. Random steps have first moved the environments
apart, so that episodes end all the time. ``--against`` names a source tree of parcade to compare with: the
trees run interleaved, each in its own process.

Also measures costs that do not scale: the time of the calling thread outside the compiled round; an empty
round on N threads; and the CPU time of every environment in every step, resets included. From the latter it
simulates the imbalance on N threads, both with static shares, where thread t plays environments from t * n /
N on, and with parts that are claimed one by one (``parcade/atari/threads/thread_pool.py``).

Predicts from these: a step on N threads takes the time outside, an empty round of one thread, the time to
wake one worker after another, and the time until the last thread is done. The efficiency is the time of one
thread divided by N times that. The prediction is an upper bound: it ignores shared caches, memory bandwidth,
clock rates and two threads on one core.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from script_arguments import game_name, output_file, script_parser, whole_number

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "threads.json"
PREDICTED_THREADS = (4, 8, 16, 32)
ROUND_THREADS = (1, 2, 4, 8, 16, 32)
# environments differ by up to this many steps; random episodes of Pong last 800 to 1,000
STAGGER_STEPS = 1000
STEPS_PER_TURN = 10


# --- process of one tree -----------------------------------------------------------------------------------


class Played:
    """Environments of one source tree; every method answers one request of the comparing process."""

    def __init__(self, game: str) -> None:
        from parcade.machine.facts import commit

        self.game = game
        self.commit = commit()
        self.generator = np.random.default_rng(0)
        self.states: dict[int, dict[str, np.ndarray]] = {}
        self.env: Any = None

    def _new_env(self, size: int, envs: int, threads: int) -> Any:
        from parcade import make_vec

        env = make_vec(self.game, envs, "native", image_height=size, image_width=size, num_threads=threads)
        env.reset(seed=np.arange(envs, dtype=np.int32))
        return env

    def _actions(self) -> np.ndarray:
        return self.generator.integers(0, int(self.env.single_action_space.n), self.env.num_envs)

    def make(self, size: int, envs: int, threads: int, most: int) -> dict[str, Any]:
        """Create environments in mid-episode, the same ones for every number of threads."""
        if self.env is not None:
            self.env.close()
        if size not in self.states:
            self.env = self._new_env(size, most, 1)
            steps = np.random.default_rng(1).integers(0, STAGGER_STEPS, most)
            for step in range(steps.max()):
                self.env.step(self._actions(), steps > step)
            self.states[size] = self.env.get_state()
        self.env = self._new_env(size, envs, threads)
        self.env.set_state({name: array[:envs] for name, array in self.states[size].items()})
        for _ in range(5):
            self.env.step(self._actions())
        return {"commit": self.commit}

    def play(self, steps: int) -> dict[str, float]:
        """Play some steps; return frames, seconds and CPU-seconds."""
        actions = [self._actions() for _ in range(steps)]
        frames, cpu, wall = 0, time.process_time(), time.perf_counter()
        for row in actions:
            frames += int(self.env.step(row)[4]["frames"].sum())
        return {
            "frames": frames,
            "seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
        }

    def outside(self, steps: int) -> list[float]:
        """Microseconds that the calling thread spends outside the compiled round, in each step."""
        consoles = self.env._consoles
        inside, found, held = [], [], []

        def timed(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                started = time.perf_counter_ns()
                result = function(*arguments)
                inside.append(time.perf_counter_ns() - started)
                return result

            return call

        if hasattr(consoles, "_split"):
            consoles._split = timed(consoles._split)
        else:
            consoles._pool.work = timed(consoles._pool.work)
        for _ in range(steps):
            actions = self._actions()
            started = time.perf_counter_ns()
            result = self.env.step(actions)
            found.append((time.perf_counter_ns() - started - inside.pop()) / 1e3)
            held = [result]  # held during the next step, as a learner does
        del held
        return found

    def rounds(self, threads: int, times: int) -> list[float]:
        """Microseconds of empty rounds, each after a pause in which all workers fall asleep."""
        from parcade.atari import VectorConsoles

        n = max(threads, 2)
        consoles = VectorConsoles(self.game, n, img_height=42, img_width=42, num_threads=threads)
        consoles.reset(seed=0)
        if hasattr(consoles, "_split"):
            turn: Callable[[], Any] = lambda: consoles._split(lambda thread, first, last: None)  # noqa: E731
        else:
            from parcade.atari.threads import rounds, thread_pool

            consoles.step(np.zeros(n, np.int64), np.zeros(n, np.bool_))
            consoles._message[rounds.STACKS - thread_pool.MESSAGE] = 0
            turn = lambda: consoles._pool.run(consoles._message)  # noqa: E731
        found = []
        for _ in range(times):
            time.sleep(0.0005)
            started = time.perf_counter()
            turn()
            found.append(1e6 * (time.perf_counter() - started))
        return found

    def costs(self, steps: int) -> dict[str, Any]:
        """CPU-microseconds of every environment in each step, and its rank (`rounds.work`)."""
        from parcade.atari.threads import rounds, thread_pool

        consoles, n = self.env._consoles, self.env.num_envs
        pool, control = consoles._pool, consoles._pool._own_control
        arguments = pool.arguments[0]
        played = rounds.Played(*arguments[0])
        outcome = rounds.Outcome(*played.outcome)
        part = thread_pool.FIRST_PART
        self.env.step(self._actions())  # sets the message's output addresses, with every environment playing
        found, ranks, ended = [], [], []
        for _ in range(steps):
            consoles.action_set.take(self._actions(), out=consoles._actions)
            ranks.append((outcome.lives.astype(np.int64) * 2**32 - consoles.elapsed).tolist())
            spent = [0.0] * n
            played.order[:] = np.arange(n)
            for e in range(n):
                control[part + thread_pool.NEXT], control[part + thread_pool.LAST] = e, e + 1
                started = time.thread_time_ns()
                pool.work(thread_pool.PLAY, control, 0, *arguments)
                spent[e] = (time.thread_time_ns() - started) / 1e3
            found.append(spent)
            ended.append((outcome.terminated | outcome.truncated).tolist())
        control[part + thread_pool.NEXT] = control[part + thread_pool.LAST] = 0
        started = time.thread_time_ns()
        for _ in range(1000):
            pool.work(thread_pool.PLAY, control, 0, *arguments)
        call = (time.thread_time_ns() - started) / 1e6
        return {
            "microseconds": [[max(0.0, cost - call) for cost in row] for row in found],
            "ranks": ranks,
            "ended": ended,
        }


def serve(game: str) -> int:
    """Answer requests, one JSON object per line, until the input ends."""
    played = Played(game)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(played, request.pop("do"))(**request)), flush=True)
    return 0


class Tree:
    """The process of a source tree."""

    def __init__(self, root: Path, game: str) -> None:
        path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", "--game", game],
            env=environment, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, do: str, **request: Any) -> Any:
        self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended during the request {do}")
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


# --- comparison --------------------------------------------------------------------------------------------


def spread(values: list[float], digits: int = 0) -> dict[str, float]:
    """Median, lowest and highest value."""
    functions = {"median": statistics.median, "lowest": min, "highest": max}
    return {name: round(function(values), digits or None) for name, function in functions.items()}


def measure(
    trees: dict[str, Tree], size: int, envs: int, threads: int, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """Frames per second and per CPU-second of all trees, interleaved."""
    commits = {
        name: tree.ask("make", size=size, envs=envs, threads=threads, most=max(arguments.envs))["commit"]
        for name, tree in trees.items()
    }
    wall: dict[str, list[float]] = {name: [] for name in trees}
    cpu: dict[str, list[float]] = {name: [] for name in trees}
    busy: dict[str, list[float]] = {name: [] for name in trees}
    for _ in range(arguments.repeats):
        sums = {name: [0, 0.0, 0.0] for name in trees}
        for _ in range(max(1, arguments.steps // STEPS_PER_TURN)):
            for name, tree in trees.items():
                told = tree.ask("play", steps=STEPS_PER_TURN)
                for place, value in enumerate((told["frames"], told["seconds"], told["cpu_seconds"])):
                    sums[name][place] += value
        for name, (frames, seconds, cpu_seconds) in sums.items():
            wall[name].append(frames / seconds)
            cpu[name].append(frames / cpu_seconds)
            busy[name].append(cpu_seconds / seconds / threads)
    rows = []
    for name in trees:
        row = {
            "tree": name, "commit": commits[name], "size": size, "envs": envs, "threads": threads,
            "frames_per_second": spread(wall[name]), "frames_per_cpu_second": spread(cpu[name]),
            "cpu_seconds_per_thread_second": spread(busy[name], 2),
        }  # fmt: skip
        if name != "this":
            for unit, rates in (("per_second", wall), ("per_cpu_second", cpu)):
                row[f"this_over_it_{unit}"] = spread(
                    [a / b for a, b in zip(rates["this"], rates[name], strict=True)], 2
                )
        rows.append(row)
    return rows


# --- simulation of the imbalance ---------------------------------------------------------------------------


def part_edges(n: int, threads: int) -> list[int]:
    """Edges of the threads' parts: thread t owns the environments from edge t to edge t + 1."""
    return [n * thread // threads for thread in range(threads + 1)]


def static_end(costs: np.ndarray, threads: int, delay: float) -> float:
    """Time at which the last thread is done with static shares; thread t starts after t delays."""
    edges = part_edges(len(costs), threads)
    return max(delay * t + costs[edges[t] : edges[t + 1]].sum() for t in range(threads))


def claimed_end(costs: np.ndarray, ranks: np.ndarray, threads: int, delay: float) -> float:
    """Time at which the last thread is done if each claims from its own part, then from the fullest one."""
    edges = part_edges(len(costs), threads)
    parts = [
        [first + int(place) for place in np.argsort(ranks[first:last], kind="stable")[::-1]]
        for first, last in zip(edges, edges[1:], strict=False)
    ]
    free = [(delay * thread, thread) for thread in range(threads)]
    heapq.heapify(free)
    end = 0.0
    while free:
        now, thread = heapq.heappop(free)
        part = parts[thread] or max(parts, key=len)
        if part:
            now += costs[part.pop()]
            end = max(end, now)
            heapq.heappush(free, (now, thread))
    return end


def predict(
    told: dict[str, Any], outside: dict[str, float], delay: dict[str, float], envs: int
) -> list[dict[str, Any]]:
    """Predict the efficiency of both ways to share on more threads than this machine has."""
    costs, ranks = (np.array(told[name])[:, :envs] for name in ("microseconds", "ranks"))
    ended = np.array(told["ended"])[:, :envs]
    rows = []
    for threads in PREDICTED_THREADS:
        ways: dict[str, Callable[[int, float], float]] = {
            "static": lambda t, late: static_end(costs[t], threads, late),  # noqa: B023
            "claimed": lambda t, late: claimed_end(costs[t], ranks[t], threads, late),  # noqa: B023
        }
        even = costs.sum() / threads / len(costs)
        row: dict[str, Any] = {"predicted": True, "envs": envs, "threads": threads}
        row["steps_with_an_end"] = round(float(ended.any(axis=1).mean()), 3)
        for way, end in ways.items():
            tree = "this" if way == "claimed" else "other"
            row[f"{way}_imbalance"] = round(
                float(np.mean([end(t, 0.0) for t in range(len(costs))]) / even), 3
            )
            if tree in outside:
                alone = outside[tree] + costs.sum() / len(costs)
                step = outside[tree] + float(np.mean([end(t, delay[tree]) for t in range(len(costs))]))
                row[f"{tree}_microseconds_a_step"] = round(step)
                row[f"{tree}_efficiency"] = round(alone / threads / step, 3)
        rows.append(row)
    return rows


def what_does_not_scale(
    trees: dict[str, Tree], arguments: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    """Time outside, empty rounds, and the prediction, for every size and number of environments."""
    rounds, empty, delay = [], {}, {}
    for name, tree in trees.items():
        medians = {}
        for threads in ROUND_THREADS:
            found = tree.ask("rounds", threads=threads, times=300)
            medians[threads] = statistics.median(found)
            rounds.append({"tree": name, "threads": threads, "microseconds": spread(found, 1)})
        empty[name] = medians[1]
        # Per worker; an upper bound if 16 threads share fewer cores.
        delay[name] = (medians[16] - medians[1]) / 15
    outside, predicted = [], []
    for size in arguments.size:
        for envs in arguments.envs:
            medians = {}
            for name, tree in trees.items():
                tree.ask("make", size=size, envs=envs, threads=1, most=max(arguments.envs))
                found = tree.ask("outside", steps=100)
                medians[name] = statistics.median(found) + empty[name]
                outside.append({"tree": name, "size": size, "envs": envs, "microseconds": spread(found, 1)})
            told = trees["this"].ask("costs", steps=arguments.cost_steps)
            mean = round(float(np.mean(told["microseconds"])), 1)
            common = {"size": size, "microseconds_an_environment": mean}
            predicted += [{**common, **row} for row in predict(told, medians, delay, envs)]
    return {"outside": outside, "rounds": rounds, "predicted": predicted}


def threads_per_core() -> int | None:
    """Hardware threads per core, read from the first core."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return None
    ranges = [part.split("-") for part in text.split(",")]
    return sum(int(part[-1]) - int(part[0]) + 1 for part in ranges)


def show(rows: list[dict[str, Any]]) -> None:
    """Print rows with the same columns as a table."""

    def cell(value: Any) -> str:
        if isinstance(value, dict):
            return f"{value['median']:,} [{value['lowest']:,}-{value['highest']:,}]"
        return str(value)

    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns] + [[cell(row.get(name, "")) for name in columns] for row in rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for line in lines:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    print(flush=True)


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--game", type=game_name, default="pong")
    parser.add_argument("--threads", type=whole_number, nargs="+", help="default: 1, 2, 4, ... and all cores")
    parser.add_argument("--envs", type=whole_number, nargs="+", default=[128, 256])
    parser.add_argument("--size", type=whole_number, nargs="+", default=[84, 42])
    parser.add_argument("--repeats", type=whole_number, default=7)
    parser.add_argument("--steps", type=whole_number, default=50, help="steps per repeat")
    parser.add_argument(
        "--cost-steps", type=int, default=200, help="steps in which every environment is timed alone"
    )
    parser.add_argument("--against", type=Path, help="source tree to compare with")
    parser.add_argument("--out", type=output_file, default=RESULT)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.game)
    from parcade.machine.facts import available_cores, machine

    cores = available_cores()
    threads = arguments.threads or sorted({1, cores} | {2**k for k in range(10) if 2**k <= cores})
    trees = {"this": Tree(ROOT, arguments.game)}
    if arguments.against:
        trees["other"] = Tree(arguments.against.resolve(), arguments.game)
    load = os.getloadavg()[0]
    rows = []
    for size in arguments.size:
        for envs in arguments.envs:
            of_one: dict[str, float] = {}
            for count in threads:
                for row in measure(trees, size, envs, count, arguments):
                    rate = row["frames_per_second"]["median"]
                    first = of_one.setdefault(row["tree"], rate / count)
                    rows.append({**row, "efficiency": round(rate / count / first, 3)})
                show(rows[-len(trees) :])
    rest = what_does_not_scale(trees, arguments)
    for part in rest.values():
        show(part)
    for tree in trees.values():
        tree.close()
    given = [
        "TREE" if arguments.against and word == str(arguments.against) else word for word in sys.argv[1:]
    ]
    result = {
        "command": " ".join(["python benchmarks/threads.py", *given]),
        "commit": next(row["commit"] for row in rows if row["tree"] == "this"),
        "machine": {**machine(), "threads_per_core": threads_per_core()},
        "load_at_start": load,
        "rows": rows,
        **rest,
    }
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
