"""Benchmark consoles on CPU cores with the network on a GPU: time to a score, steps per second, and profiles.

    # Measure the cases without a row, in order; call again for the rest.
    python benchmarks/gpu_hybrid.py --minutes 9 --results DIR
    # Run every case once, tiny, without a GPU.
    PARCADE_GPU_STAND_IN=1 python benchmarks/gpu_hybrid.py --tiny --results DIR

| cases      | measures                                                                                      |
|------------|-----------------------------------------------------------------------------------------------|
| pong       | PPO at 42x42 to a mean of 18 over 100 episodes, five seeds: seconds of run and process; one   |
|            | seed with 256 and 512 environments                                                            |
| ten        | ten million steps of Breakout, PPO at 42x42, one seed                                         |
| nature     | steps/s of PPO at 84x84, network of Mnih 2015; LeanRL: 6,809 steps/s on an H100               |
| capture    | the same, and Pong, with kernels launched one by one                                          |
| threads    | frames/s of the consoles alone against threads (``benchmarks/threads.py``)                    |
| breakout   | PPO at 84x84 to a mean of 400, one seed                                                       |
| network    | GA3C and A2C by size of network, on CPU and GPU, as in Babaeizadeh 2017, table 2              |
| ray        | IMPALA and Ape-X on Ray, the learner on the GPU: steps/s against actors                       |
| profile    | time by scope, with and without captured updates                                              |

``seconds_to_target`` and ``wall_seconds`` count from the start of the process, with imports, compilation and
building; rates are those after the first iterations, see ``steady_rates``. A case starts if the time is
enough for all of it. Rows are appended to gpu_hybrid.csv, and profiles are written to folders next to it.
``--peer COMMAND`` also runs another PPO, such as CleanRL's, for a minute and records the last ``SPS: N`` that
it prints.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_results import (
    RESULTS,
    ROOT,
    TIMED_RUN,
    child_environment,
    commit,
    end_with_parent,
    steady_rates,
)

from parcade.errors import UsageError, reported

TABLE = "gpu_hybrid.csv"
COLUMNS = (
    "case", "finished_by", "score_mean", "seconds_to_target", "wall_seconds", "process_seconds",
    "cpu_seconds", "steps", "steps_per_second", "updates_per_second", "milestones", "gpu_busy", "flags",
    "card", "cores", "commit", "error",
)  # fmt: skip
START_SECONDS = 60  # allowance for a process in addition to its run
TINY_SECONDS = 60
TINY = {
    "total_frames": 3000,
    "num_envs": 8,
    "unroll_length": 8,
    "num_minibatches": 2,
    "image_height": 42,
    "image_width": 42,
}

SMALL = {"image_height": 42, "image_width": 42, "network": "fine_cnn", "hidden": 256}
NATURE = {"network": "nature_cnn", "hidden": 512}
ATARI = {
    "algorithm": "ppo", "precision": "auto", "num_envs": 256, "unroll_length": 64, "epochs": 3,
    "num_minibatches": 16,
    "learning_rate": 5e-4, "final_learning_rate": 1e-4, "entropy_weight": 0.01,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A training run or another command, limited to ``seconds``."""

    name: str
    game: str = "pong"
    flags: dict[str, Any] = field(default_factory=dict)
    seconds: int = 60
    command: tuple[str, ...] = ()


ON_GPU = {"device": "cuda"}
TEN_MILLION = {"total_frames": 40_000_000}


