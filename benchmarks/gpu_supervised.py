"""Cost of per-epoch error reports and per-epoch data copies in supervised training on GPUs.

    python benchmarks/gpu_supervised.py --minutes 9              # all GPUs, 1, 2, 4, ... ranks
    python benchmarks/gpu_supervised.py --device cpu --ranks 1 2 # on the CPU, into a separate table

Two forms of the same fit of examples/mnist.py run interleaved, each in its own processes. *naive* reports
errors after every epoch and copies every batch to the GPU in every epoch; *fixed* reports once at the end and
copies the training data once. On a CPU nothing is copied, and only the reports differ. The images have
MNIST's shape and count and random content: speed does not depend on it.

| column | meaning |
|---|---|
| samples_per_second | wall clock from the end of the first epoch, which initialises libraries, |
|  | to the end of the last; all ranks |
| learn_, evaluate_seconds | wall clock of rank 0 in these scopes, all epochs; |
|  | on a GPU ``learn`` includes the wait for its queue |
| communicate_seconds | wall clock of the last rank in collective calls, where it waits for rank 0's report; |
|  | on a GPU an Allreduce call returns at once, and ``learn`` includes the wait for it |
| gpu_learn_, gpu_copies_, gpu_idle_seconds | rank 0's GPU, by events on its stream; idle is the rest, |
|  | including communication and reports |

Resumable: a case that has a row with the same card, settings and commit is not measured again. With
PARCADE_GPU_STAND_IN=1 the CPU replaces the GPUs, the card is named accordingly, and rows go to the folder
given by ``--results``, which must not be benchmarks/results.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gpu_results
from gpu_results import RESULTS, ROOT, Clock, child_environment, end_with_parent, one_line

from parcade.errors import UsageError, reported

TABLES = {"cuda": "gpu_supervised.csv", "cpu": "cpu_supervised.csv"}
KEYS = ("card", "ranks", "form", "batch_size", "samples", "epochs", "repeat", "commit")
FIGURES = ("samples_per_second", "learn_seconds", "evaluate_seconds", "communicate_seconds")
GPU_FIGURES = ("gpu_learn_seconds", "gpu_copies_seconds", "gpu_idle_seconds")
COLUMNS = (*KEYS[:-1], *FIGURES, *GPU_FIGURES, "commit", "error")
FORMS = {"naive": "--evaluate-every 1 --data-on host", "fixed": "--evaluate-every {epochs} --data-on device"}
SIDE, TEST_SHARE = 28, 6  # MNIST: 28 x 28 pixels, 60,000 training and 10,000 test images
CASE_SECONDS = 60  # estimate for a case until one of its kind has been timed


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the table")
    parser.add_argument("--device", choices=list(TABLES), default="cuda")
    parser.add_argument(
        "--ranks", type=int, nargs="+", help="default: powers of two up to the number of GPUs"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument(
        "--batch-sizes",
        type=int,
        nargs="+",
        default=[128, 1024],
        help="samples per batch of all ranks together",
    )
    parser.add_argument("--samples", type=int, default=60_000, help="number of training images")
    return parser.parse_args(arguments)


def card_and_ranks(device: str) -> tuple[str, int]:
    """Name of the device and how many ranks it serves. Errors: UsageError."""
    import torch

    from parcade.machine.devices import is_stand_in
    from parcade.machine.facts import available_cores, cpu_model

    if device == "cpu":
        return f"CPU: {cpu_model()}, {available_cores()} cores", available_cores()
    if is_stand_in():
        return "stand-in: CPU", 2
    if not torch.cuda.is_available():
        raise UsageError(f"torch {torch.__version__} finds no NVIDIA GPU here; use --device cpu")
    return torch.cuda.get_device_name(0), torch.cuda.device_count()


def commit() -> str:
    """Commit hash, marked if the sources changed."""
    from parcade.machine import facts

    return facts.commit() or gpu_results.commit()


def cases(options: argparse.Namespace, card: str, most_ranks: int) -> list[dict[str, Any]]:
    """Key columns of every case; cases adjacent in time differ only in their form."""
    ranks = options.ranks or sorted({1 << k for k in range(most_ranks.bit_length())} | {most_ranks})
    shared = {"card": card, "samples": options.samples, "epochs": options.epochs, "commit": commit()}
    return [
        {**shared, "ranks": count, "form": form, "batch_size": batch_size, "repeat": repeat}
        for repeat in range(options.repeats)
        for count in ranks
        for batch_size in options.batch_sizes
        for form in FORMS
    ]


def key_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Key of a case's row, without "-dirty".

    Git tracks the table, so appending to it makes the tree dirty.
    """
    return tuple(str(row[name]).removesuffix("-dirty") for name in KEYS)


