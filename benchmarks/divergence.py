"""How far the lanes of a warp would drift apart: 32 consoles of one game stepped in lockstep, on the CPU.

    python benchmarks/divergence.py [--games pong breakout ...] [--frames 60]

A warp's lanes pass through the interpreter's loop together, each with an instruction of its own; lanes whose frame has ended wait
for the others. Which opcodes meet there depends on the consoles alone, so no GPU is needed to count: how many different
opcodes, and different program counters, the lanes stand at in a pass, and how many of them still have a frame to finish.
Consoles start as training starts them (up to 30 no-ops), play random actions and drift for 600 frames first. The same is counted for
warps in which only 1, 2, 4 ... consoles have a lane.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numba
import numpy as np

import parcade
from parcade.atari import cartridge, console, cpu6507
from parcade.atari.jit import OPTIONS
from parcade.atari.state import CART_BANK, CART_KIND, CPU_JAMMED, CPU_PC, FRAME_ENDED, TERMINAL
from parcade.report.machine import commit, machine

RESULT = Path(__file__).parent / "results" / "gpu_divergence.json"
GAMES = ["pong", "breakout", "seaquest", "ms_pacman", "qbert", "space_invaders", "beam_rider"]
LANES = 32
WIDTHS = (1, 2, 4, 8, 16, 32)
WARM_UP_FRAMES = 600
MEASURABLE = (cartridge.PLAIN, cartridge.F8, cartridge.F6)  # their bank says where an opcode stands


@numba.njit(**{**OPTIONS, "cache": False})
def count_frame(state, memory, rom, screen, counts, opcodes, counters, active):
    """One frame of all lanes, a pass at a time. Adds to counts [4]: passes, active lanes, different opcodes, different counters.

    opcodes [256], counters [65536] int64 zeros, active [lanes] bool ones: scratch.
    """
    stamp = 0
    while True:
        stamp += 1
        lanes, seen, places = 0, 0, 0
        for e in range(len(state)):
            if not active[e]:
                continue
            s = state[e]
            pc = np.int64(s[CPU_PC])
            bank = np.int64(s[CART_BANK])
            opcode = np.int64(rom[bank + (pc & 0xFFF)]) if pc & 0x1000 else np.int64(memory[e, pc & 0x7F])
            lanes += 1
            if opcodes[opcode] != stamp:
                opcodes[opcode] = stamp
                seen += 1
            if counters[pc] != stamp:
                counters[pc] = stamp
                places += 1
            cpu6507.step(s, memory[e], rom, screen[e])
            active[e] = s[FRAME_ENDED] == 0 and s[CPU_JAMMED] == 0
        if lanes == 0:
            return
        counts[0] += 1
        counts[1] += lanes
        counts[2] += seen
        counts[3] += places


@numba.njit(**{**OPTIONS, "cache": False})
def begin_frame(state, memory, actions):
    """Controls of every lane, and a new frame."""
    for e in range(len(state)):
        console.apply_controls(state[e], actions[e])
        console.begin_update(state[e], memory[e])


def measure(game: str, frames: int) -> dict:
    """The means over `frames` frames of one warp, and of narrower ones."""
    random = np.random.default_rng(0)
    arcade = parcade.Arcade(game, LANES)
    arcade.reset(seed=np.arange(LANES))
    if arcade.arrays["state"][0, CART_KIND] not in MEASURABLE:
        raise SystemExit(f"{game}: its cartridge hides where an opcode stands; use another game")
    noops = random.integers(0, 31, LANES)
    counts = {width: np.zeros(4, np.int64) for width in WIDTHS}
    for frame in range(WARM_UP_FRAMES + frames):
        if frame % 4 == 0:
            actions = random.choice(arcade.actions, LANES)
        playing = np.where(frame < noops, 0, actions)
        if frame >= WARM_UP_FRAMES:
            for width in WIDTHS:
                first = frame % (LANES // width) * width  # another part of them in every frame
                copies = {name: array[first : first + width].copy() for name, array in arcade.arrays.items()}
                scratch = (np.zeros(256, np.int64), np.zeros(1 << 16, np.int64), np.ones(width, np.bool_))
                begin_frame(copies["state"], copies["memory"], playing[first : first + width])
                count_frame(copies["state"], copies["memory"], arcade.machine.rom, copies["screen"], counts[width], *scratch)
        arcade.act(playing)
        over = arcade.arrays["state"][:, TERMINAL] != 0
        if over.any():
            arcade.reset(mask=over)
    passes, lanes, opcodes, counters = counts[LANES].tolist()
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
        rows.append(measure(game, arguments.frames))
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    RESULT.write_text(json.dumps({"rows": rows, "commit": commit(), "machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
