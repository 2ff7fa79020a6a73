"""Measure warp divergence: 32 consoles of a game run the GPU form of its code, simulated on the CPU.

    python benchmarks/divergence.py [--games pong breakout ...] [--frames 20]

parcade/atari/cuda/lane_simulation.py does the counting.
"""

from __future__ import annotations

import json
from pathlib import Path

from script_arguments import game_name, output_file, script_parser, whole_number

from parcade.atari.cuda.lane_simulation import lanes_together
from parcade.machine.facts import commit, machine

RESULT = Path(__file__).parent / "results" / "gpu_divergence.json"
GAMES = ["pong", "breakout", "seaquest", "ms_pacman", "qbert", "space_invaders", "beam_rider"]


def main() -> None:
    """Measure every game, print one row each and save the rows."""
    parser = script_parser(__doc__)
    parser.add_argument("--games", type=game_name, nargs="+", default=GAMES)
    parser.add_argument("--frames", type=whole_number, default=20)
    parser.add_argument("--out", type=output_file, default=RESULT)
    arguments = parser.parse_args()
    rows = []
    for game in arguments.games:
        found = lanes_together(game, arguments.frames)
        rows.append(
            {"game": game, "lanes": 32, **{name: round(value, 1) for name, value in found._asdict().items()}}
        )
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    arguments.out.write_text(
        json.dumps({"rows": rows, "commit": commit(), "machine": machine()}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
