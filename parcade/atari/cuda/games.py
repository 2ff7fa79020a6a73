"""A ROM on a device: its arrays in device memory, and its machine code for GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine_cpu import Machine
from ..translate import rom_code
from .layout import Game
from .transfer import lasting_words

LINKED = 1  # "address" of machine code that is linked to the kernels; see `rom_code.put_address`


def game_on(threads: Any, machine: Machine) -> Game:
    """Copy the arrays of a ROM to device memory.

    On a GPU the machine code is linked to the kernels; on the CPU the ROM image holds its address.
    """
    rom = machine.rom
    if threads.links_code:
        rom = rom.copy()
        rom_code.put_address(rom, LINKED)
    powered = machine.powered
    arrays = (
        rom,
        machine.program,
        lasting_words(powered["state"])[:, 0],
        powered["memory"][0],
        powered["random"][0, 0],
    )
    return Game(*(threads.put(np.ascontiguousarray(array)) for array in arrays))


def threads_for(threads: Any, machine: Machine) -> Any:
    """Return threads whose kernels run this ROM's machine code."""
    if not threads.links_code:
        return threads
    return threads.running(rom_code.ptx_of(machine.rom, machine.powered, machine.program))
