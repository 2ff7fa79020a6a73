"""The log of TIA accesses as it is replayed: in step with the other lanes on a GPU.

An entry is cycles << 14 | register << 8 | value (`bus.py`). On a GPU, of the lanes that replay their logs
together only those within a line of the one furthest behind apply entries; a CPU's only lane always goes on.
"""

import numpy as np

from .jit import inlined
from .tia_writes import says_nothing_new
from .warp import on_gpu

END_OF_LOG, AFTER_LOG = 1 << 29, 1 << 30  # later than every cycle of a log


@inlined
def time_of(entry, place, over):
    """Return the cycle of the `entry` at a place of the log; at the log's end and behind it, a later one."""
    if place < over:
        return entry >> 14
    return np.int64(END_OF_LOG if place == over else AFTER_LOG)


@inlined
def is_due(time, bound):
    """Return whether a lane goes on; a CPU's only lane always does."""
    return not on_gpu() or time < bound


@inlined
def next_news(s, r, place, over, entry, following, telling, bound):
    """Skip entries that change nothing; stop at `over`, and on a GPU at cycle `bound`.

    `entry` is at `place`. Return the place and the entry there, and on a GPU the entry after it.
    """
    last = np.uint32(over - np.uint32(1))
    searching = on_gpu() and place < over
    while searching:
        # A branch would let a GPU's compiler move the load behind it, where its latency is not hidden.
        following = np.int64(s[min(np.uint32(place + np.uint32(1)), last)])
        nothing_new = says_nothing_new(r, entry >> 8 & 0x3F, entry & 0xFF, telling)
        skips = np.uint32(entry >> 14 < bound and nothing_new)
        entry ^= (entry ^ following) & -np.int64(skips)
        place = np.uint32(place + skips)
        searching = skips != 0 and place < over
    while not on_gpu() and place < over:
        entry = np.int64(s[place])
        if not says_nothing_new(r, entry >> 8 & 0x3F, entry & 0xFF, telling):
            break
        place = np.uint32(place + np.uint32(1))
    return place, entry, following
