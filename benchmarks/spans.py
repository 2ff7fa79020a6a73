"""Count the spans that consoles record in a step, with the GPU's kernels on the CPU: random play, 84x84.

    python benchmarks/spans.py [--games pong breakout ...] [--steps 40]

`most` and `median` are of the steps of all consoles in which something is recorded, starts of episodes
included. `layout.MOST_SPANS` is the room for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from script_arguments import game_name, output_file, script_parser, whole_number

from parcade.atari.cuda import environments, layout
from parcade.atari.cuda.engine import HostThreads
from parcade.atari.cuda.vector import DeviceConsoles
from parcade.atari.games import load_games
from parcade.machine.facts import commit, machine

RESULT = Path(__file__).parent / "results" / "gpu_spans.json"
NUM_CONSOLES = 4


class CountingThreads(HostThreads):
    """Threads on the CPU that note the length of every list before it is painted."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def launch_blocks(self, body: Callable, num_blocks: int, *arguments: Any) -> None:
        if body is environments.paint_block:
            (consoles,) = arguments
            place = consoles.screens.shape[1] - layout.LIST_WORDS
            self.counts += [int(count) for count in consoles.screens[:, place] if count > 0]
        super().launch_blocks(body, num_blocks, *arguments)


def counts_of(game: str, steps: int) -> list[int]:
    """Play a game at random; return the lengths of the lists of all consoles."""
    threads = CountingThreads()
    consoles = DeviceConsoles(game, NUM_CONSOLES, threads)
    consoles.reset(seed=0)
    player = np.random.default_rng(0)
    for _ in range(steps):
        consoles.step(player.integers(0, len(consoles.action_set), NUM_CONSOLES))
    return threads.counts


def main() -> None:
    """Count in every game, print one row each and save the rows."""
    parser = script_parser(__doc__)
    parser.add_argument("--games", type=game_name, nargs="+", default=list(load_games()))
    parser.add_argument("--steps", type=whole_number, default=40)
    parser.add_argument("--out", type=output_file, default=RESULT)
    arguments = parser.parse_args()
    rows = []
    for game in arguments.games:
        counts = counts_of(game, arguments.steps)
        rows.append({"game": game, "most": max(counts), "median": int(np.median(counts))})
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    found = {
        "rows": rows, "steps": arguments.steps, "consoles": NUM_CONSOLES, "commit": commit(),
        "machine": machine(),
    }  # fmt: skip
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
