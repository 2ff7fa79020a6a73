"""How far the lanes of a warp would drift apart: 32 consoles of one game, and fewer, stepped in lockstep on the CPU.

    python benchmarks/divergence.py [--games pong breakout ...] [--frames 60]

See parcade/atari/divergence.py, which counts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from parcade.atari.cuda.divergence import count_divergence
from parcade.report.machine import commit, machine

RESULT = Path(__file__).parent / "results" / "gpu_divergence.json"
GAMES = ["pong", "breakout", "seaquest", "ms_pacman", "qbert", "space_invaders", "beam_rider"]
WIDTHS = (1, 2, 4, 8, 16, 32)


def measure(game: str, frames: int) -> dict:
    """The means over `frames` frames of one warp, and of narrower ones."""
    counts = count_divergence(game, frames, WIDTHS)
    passes, lanes, opcodes, counters = counts[32].tolist()
    return {
        "game": game,
        "passes_a_frame": round(passes / frames),
        "lanes_active": round(lanes / passes, 2),
        "different_opcodes": round(opcodes / passes, 2),
        "different_counters": round(counters / passes, 2),
        "lanes_an_opcode": round(lanes / opcodes, 2),
        "opcodes_of_narrower_warps": {width: round(int(count[2]) / int(count[0]), 2) for width, count in counts.items()},
        "passes_of_narrower_warps": {width: round(int(count[0]) / frames) for width, count in counts.items()},
    }


def main() -> None:
    """Measure every game, print a row each and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=GAMES)
    parser.add_argument("--frames", type=int, default=60)
    arguments = parser.parse_args()
    rows = []
    for game in arguments.games:
        try:
            rows.append(measure(game, arguments.frames))
        except ValueError as error:
            raise SystemExit(f"benchmarks/divergence.py: {error}") from error
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    RESULT.write_text(json.dumps({"rows": rows, "commit": commit(), "machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
