"""How far the lanes of a warp would drift apart: consoles of one game stepped in lockstep, on the CPU.

A warp's lanes pass through the interpreter's loop together, each with an instruction of its own; lanes whose frame has ended wait
for the others. Which opcodes meet there depends on the consoles alone, so no GPU is needed to count: how many different
opcodes, and different program counters, the lanes stand at in a pass, and how many of them still have a frame to finish.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np

from .. import cartridge, console, cpu6507
from ..arcade import Arcade
from ..jit import OPTIONS
from ..state import CART_BANK, CART_KIND, CPU_JAMMED, CPU_PC, FRAME_ENDED, TERMINAL

MEASURABLE = (cartridge.PLAIN, cartridge.F8, cartridge.F6)  # their bank says where an opcode stands
PASSES, ACTIVE, OPCODES, COUNTERS = range(4)


@numba.njit(**{**OPTIONS, "cache": False})
def _count_frame(state, memory, rom, screen, counts, opcodes, counters, active):
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
        counts[PASSES] += 1
        counts[ACTIVE] += lanes
        counts[OPCODES] += seen
        counts[COUNTERS] += places


@numba.njit(**{**OPTIONS, "cache": False})
def _begin_frame(state, memory, actions):
    """Controls of every lane, and a new frame."""
    for e in range(len(state)):
        console.apply_controls(state[e], actions[e])
        console.begin_update(state[e], memory[e])


def count_divergence(
    game: str, frames: int, widths: Sequence[int] = (32,), *, warm_up_frames: int = 600
) -> dict[int, np.ndarray]:
    """For warps of each width counts int64 [4] over so many frames: passes, active lanes, different opcodes, different counters.

    Consoles start as training starts them (up to 30 no-ops), play random actions and drift first. A narrower warp has another part
    of the consoles in every frame. Errors: ValueError for a cartridge that hides where an opcode stands.
    """
    most = max(widths)
    random = np.random.default_rng(0)
    arcade = Arcade(game, most)
    arcade.reset(seed=np.arange(most))
    if arcade.arrays["state"][0, CART_KIND] not in MEASURABLE:
        raise ValueError(f"{game}: its cartridge hides where an opcode stands; use another game")
    noops = random.integers(0, 31, most)
    counts = {width: np.zeros(4, np.int64) for width in widths}
    for frame in range(warm_up_frames + frames):
        if frame % 4 == 0:
            actions = random.choice(arcade.actions, most)
        playing = np.where(frame < noops, 0, actions)
        if frame >= warm_up_frames:
            for width in widths:
                first = frame % (most // width) * width
                part = slice(first, first + width)
                copies = {name: array[part].copy() for name, array in arcade.arrays.items()}
                scratch = (np.zeros(256, np.int64), np.zeros(1 << 16, np.int64), np.ones(width, np.bool_))
                _begin_frame(copies["state"], copies["memory"], playing[part])
                _count_frame(copies["state"], copies["memory"], arcade.machine.rom, copies["screen"], counts[width], *scratch)
        arcade.act(playing)
        over = arcade.arrays["state"][:, TERMINAL] != 0
        if over.any():
            arcade.reset(mask=over)
    return counts
