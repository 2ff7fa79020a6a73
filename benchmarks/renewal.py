"""What it brings to translate a ROM again when play meets code that its trace did not (`rom_code.py`).

    python benchmarks/renewal.py [--games gravitar klax ...] [--steps 8000] [--out FILE]

Two vectors of 16 consoles play the same random actions with the same seeds, at 84x84 on one thread: one
renews its code, the other keeps that of the trace. Each game starts with an empty cache. Reported are frames
per CPU-second: of the last quarter of the play, and of all of it, translations included. The observations of
both are hashed and must be equal.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from script_arguments import game_name, output_file, script_parser, whole_number

from parcade.atari.translate import known_code, rom_code
from parcade.atari.vector import VectorConsoles
from parcade.machine.facts import commit, machine

GAMES = ("gravitar", "crossbow", "klax")  # klax meets nothing new
NUM_ENVS, FRAME_SKIP = 16, 4
RESULTS = Path(__file__).resolve().parent / "results"


class Player:
    """A vector of consoles, and the CPU seconds of its steps."""

    def __init__(self, game: str, *, renews: bool) -> None:
        self.consoles = VectorConsoles(game, NUM_ENVS)
        if not renews:
            self.consoles._code.check = lambda: None
        self.consoles.reset(seed=1)
        self.digest = hashlib.sha256()
        self.seconds: list[float] = []

    def step(self, actions: np.ndarray) -> None:
        """Play one step, and count the CPU time of the thread that plays."""
        began = time.thread_time()
        result = self.consoles.step(actions)
        self.seconds.append(time.thread_time() - began)
        self.digest.update(result.observations.tobytes())

    def rate(self, steps: int, more: float = 0.0) -> int:
        """Frames per CPU-second of the last steps, which took `more` CPU seconds on other threads."""
        return round(steps * NUM_ENVS * FRAME_SKIP / (sum(self.seconds[-steps:]) + more))


def measure(game: str, steps: int) -> dict[str, object]:
    """Row of a game."""
    with tempfile.TemporaryDirectory() as folder:
        for module in (known_code, rom_code):
            module.cache_directory = lambda: Path(folder)
        players = {name: Player(game, renews=name == "renewed") for name in ("traced", "renewed")}
        num_actions = len(players["traced"].consoles.action_set)
        random = np.random.default_rng(0)
        began = time.process_time(), time.thread_time()
        for _ in range(steps):
            actions = random.integers(0, num_actions, NUM_ENVS)
            for player in players.values():
                player.step(actions)
        translating = time.process_time() - began[0] - (time.thread_time() - began[1])
        assert len({player.digest.hexdigest() for player in players.values()}) == 1, "the two differ"
        translations = len(list(Path(folder).glob("rom-*.o")))
        for player in players.values():
            player.consoles.close()
    row: dict[str, object] = {"game": game, "frames": steps * NUM_ENVS * FRAME_SKIP}
    for part, count, more in (("last_quarter", steps // 4, 0.0), ("all", steps, translating)):
        traced, renewed = players["traced"].rate(count), players["renewed"].rate(count, more)
        row[part] = {"traced": traced, "renewed": renewed, "ratio": round(renewed / traced, 2)}
    return row | {"translations": translations, "translating_cpu_seconds": round(translating, 2)}


def main() -> None:
    """Measure and print, and write the result."""
    parser = script_parser(__doc__)
    parser.add_argument("--games", type=game_name, nargs="+", default=GAMES)
    parser.add_argument("--steps", type=whole_number, default=8000)
    parser.add_argument("--out", type=output_file, default=RESULTS / "renewal.json")
    arguments = parser.parse_args()
    rows = []
    for game in arguments.games:
        rows.append(measure(game, arguments.steps))
        print(rows[-1], flush=True)
    command = f"python benchmarks/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip()
    result = {"command": command, "commit": commit(), "machine": machine(), "rows": rows}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