def cases(cores: int) -> list[Case]:
    """All cases, the most valuable first."""
    pong = {"preset": "pong_gpu", "overlap": True}
    small = {**ON_GPU, **ATARI, **SMALL, **TEN_MILLION, "overlap": True}
    nature = {**ON_GPU, **ATARI, **NATURE, **TEN_MILLION, "overlap": True}
    to_400 = {**nature, "total_frames": 200_000_000, "target_score": 400}
    return [
        *(Case(f"pong-s{seed}", flags={**pong, "seed": seed}, seconds=120) for seed in range(5)),
        *(
            Case(f"pong-{n}-envs", flags={**pong, "num_envs": n, "num_minibatches": n // 16}, seconds=90)
            for n in (256, 512)  # two groups, minibatches of 256
        ),
        Case("ten-breakout", "breakout", small, 240),
        Case("nature", "breakout", nature),
        Case("capture-nature-off", "breakout", {**nature, "capture": False}),
        Case("capture-pong-off", flags={**pong, "seed": 0, "capture": False}, seconds=120),
        Case("pong-alone-s0", flags={"preset": "pong_gpu", "seed": 0}, seconds=120),
        Case("threads", seconds=150, command=("benchmarks/threads.py",)),
        Case("breakout-400", "breakout", to_400, 450),
        *_network_cases(),
        *_ray_cases(cores),
        *_profile_cases(),
    ]


def _network_cases() -> list[Case]:
    """GA3C and A2C with three networks, on CPU and GPU."""
    listed = []
    for network, hidden in (("small_cnn", 256), ("nature_cnn", 512), ("impala_resnet", 256)):
        for algorithm, engine in (("ga3c", "serial"), ("a2c", "local")):
            flags = {"algorithm": algorithm, "engine": engine, "network": network, "hidden": hidden}
            flags |= {"num_envs": 128, **({"num_actors": 2} if algorithm == "ga3c" else {}), **TEN_MILLION}
            listed += [
                Case(f"network-{network}-{algorithm}-{device}", flags={**flags, "device": device}, seconds=20)
                for device in ("cuda", "cpu")
            ]
    return listed


def _ray_cases(cores: int) -> list[Case]:
    """IMPALA and Ape-X on Ray with the learner on the GPU, by number of actors."""
    flags = {"engine": "ray", **NATURE, **ON_GPU, **TEN_MILLION}
    return [
        Case(
            f"ray-{algorithm}-{actors}",
            flags={**flags, "algorithm": algorithm, "num_actors": actors, "num_envs": 16 * actors},
            seconds=40,
        )
        for algorithm in ("impala", "apex")
        for actors in sorted({1, 2, 4, 8, max(1, cores - 2)})
    ]


def _profile_cases() -> list[Case]:
    """``parcade profile`` of the preset, with and without captured updates."""
    what = ("-m", "parcade", "profile", "pong", "--preset", "pong_gpu", "--overlap", "--seconds", "15")
    return [
        Case(f"profile-{name}", command=(*what, *flag, "--out", f"RESULTS/profile-{name}"))
        for name, flag in (("captured", ()), ("launched", ("--no-capture",)))
    ]


def card() -> str:
    """Name of the GPU, or of its stand-in."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "stand-in: CPU"


def rows_of(folders: list[Path]) -> list[dict[str, str]]:
    """Rows of earlier calls."""
    tables = [folder / TABLE for folder in folders if (folder / TABLE).exists()]
    return [row for table in tables for row in csv.DictReader(table.read_text().splitlines())]


def append(folder: Path, row: dict[str, Any]) -> None:
    """Append a row with its columns in order, immediately, so that an interrupted call keeps its rows."""
    path = folder / TABLE
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if is_new:
            writer.writeheader()
        writer.writerow({name: row.get(name, "") for name in COLUMNS})
    print({name: value for name, value in row.items() if value != ""}, flush=True)


def run_process(command: list[str], seconds: int, log: Path) -> str:
    """Run a command and return its output; kill it after its time limit plus a grace period.

    Errors: RuntimeError with the last line of its output.
    """
    environment = child_environment()
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        try:
            code = process.wait(seconds + START_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = 124
    said = log.read_text()
    if code:
        raise RuntimeError((said.strip() or f"exit code {code}").splitlines()[-1][:200])
    return said


def train(case: Case, folder: Path, seconds: int, *, tiny: bool) -> dict[str, Any]:
    """Row of a training run. Errors: RuntimeError."""
    directory = folder / "runs" / f"{case.name}-{time.time_ns()}"
    flags = {
        **TIMED_RUN,
        **case.flags,
        **(tiny_flags(case) if tiny else {}),
        "time_limit": f"{seconds}s",
        "run_dir": directory,
    }
    command = [sys.executable, "-m", "parcade", "train", case.game]
    for name, value in flags.items():
        flag = name.replace("_", "-")
        command += (
            [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
        )
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    run_process(command, seconds, folder / "logs" / f"{case.name}.log")
    result = json.loads((directory / "result.json").read_text())
    told = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    busy = [each["gpu/busy"] for each in told if "gpu/busy" in each]
    rates = {
        f"{name}_per_second": rate
        for name, rate in steady_rates(directory / "metrics.jsonl", ("steps", "updates")).items()
    }
    kept = {
        name: result[name] for name in ("finished_by", "score_mean", "wall_seconds", "cpu_seconds", "steps")
    }
    return (
        kept
        | rates
        | {
            "seconds_to_target": result["wall_seconds"] if result["finished_by"] == "target_score" else "",
            "process_seconds": round(time.monotonic() - begun, 1),
            "milestones": json.dumps(result["milestones"]),
            "gpu_busy": round(sum(busy) / len(busy), 3) if busy else "",
            "flags": " ".join(command[3:-2]),
        }
    )


def tiny_flags(case: Case) -> dict[str, Any]:
    """Flags that reduce a run to seconds on a CPU, limited to settings that its algorithm has."""
    preset = case.flags.get("preset")
    algorithm = case.flags.get("algorithm", "ppo" if preset else "")
    small = (
        dict(TINY)
        if algorithm == "ppo"
        else {name: TINY[name] for name in ("total_frames", "num_envs", "image_height", "image_width")}
    )
    actors = case.flags.get("num_actors", 1)
    small["num_envs"] += -small["num_envs"] % actors
    if "network" in case.flags and case.flags["network"] != "nature_cnn":
        return small
    return {
        name: value
        for name, value in small.items()
        if not name.startswith("image") or preset or algorithm == "ppo"
    } | {"network": "small_cnn", "image_height": 42, "image_width": 42}


def measure(case: Case, folder: Path, seconds: int, *, tiny: bool) -> dict[str, Any]:
    """Row of a case. Errors: RuntimeError."""
    if not case.command:
        return train(case, folder, seconds, tiny=tiny)
    arguments = [argument.replace("RESULTS", str(folder)) for argument in case.command]
    if arguments[0].startswith("benchmarks/threads"):
        arguments += ["--out", str(folder / "threads.json"), "--repeats", "3"]
        arguments += (
            ["--envs", "4", "--size", "42", "--repeats", "1", "--steps", "2", "--cost-steps", "2"]
            if tiny
            else []
        )
    elif tiny:
        arguments[arguments.index("--seconds") + 1] = "1"
        arguments += ["--num-envs", "8", "--unroll-length", "8", "--num-minibatches", "2"]
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    run_process([sys.executable, *arguments], seconds, folder / "logs" / f"{case.name}.log")
    return {
        "finished_by": "command",
        "process_seconds": round(time.monotonic() - begun, 1),
        "flags": " ".join(arguments),
    }


def measure_peer(command: str, folder: Path) -> dict[str, Any]:
    """Steps per second that another program prints as ``SPS: N`` within a minute. Errors: RuntimeError."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    said = run_process(  # a peer that is stopped after a minute ends with an error code
        ["sh", "-c", f"timeout -s INT 60 sh -c {shlex.quote(command)}; true"],
        60,
        folder / "logs" / "peer.log",
    )
    found = re.findall(r"SPS:\s*(\d+)", said)
    if not found:
        raise RuntimeError("the peer printed no 'SPS: N'")
    return {"finished_by": "command", "steps_per_second": found[-1], "flags": command}


def main(arguments: list[str] | None = None) -> None:
    """Measure the cases without a row until the time is up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of new rows")
    parser.add_argument(
        "--cases", nargs="*", default=[], help="only cases whose names start with one of these prefixes"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="run every case for seconds, to test the benchmark without a GPU"
    )
    parser.add_argument("--peer", help="command that runs another PPO")
    options = parser.parse_args(arguments)
    end, where = (
        time.monotonic() + 60 * options.minutes,
        {"card": card(), "cores": len(os.sched_getaffinity(0)), "commit": commit()},
    )
    if where["card"].startswith("stand-in") and options.results.resolve() == RESULTS:
        raise UsageError(
            "found no GPU; set PARCADE_GPU_STAND_IN=1 and keep its rows apart with --results DIR"
        )
    options.results.mkdir(parents=True, exist_ok=True)
    done = {
        row["case"]
        for row in rows_of([options.results, *([] if options.tiny else [RESULTS])])
        if not row["error"]
    }
    listed = [
        case
        for case in cases(where["cores"])
        if not options.cases or case.name.startswith(tuple(options.cases))
    ]
    if options.cases and not listed:
        raise UsageError(f"--cases {' '.join(options.cases)}: no case's name starts with it")
    for case in listed:
        left = end - time.monotonic()
        if case.name in done:
            continue
        if not options.tiny and left < case.seconds + START_SECONDS:
            print(f"{case.name} and the following cases are left for the next call", flush=True)
            return
        try:
            row = measure(
                case, options.results, TINY_SECONDS if options.tiny else case.seconds, tiny=options.tiny
            )
        except (RuntimeError, OSError, ValueError) as error:
            row = {"error": " ".join(str(error).split())[:200]}
        append(options.results, {"case": case.name, **row, **where})
    if options.peer and "peer" not in done:
        try:
            row = measure_peer(options.peer, options.results)
        except RuntimeError as error:
            row = {"error": " ".join(str(error).split())[:200]}
        append(options.results, {"case": "peer", **row, **where})


if __name__ == "__main__":
    with reported("gpu_hybrid.py"):
        main()
