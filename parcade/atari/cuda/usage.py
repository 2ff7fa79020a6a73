"""What a batch of consoles makes of a GPU: warps, the opcodes that meet in them, occupancy, memory traffic."""

from __future__ import annotations

from typing import Any

from . import environments
from .divergence import count_divergence
from .engine import DeviceFacts
from .layout import step_bytes
from .vector import DeviceConsoles

LANES = 32  # of a warp
REGISTER_UNIT = 8  # registers are given out to a thread in eights


def occupancy(num_warps: int, facts: DeviceFacts) -> tuple[float, float]:
    """Shares of the warps that a device holds: of a kernel of so many warps, and the most its registers allow."""
    most = facts.threads // LANES
    each = -(-facts.registers_each // REGISTER_UNIT) * REGISTER_UNIT * LANES
    allowed = min(most, facts.registers // each)
    here = min(allowed, num_warps / facts.multiprocessors)
    return here / most, allowed / most


def use_of(consoles: DeviceConsoles, steps_per_second: float, *, frames: int = 20, warm_up_frames: int = 300) -> dict[str, Any]:
    """Columns for a measurement of so many steps of single consoles a second.

    Opcodes that meet are counted on the CPU, over so many frames, and left out for cartridges that hide where they stand.
    """
    facts = consoles.threads.facts(environments.step_thread)
    here, allowed = occupancy(-(-consoles.num_envs // LANES), facts)
    moved = step_bytes(consoles.size) * steps_per_second
    row = {"card": facts.name, "occupancy": f"{here:.3f} of at most {allowed:.3f}"}
    row["memory"] = f"{moved / 1e9:,.0f} GB/s" + (f" of {facts.bytes_per_second / 1e9:,.0f}" if facts.bytes_per_second else "")
    try:
        passes, _, opcodes, _ = count_divergence(consoles.machine.game, frames, (LANES,), warm_up_frames=warm_up_frames)[LANES]
    except ValueError:
        return row
    return row | {"opcodes_a_warp": round(int(opcodes) / int(passes), 2)}
