"""CPU time of normalising images by compiled code, and by torch's operations.

    python benchmarks/pixels.py [--repeats 7]

One thread; stacks of four images, 1,024 as in an update of PPO on Pong, and 32 as in a decision. Both ways
take turns, so that other work on the machine meets both, and their results are compared bit by bit. As in
learners, inputs go to the memory of those before. The median over the repeats is reported per stack. Writes
``benchmarks/results/pixels.json``.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from script_arguments import output_file, script_parser, whole_number

from parcade.machine.facts import commit, machine
from parcade.machine.heap import keep_freed_memory
from parcade.model import pixels
from parcade.model.networks import NetworkConfig
from parcade.model.policy import Policy

RESULT = Path(__file__).resolve().parent / "results" / "pixels.json"
SIZES = (42, 84)
BATCHES = (32, 1024)


def work(size: int, batch: int) -> dict[str, Callable[[], torch.Tensor]]:
    """Return what a learner does with a batch of images, by name."""
    policy = Policy((4, size, size), "uint8", 6, NetworkConfig(network="fine_cnn", hidden=16), "q")
    observations = torch.randint(0, 256, (1, batch, 4, size, size), dtype=torch.uint8)
    policy.statistics.merge(policy.input_moments(observations))
    half, full = (policy.prepare(observations, dtype) for dtype in (torch.bfloat16, torch.float32))
    return {
        "normalise to bfloat16": lambda: policy.prepare(observations, torch.bfloat16, half),
        "normalise to float32": lambda: policy.prepare(observations, torch.float32, full),
    }


def cpu_microseconds(run: Callable[[], torch.Tensor], batch: int) -> tuple[float, torch.Tensor]:
    """Return the CPU time of one of ``batch`` stacks, and the result."""
    times = 1 + 2048 // batch
    started = time.process_time()
    for _ in range(times):
        result = run()
    return (time.process_time() - started) * 1e6 / batch / times, result


def measure(
    name: str, size: int, batch: int, run: Callable[[], torch.Tensor], repeats: int
) -> dict[str, Any]:
    """Return the row of one kind of work. Errors: RuntimeError if the results differ."""
    spent: dict[str, list[float]] = {"compiled": [], "torch": []}
    for repeat in range(repeats + 1):  # the first one warms up
        one, result = cpu_microseconds(run, batch)
        result = result.clone()
        with mock.patch.object(pixels, "_kernels", None):
            other, expected = cpu_microseconds(run, batch)
        if not torch.equal(result, expected):
            raise RuntimeError(f"{name}, {size}x{size}: the results differ")
        if repeat:
            spent["compiled"].append(one)
            spent["torch"].append(other)
    row: dict[str, Any] = {"work": name, "size": size, "batch": batch}
    for way, times in spent.items():
        row[way] = [round(value, 2) for value in (statistics.median(times), min(times), max(times))]
    return row


def main() -> None:
    """Measure, print and store."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=whole_number, default=7)
    parser.add_argument("--out", type=output_file, default=RESULT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    pixels.use_compiled()
    rows = [
        measure(name, size, batch, run, arguments.repeats)
        for size in SIZES
        for batch in BATCHES
        for name, run in work(size, batch).items()
    ]
    for row in rows:
        compiled, other = row["compiled"], row["torch"]
        print(
            f"{row['work']:<28}{row['size']:>4}{row['batch']:>6}{compiled[0]:>8.2f} us "
            f"({compiled[1]} to {compiled[2]}), torch {other[0]:.2f} us ({other[1]} to {other[2]})"
        )
    lines = ",\n  ".join(map(json.dumps, rows))
    facts = {
        "unit": "CPU microseconds per stack: median, lowest, highest",
        "repeats": arguments.repeats,
        "commit": commit(),
        "machine": machine(),
    }
    head = json.dumps(facts, indent=1).removesuffix("\n}")
    arguments.out.write_text(f'{head},\n "rows": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