def done_in(path: Path) -> set[tuple[str, ...]]:
    """Keys of the cases that a table has, without the failed ones."""
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        return {key_of(row) for row in csv.DictReader(file) if not row["error"]}


def append(path: Path, row: dict[str, Any]) -> None:
    """Append a row to a table."""
    is_new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    print(*(f"{name}={value}" for name, value in row.items()), flush=True)


def write_pictures(folder: Path, samples: int) -> None:
    """Write MNIST's four files with random images: ``samples`` to train and a sixth of that to test."""
    import numpy as np

    random = np.random.default_rng(0)
    for kind, count in (("train", samples), ("t10k", max(1, samples // TEST_SHARE))):
        for name, array in (
            (f"{kind}-images-idx3-ubyte", random.integers(0, 256, (count, SIDE, SIDE), np.uint8)),
            (f"{kind}-labels-idx1-ubyte", random.integers(0, 10, count, np.uint8)),
        ):
            head = struct.pack(">HBB", 0, 0x08, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / name).write_bytes(head + array.tobytes())


def measure(case: dict[str, Any], device: str, data: Path, timeout_seconds: float) -> dict[str, Any]:
    """Metrics of one case. Errors: TimeoutExpired; RuntimeError with the last line of the job's output."""
    from parcade.cluster import mpi

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        flags = (
            f"--device {device} --batch-size {case['batch_size']} --epochs {case['epochs']} "
            f"{FORMS[case['form']]}"
        ).format(**case)
        command = [
            sys.executable, str(ROOT / "examples" / "mnist.py"), *flags.split(),
            "--data", str(data), "--run-dir", str(run),
        ]  # fmt: skip
        launch = [mpi.find_mpiexec(), "-n", str(case["ranks"])] if case["ranks"] > 1 else []
        environment = {**mpi.rank_environment(1), "PYTHONPATH": child_environment()["PYTHONPATH"]}
        process = subprocess.Popen(
            [*launch, *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=end_with_parent,
            env=environment,
        )
        try:
            _, said = process.communicate(timeout=timeout_seconds)
        finally:
            end(process)
        if process.returncode:
            raise RuntimeError((said.strip() or f"exit status {process.returncode}").splitlines()[-1])
        return figures_of(json.loads((run / "result.json").read_text()))


def end(process: subprocess.Popen) -> None:
    """End a job with all its ranks if it is still running."""
    for number in (signal.SIGTERM, signal.SIGKILL):  # on SIGTERM a launcher also ends its ranks
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)


def figures_of(result: dict[str, Any]) -> dict[str, float]:
    """Metrics of a fit's ``result.json``."""
    ends, scopes = result["epoch_seconds"], result["scope_seconds"]
    share = (len(ends) - 1) / len(ends)
    found = {
        "samples_per_second": round(result["samples"] * share / (ends[-1] - ends[0]), 1),
        "learn_seconds": scopes["learn"][0],
        "evaluate_seconds": scopes["evaluate"][0],
        "communicate_seconds": scopes["communicate"][-1],
    }
    return found | {
        f"gpu_{kind}_seconds": result["device_seconds"][kind][0]
        for kind in ("learn", "copies", "idle")
        if result["device_seconds"]
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure the missing cases until the time is up."""
    options = parse(arguments)
    if options.ranks and min(options.ranks) < 1:
        raise UsageError(f"--ranks {min(options.ranks)}: expected 1 or more")
    if options.epochs < 2:
        raise UsageError(f"--epochs {options.epochs}; expected 2 or more, because the first is not counted")
    card, most_ranks = card_and_ranks(options.device)
    if card.startswith("stand-in") and options.results.resolve() == RESULTS.resolve():
        raise UsageError("the stand-in does not measure a GPU; choose another folder with --results")
    clock, path = Clock(60 * options.minutes), options.results / TABLES[options.device]
    seconds: dict[tuple, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(Path(folder), options.samples)
        for case in cases(options, card, most_ranks):
            kind = tuple(case[name] for name in ("ranks", "form", "batch_size"))
            if key_of(case) in done_in(path):
                continue
            if clock.left_seconds < 1.2 * seconds.get(kind, CASE_SECONDS):
                print("the remaining cases are left for the next call", flush=True)
                return
            before = clock.left_seconds
            try:
                append(path, {**case, **measure(case, options.device, Path(folder), clock.left_seconds)})
            except subprocess.TimeoutExpired:
                print("out of time; the remaining cases are left for the next call", flush=True)
                return
            except Exception as error:
                append(path, {**case, "error": one_line(error)})
            seconds[kind] = before - clock.left_seconds


if __name__ == "__main__":
    with reported("gpu_supervised.py"):
        main()
