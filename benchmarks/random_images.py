"""Fuzz the consoles: random ROMs, states and actions must not crash, hang or write out of bounds.

    python benchmarks/random_images.py [--images 100000] [--seed N]
    NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=checked python benchmarks/random_images.py --images 5000

Each image, of any cartridge type, is played for 20 frames between guard regions; every word must stay in the
range that `state_check.py` allows. Then three random words of the state are overwritten, and if the check
accepts the state, 20 more frames are played. NUMBA_BOUNDSCHECK=1 also checks every index of every kernel,
reads included; it requires a separate cache.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from pathlib import Path

import numba
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "atari")]

from random_images import FRAMES, KINDS, Guarded, play_rubbish  # noqa: E402
from script_arguments import output_file, script_parser, whole_number  # noqa: E402

from parcade.machine.facts import commit, machine  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "random_images.json"


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--images", type=whole_number, default=100_000)
    parser.add_argument("--seed", type=int, default=secrets.randbits(30))
    parser.add_argument("--out", type=output_file, default=RESULT)
    arguments = parser.parse_args()
    checked = bool(numba.config.BOUNDSCHECK)
    random, guarded = np.random.default_rng(arguments.seed), Guarded()
    taken, began = 0, time.process_time()
    for turn in range(arguments.images):
        taken += play_rubbish(guarded, turn % KINDS, random)
        if turn % 10_000 == 9_999:
            print(
                f"{turn + 1:,} images, {taken:,} random states accepted, "
                f"{time.process_time() - began:.0f} CPU-s",
                flush=True,
            )
    row = {
        "images": arguments.images,
        "seed": arguments.seed,
        "bounds_checked": checked,
        "frames_each": FRAMES,
        "random_states_taken": taken,
        "cpu_seconds": round(time.process_time() - began),
        "commit": commit(),
        "machine": machine(),
    }
    rows = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    rows = [kept for kept in rows if kept["bounds_checked"] != checked]
    arguments.out.write_text(json.dumps([*rows, row], indent=2) + "\n")
    print(json.dumps(row))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
