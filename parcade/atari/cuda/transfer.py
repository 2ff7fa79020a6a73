"""Convert consoles between the two layouts: rows of `state.py` and the arrays of a device.

On a device, logs are not kept between kernels, because every frame is drawn by then, and the list of spans is
empty between steps. A row that moves to a device is settled in the same way; a row that comes back has empty
logs. Both continue identically.
"""

from __future__ import annotations

import numpy as np

from ..compiling.jit import kernel, stand_alone
from ..state import LOG_COUNT, LOG_DONE, PICTURE, ROW_WORDS, RULE_STACK, TIA, TIA_WORDS
from .layout import BLACK, KEPT, LIST_WORDS, OTHER, Consoles
from .rows import settle


@kernel
def _settle_many(state, screen):
    """Apply `rows.settle` to every row."""
    stand_alone()
    for e in range(len(state)):
        settle(state[e], screen[e])


def lasting_words(state: np.ndarray) -> np.ndarray:
    """Return the registers [LASTING_WORDS, n] of rows [n, ROW_WORDS]."""
    return np.ascontiguousarray(
        np.concatenate([state[:, :RULE_STACK], state[:, TIA : TIA + TIA_WORDS]], axis=1).T
    )


def rows_to_device(rows: dict[str, np.ndarray]) -> Consoles:
    """Convert rows to device arrays, without modifying the rows."""
    state = np.array(rows["state"], np.int32)
    screens = np.array(rows["screen"]).view(np.uint64)
    _settle_many(state, screens)
    if screens.shape[1]:
        screens = np.pad(screens, ((0, 0), (0, LIST_WORDS)))
    return Consoles(
        lasting_words(state), np.array(rows["memory"]), screens, np.array(rows["random"]).view(np.uint32)
    )


def rows_from_device(consoles: Consoles) -> dict[str, np.ndarray]:
    """Invert `rows_to_device` for arrays in host memory."""
    state = np.zeros((len(consoles.memory), ROW_WORDS), np.int32)
    state[:, :RULE_STACK] = consoles.registers[:RULE_STACK].T
    state[:, TIA : TIA + TIA_WORDS] = consoles.registers[RULE_STACK:].T
    # The live TIA has processed the complete log. The count remains: the replay of an unfinished frame ends
    # at the last entry.
    state[:, LOG_DONE] = state[:, LOG_COUNT]
    frame_words = max(consoles.screens.shape[1] - LIST_WORDS, 0)
    screen = np.ascontiguousarray(consoles.screens[:, :frame_words])
    return {"state": state, "memory": consoles.memory, "screen": screen, "random": consoles.random}


def captured_of(rows: dict[str, np.ndarray], second: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return captured frames uint64 [n, 3, words] in the CPU's layout; the third is unused between steps."""
    newest, other = _halves(rows)
    captured = np.zeros((len(newest), 3, newest.shape[1]), np.uint64)
    captured[:, 0] = newest
    captured[second == OTHER, 1] = other[second == OTHER]
    captured[second == KEPT, 1] = kept[second == KEPT]
    return captured


def places_of(rows: dict[str, np.ndarray], captured: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `second` [n] and `kept` [n, words] of captured frames.

    Errors: ValueError if the first captured frame is not the console's current frame.
    """
    newest, other = _halves(rows)
    strange = (captured[:, 0] != newest).any(axis=1)
    if strange.any():
        row = int(np.flatnonzero(strange)[0])
        raise ValueError(
            f"saved consoles: the captured frame of row {row} is not its console's current frame; "
            "expected a state between two steps"
        )
    second = np.full(len(newest), KEPT, np.uint8)
    second[(captured[:, 1] == other).all(axis=1)] = OTHER
    second[~captured[:, 1].any(axis=1)] = BLACK
    return second, np.ascontiguousarray(captured[:, 1])


def levels_of(captured: np.ndarray, tables: np.ndarray, *, pools: bool) -> np.ndarray:
    """Return levels uint64 [n, channels, words] of the newest image: the maximum of two frames if pooled."""
    shown = captured[:, : 2 if pools else 1].view(np.uint8)
    levels = np.stack([table[shown].max(axis=1) for table in tables], axis=1) if len(tables) else shown[:, :0]
    return np.ascontiguousarray(levels).view(np.uint64)


def _halves(rows: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return each console's newest frame and the other frame buffer, uint64 [n, words]."""
    n, words = rows["screen"].shape
    screens = rows["screen"].view(np.uint64).reshape(n, 2, words // 2)
    newest = rows["state"][:, PICTURE]
    each = np.arange(len(screens))
    return screens[each, newest], screens[each, 1 - newest]
