"""Consoles on their way between the two layouts: rows of `state.py`, and the arrays of `engine_cuda.py`.

On the device a console's logs are gone between two frames, because everything they were kept for has been drawn. On
its way there a row is settled the same way; on its way back it has empty logs. Either goes on identically.
"""

from __future__ import annotations

import numpy as np

from .cuda_kernels import LASTING_WORDS, settle
from .jit import kernel, stand_alone
from .state import LOG_COUNT, LOG_DONE, ROW_WORDS


@kernel
def settle_many(state, screen):
    """`cuda_kernels.settle` on every row."""
    stand_alone()
    for e in range(len(state)):
        settle(state[e], screen[e])


def rows_to_device(rows: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """registers, memory, screen and random of rows; the rows are left as they are."""
    state = np.array(rows["state"], np.int32)
    screen = np.array(rows["screen"]).view(np.uint64)
    settle_many(state, screen)
    random = np.array(rows["random"]).view(np.uint32)
    return np.ascontiguousarray(state[:, :LASTING_WORDS].T), np.array(rows["memory"]), screen, random


def rows_from_device(
    registers: np.ndarray, memory: np.ndarray, screen: np.ndarray, random: np.ndarray
) -> dict[str, np.ndarray]:
    """The inverse of `rows_to_device`."""
    state = np.zeros((len(memory), ROW_WORDS), np.int32)
    state[:, :LASTING_WORDS] = registers.T
    # All of the log has been taken in. The count stays: a frame under way ends its replay with its last entry.
    state[:, LOG_DONE] = state[:, LOG_COUNT]
    return {"state": state, "memory": memory, "screen": screen, "random": random}
