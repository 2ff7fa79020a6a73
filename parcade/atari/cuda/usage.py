"""GPU utilisation of a batch of consoles: divergence of warps, registers, occupancy, memory traffic."""

from __future__ import annotations

from typing import Any

from ..primitives.warp import WARP_LANES
from . import environments
from .engine import DeviceFacts, threads_per_block
from .lane_simulation import lanes_together
from .layout import step_bytes
from .vector import DeviceConsoles

REGISTER_UNIT = 8  # registers are allocated per thread in units of 8


def occupancy(num_warps: int, facts: DeviceFacts) -> tuple[float, float]:
    """Return the occupancy of a kernel of `num_warps` and the limit set by its registers, as fractions."""
    most = facts.threads // WARP_LANES
    each = -(-facts.registers_each // REGISTER_UNIT) * REGISTER_UNIT * WARP_LANES
    allowed = min(most, facts.registers // each)
    here = min(allowed, num_warps / facts.multiprocessors)
    return here / most, allowed / most


def use_of(consoles: DeviceConsoles, steps_per_second: float, *, frames: int = 4) -> dict[str, Any]:
    """Return a row of utilisation metrics for a measured speed, in steps of single consoles per second.

    Active lanes are counted on the CPU over `frames` frames.
    """
    facts = consoles.threads.facts(environments.step_thread)
    block = threads_per_block(consoles.num_envs, facts.multiprocessors)
    lanes = min(block, WARP_LANES)
    num_warps = -(-consoles.num_envs // block) * (block // lanes)
    here, allowed = occupancy(num_warps, facts)
    moved = step_bytes(consoles.size) * steps_per_second
    together = lanes_together(consoles.machine.game, frames, lanes=lanes)
    return {
        "card": facts.name,
        "registers": facts.registers_each,
        "occupancy": f"{here:.3f} of at most {allowed:.3f}",
        "memory": f"{moved / 1e9:,.0f} GB/s"
        + (f" of {facts.bytes_per_second / 1e9:,.0f}" if facts.bytes_per_second else ""),
        "lanes_active": f"{together.lanes_active:.1f} of {lanes}",
        "instructions_a_frame": round(together.instructions_a_frame),
    }
