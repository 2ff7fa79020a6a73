"""A ROM as a device needs it: its arrays there, and its machine code for GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine_cpu import Machine
from ..translate import rom_code
from .layout import Game
from .transfer import lasting_words

LINKED = 1  # where an image says that its machine code is: in the kernels


def game_on(threads: Any, machine: Machine) -> Game:
    """The arrays of a ROM in a device's memory. On a GPU the image's machine code is the kernels'; on the CPU its own."""
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
    """Threads whose kernels run this ROM's machine code."""
    if not threads.links_code:
        return threads
    return threads.running(rom_code.ptx_of(machine.rom, machine.powered, machine.program))
