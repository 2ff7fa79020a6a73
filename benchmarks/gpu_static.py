"""What the GPU's kernels need, found without a GPU: registers, local memory, spills, instructions, 64-bit operations.

    python benchmarks/gpu_static.py            # prints the table and writes benchmarks/results/gpu_static.json

Needs numba-cuda and ptxas (pip install 'parcade[cuda]' nvidia-cuda-nvcc).
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from parcade.atari.cuda import offline
from parcade.report.machine import commit, machine

RESULT = Path(__file__).parent / "results" / "gpu_static.json"


def main() -> None:
    """Compile every kernel once and assemble it for every architecture."""
    ptxas = offline.find_ptxas()
    if ptxas is None:
        raise SystemExit("ptxas was not found; run: pip install nvidia-cuda-nvcc")
    rows = []
    for body in offline.signatures():
        name = body.py_func.__name__
        started = time.process_time()
        ptx = offline.compile_to_ptx(body)
        seconds = round(time.process_time() - started, 1)
        for architecture in offline.ARCHITECTURES:
            row = {**offline.figures(name, ptx, architecture, ptxas)._asdict(), "compile_cpu_seconds": seconds}
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    RESULT.write_text(json.dumps({"rows": rows, "commit": commit(), "machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
