"""A compiled test of saved states: whether all words are in their ranges, without saying which is not.

`state_check.py` has the same rules with the messages, which take ten times as long.
"""

import numpy as np

from .compiling.jit import separate, stand_alone
from .state import CART_BANK, LOGS, T_LAST, T_LEFT, T_LINE, T_START, T_STOP, TIA, TIA_WORDS


@separate("boolean(int32[:, ::1], uint32[:, :, ::1], int32[::1], uint32[::1], int64)")
def rows_fit(state, random, low, size, height):
    """Whether kernels can use saved rows.

    state: int32 [n, ROW_WORDS]. random: uint32 [n, 3, 625]. low, size: `Bounds` of the words [ROW_WORDS].
    """
    stand_alone()
    faults = np.int64(0)
    for e in range(len(state)):
        for word in range(len(low)):
            faults |= np.uint32(np.int64(state[e, word]) - np.int64(low[word])) > size[word]
        faults |= state[e, CART_BANK] % 4096
        for block in range(TIA, LOGS, TIA_WORDS):
            start, stop = np.int64(state[e, block + T_START]), np.int64(state[e, block + T_STOP])
            drawn = 228 * np.int64(state[e, block + T_LINE]) + 228 - state[e, block + T_LEFT]
            disagree = drawn != state[e, block + T_LAST] - start or stop - start != 228 * height
            faults |= disagree and stop != 0
        for stream in range(random.shape[1]):
            faults |= random[e, stream, 624] > 624
    return faults == 0
