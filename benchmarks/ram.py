"""Speed-up from observing RAM instead of images: native consoles and ale-py's, interleaved.

    python benchmarks/ram.py [--games pong breakout seaquest qbert] [--repeats 7] [--steps 50]

Frames per CPU-second of 16 consoles on one thread, four frames per step. ``ram`` and ``grey`` are
observations of backend native (128 bytes; 84x84, a stack of 4, max-pool). ``ale`` is one ``ALEInterface`` per
console: ``act`` four times and ``getRAM``; the screen is never read. Outputs are hashed; RAM must be equal.
Episodes start without no-ops, so that all candidates play the same episodes.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ale_py
import numpy as np
from script_arguments import game_name, output_file, script_parser, whole_number

from parcade import make_vec
from parcade.machine.facts import commit, machine

RESULTS = Path(__file__).resolve().parent / "results"
GAMES = ("pong", "breakout", "seaquest", "qbert")
NUM_ENVS = 16
FRAME_SKIP = 4

Step = Callable[[np.ndarray], tuple[int, np.ndarray]]
"""Plays one step of all consoles with actions ``[16]``; returns its frames and the observations."""


def native(game: str, **settings: object) -> Step:
    """Backend native."""
    env = make_vec(game, NUM_ENVS, "native", noop_max=0, frame_skip=FRAME_SKIP, num_threads=1, **settings)
    env.reset(seed=1)

    def step(actions: np.ndarray) -> tuple[int, np.ndarray]:
        observations, *_, infos = env.step(actions)
        return int((infos["frames"] + infos["reset_frames"]).sum()), observations

    return step


class AlePyConsole:
    """One ``ALEInterface`` that restarts after game over."""

    def __init__(self, game: str, seed: int) -> None:
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(ale_py.roms.get_rom_path(game))
        self.actions = self.ale.getMinimalActionSet()
        self.start()

    def start(self) -> int:
        """Start an episode, pressing FIRE once if the game has it; return its number of frames."""
        self.ale.reset_game()
        if ale_py.Action.FIRE in self.actions:
            self.ale.act(ale_py.Action.FIRE)
        return self.ale.getEpisodeFrameNumber()

    def step(self, action: int) -> int:
        """Play four frames, or fewer at an episode's end; return the count including the next start."""
        before = self.ale.getFrameNumber()
        for _ in range(FRAME_SKIP):
            self.ale.act(self.actions[action])
            if self.ale.game_over():
                return self.ale.getFrameNumber() - before + self.start()
        return FRAME_SKIP


def ale_py_consoles(game: str) -> Step:
    """ale-py, one console at a time."""
    consoles = [AlePyConsole(game, 1 + e) for e in range(NUM_ENVS)]
    return lambda actions: (
        sum(console.step(action) for console, action in zip(consoles, actions.tolist(), strict=True)),
        np.stack([console.ale.getRAM() for console in consoles]),
    )


def row_of(game: str, repeats: int, steps: int) -> dict[str, object]:
    """Measure all three interleaved on the same actions. Errors: AssertionError if RAM differs."""
    ways = {
        "ram": native(game, observations="ram", frame_stack=1),
        "grey": native(game, observations="grey"),
        "ale": ale_py_consoles(game),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    seen = {name: hashlib.sha256() for name in ways}
    generator = np.random.default_rng(0)
    num_actions = int(make_vec(game, 1, "native").single_action_space.n)
    for repeat in range(repeats + 1):
        rows = generator.integers(0, num_actions, (steps, NUM_ENVS))
        for name, step in ways.items():
            frames, cpu = 0, 0.0
            for actions in rows:
                before = time.process_time()
                played, observations = step(actions)
                cpu += time.process_time() - before
                frames += played
                seen[name].update(observations.tobytes())
            if repeat:  # the first repeat is the warm-up
                rates[name].append(frames / cpu)
    assert seen["ram"].digest() == seen["ale"].digest(), f"{game}: RAM differs"
    ratios = {
        f"ram / {name}": [a / b for a, b in zip(rates["ram"], rates[name], strict=True)]
        for name in ("grey", "ale")
    }
    return {
        "game": game,
        "digest": seen["ram"].hexdigest()[:16],
        "frames_per_cpu_second": {name: round(statistics.median(values)) for name, values in rates.items()},
        "ratios": {
            name: {
                "median": round(statistics.median(values), 2),
                "lowest": round(min(values), 2),
                "highest": round(max(values), 2),
            }
            for name, values in ratios.items()
        },
    }


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--games", type=game_name, nargs="+", default=GAMES)
    parser.add_argument("--repeats", type=whole_number, default=7)
    parser.add_argument("--steps", type=whole_number, default=50)
    parser.add_argument("--out", type=output_file, default=RESULTS / "ram.json")
    arguments = parser.parse_args()
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    load = os.getloadavg()[0]
    rows = []
    for game in arguments.games:
        rows.append(row_of(game, arguments.repeats, arguments.steps))
        print(rows[-1], flush=True)
    command = " ".join(["python benchmarks/ram.py", *sys.argv[1:]])
    result = {
        "command": command,
        "commit": commit(),
        "machine": machine(),
        "load_at_start": load,
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
