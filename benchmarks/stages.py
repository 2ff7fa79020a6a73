"""Time of each pipeline stage in a step of native consoles, measured by adding stage after stage.

    python benchmarks/stages.py [--games pong breakout ... | all] [--repeats 15] [--out FILE]

CPU microseconds per step of one console (4 frames, 84x84, one thread). ``play``: emulation without drawing.
``draw``: cost of drawing two of the four frames. ``capture``: cost of copying these frames and comparing them
with the previous ones. ``observe``: cost of grey conversion, maximum, resizing and stacking. Each stage is
the difference of two minima over the repeats.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numba
import numpy as np
from script_arguments import game_name_or_all, output_file, script_parser, whole_number

from parcade.atari import console, engine_cpu, games, joystick, preprocess
from parcade.atari import state as st
from parcade.machine.facts import commit, machine

GAMES = ("pong", "breakout", "seaquest", "qbert", "beam_rider", "space_invaders")
STAGES = ("play", "draw", "capture", "observe")
NUM_CONSOLES, STEPS, FRAME_SKIP, SIZE = 16, 20, 4, 84
RESULTS = Path(__file__).resolve().parent / "results"


@numba.njit
def play_steps(
    stages,
    actions,
    state,
    memory,
    screen,
    random,
    rom,
    program,
    captured,
    resize_table,
    work,
    changed,
    stacks,
    counts,
):
    """Step all consoles with the first `stages` of `STAGES`, like `engine_cpu.play_step` and its callers."""
    for t in range(len(actions)):
        for e in range(len(state)):
            s = state[e]
            for skip in range(FRAME_SKIP, 0, -1):
                s[st.OBSERVED] = 1 if stages > 1 and skip <= 2 else 0
                console.act(s, memory[e], rom, screen[e], random[e], program, actions[t, e], joystick.NOOP)
                if stages > 2 and skip == 2:
                    engine_cpu.capture(s, screen[e], captured[e, 2])
            s[st.OBSERVED] = 0
            if stages > 2:
                counts[2] = 3
                engine_cpu.capture_changes(s, screen[e], captured[e], counts, changed)
            if stages > 3:
                engine_cpu.push(3, memory[e], captured[e], resize_table, work, changed, stacks[e])


class Consoles:
    """Consoles some steps into their first episode, with the arrays to observe them."""

    def __init__(self, game: str) -> None:
        machine = engine_cpu.build_machine(game)
        self.machine, powered = machine, machine.powered
        self.rows = {name: np.repeat(array, NUM_CONSOLES, 0) for name, array in powered.items()}
        for e in range(NUM_CONSOLES):
            engine_cpu.load_console(
                e, *self.rows.values(), powered["state"], powered["memory"], powered["random"], machine.rom,
machine.program, e + 1, machine.row.get("default_mode", 0), 0,
            )  # fmt: skip
        levels = preprocess.level_tables("grey", machine.pal)
        table = (levels, *preprocess.resize_to(machine.height, SIZE, SIZE))
        captured = np.zeros((NUM_CONSOLES, 3, machine.height * st.LINE_WORDS), np.uint64)
        stacks = np.zeros((NUM_CONSOLES, 4, SIZE * SIZE), np.uint8)
        scratch = np.zeros((3, preprocess.WORK_COLUMNS), np.float32), np.zeros(machine.height, np.int32)
        self.seen = (captured, table, *scratch, stacks, np.zeros(4, np.int32))
        self.random = np.random.default_rng(0)
        self.play(len(STAGES), self.rows)

    def play(self, stages: int, rows: dict[str, np.ndarray]) -> float:
        """Play the steps; return CPU microseconds per step of one console."""
        actions = self.random.integers(0, 18, (STEPS, NUM_CONSOLES))
        began = time.process_time()
        play_steps(stages, actions, *rows.values(), self.machine.rom, self.machine.program, *self.seen)
        return (time.process_time() - began) / STEPS / NUM_CONSOLES * 1e6


def measure(game: str, repeats: int) -> dict[str, object]:
    """Row of a game."""
    consoles = Consoles(game)
    lowest = [float("inf")] * len(STAGES)
    for _ in range(repeats):
        for stage in range(len(STAGES)):
            rows = {name: array.copy() for name, array in consoles.rows.items()}
            lowest[stage] = min(lowest[stage], consoles.play(stage + 1, rows))
    added = np.diff([0.0, *lowest])
    return {
        "game": game,
        **{name: round(float(value), 1) for name, value in zip(STAGES, added, strict=True)},
        "step": round(lowest[-1], 1),
    }


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--games", type=game_name_or_all, nargs="+", default=GAMES)
    parser.add_argument("--repeats", type=whole_number, default=15)
    parser.add_argument("--out", type=output_file, default=RESULTS / "stages.json")
    arguments = parser.parse_args()
    rows = []
    for game in sorted(games.load_games()) if arguments.games == ["all"] else arguments.games:
        rows.append(measure(game, arguments.repeats))
        print(rows[-1], flush=True)
    command = " ".join(["python benchmarks/stages.py", *sys.argv[1:]])
    arguments.out.write_text(
        json.dumps({"command": command, "commit": commit(), "machine": machine(), "rows": rows}, indent=1)
        + "\n"
    )


if __name__ == "__main__":
    main()
