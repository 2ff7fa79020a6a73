"""Check that consoles fit into the memory of this machine, before they are made."""

from __future__ import annotations

import psutil


def check_fits(num_consoles: int, bytes_each: int) -> None:
    """Check that consoles fit into the machine's memory, whatever a container may use of it.

    Errors: ValueError that says how many do.
    """
    there = psutil.virtual_memory().available
    if num_consoles * bytes_each > there:
        raise ValueError(
            f"num_consoles={num_consoles:,} need {num_consoles * bytes_each / 2**30:.1f} GiB "
            f"({bytes_each:,} bytes each), but {there / 2**30:.1f} GiB of memory are free; "
            f"use {there * 9 // 10 // bytes_each:,} or fewer"
        )
