"""How the last two frames began, so that they can be played again for their pictures.

A console without pictures (`environments.py`) keeps the chips as they stood when the last frame but one began. From there two
updates, the second with the controls of today, draw both pictures and end in the console as it is. That holds where `is_whole`
says so: two frames ran, each began and ended in one update, and neither ended above the last line, where the picture of an older
frame would be seen.

Rows that are longer than ROW_WORDS have a *record* behind them: the number of updates, and for each of the two pictures the
number of the update that began on it, chip words, TIA words and memory as they stood before.
"""

import numpy as np

from ..jit import inlined, kernel, stand_alone
from ..state import CHIP_WORDS, MEMORY_BYTES, PARTIAL, PICTURE, RECENT_CUTS, ROW_WORDS, TIA, TIA_WORDS

MEMORY_WORDS = MEMORY_BYTES // 4
PAST_WORDS = CHIP_WORDS + TIA_WORDS + MEMORY_WORDS
UPDATES = ROW_WORDS  # updates since the record was cleared
ENTRIES = UPDATES + 1
ENTRY_WORDS = 1 + PAST_WORDS
RECORD_WORDS = 1 + 2 * ENTRY_WORDS


@inlined
def clear(s):
    """Forget all frames; a record that has never been cleared may hold anything."""
    s[UPDATES] = 0
    s[ENTRIES] = 0
    s[ENTRIES + ENTRY_WORDS] = 0


@kernel
def remember(s, memory):
    """Note the beginning of an update, and the console if a frame begins with it."""
    stand_alone()
    s[UPDATES] += 1
    if s[PARTIAL] != 0:
        return
    at = ENTRIES + np.int64(s[PICTURE]) * ENTRY_WORDS
    s[at] = s[UPDATES]
    at += 1
    for i in range(CHIP_WORDS):
        s[at + i] = s[i]
    at += CHIP_WORDS
    for i in range(TIA_WORDS):
        s[at + i] = s[TIA + i]
    at += TIA_WORDS
    for i in range(MEMORY_WORDS):
        low = np.int64(memory[4 * i]) | np.int64(memory[4 * i + 1]) << 8
        s[at + i] = np.int32(np.uint32(low | np.int64(memory[4 * i + 2]) << 16 | np.int64(memory[4 * i + 3]) << 24))


@kernel
def is_whole_frame(s, ago):
    """Whether the update that was the last one (`ago` 0) or the one before (1) was a frame that showed nothing of older ones."""
    stand_alone()
    # A frame begins on the picture that is not yet its own.
    picture = np.int64(s[PICTURE]) if ago == 1 else 1 - np.int64(s[PICTURE])
    began = np.int64(s[ENTRIES + picture * ENTRY_WORDS])
    return began > 0 and began == np.int64(s[UPDATES]) - ago and s[PARTIAL] == 0 and s[RECENT_CUTS] >> ago & 1 == 0


@inlined
def is_whole(s):
    """Whether both were."""
    return is_whole_frame(s, np.int64(0)) and is_whole_frame(s, np.int64(1))


@kernel
def keep(e, s, past):
    """The beginning of the last frame but one into `past` int32 [PAST_WORDS, n]."""
    stand_alone()
    at = ENTRIES + np.int64(s[PICTURE]) * ENTRY_WORDS + 1
    for i in range(PAST_WORDS):
        past[i, e] = s[at + i]


@kernel
def recall(e, s, memory, past):
    """Chips and memory as `keep` found them; all else stays."""
    stand_alone()
    for i in range(CHIP_WORDS):
        s[i] = past[i, e]
    for i in range(TIA_WORDS):
        s[TIA + i] = past[CHIP_WORDS + i, e]
    for i in range(MEMORY_WORDS):
        word = np.int64(past[CHIP_WORDS + TIA_WORDS + i, e])
        for k in range(4):
            memory[4 * i + k] = np.uint8(word >> (8 * k) & 0xFF)
