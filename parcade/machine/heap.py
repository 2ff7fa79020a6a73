"""Memory that a learner frees and allocates again in every minibatch.

glibc returns freed memory to the operating system as soon as some megabytes at the end of the heap are free.
When it is allocated again, the kernel fills it with zeros, page by page: 5 % of PQN's CPU time on 84x84
images.
"""

from __future__ import annotations

import ctypes
import os

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 30
_LARGEST_MMAP_THRESHOLD = 32 << 20
"""Larger blocks always come from the operating system and go back to it."""


def keep_freed_memory() -> bool:
    """Let this process keep up to 1 GiB of freed memory for itself; return whether it does.

    Changes nothing with other allocators than glibc's, or where the user's environment sets up glibc's.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc" in tunables or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:
        return False
    # Setting one of the two ends glibc's own adaptation of both.
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))
