"""Consoles on their way between the two layouts: rows of `state.py`, and the arrays of a device.

On the device a console's logs are gone between two frames, because everything they were kept for has been drawn or can be
played again. On its way there a row is settled; on its way back it has empty logs, or those of the frames that were played
again for its pictures. Either goes on identically.
"""

from __future__ import annotations

import numpy as np

from .. import mt19937
from ..jit import kernel, stand_alone
from ..state import IN_SWCHA, LOG_COUNT, LOG_DONE, ROW_WORDS, RULE_STACK, STICKY_STREAM, TIA, TIA_WORDS
from . import history
from .environments import CONTROL_WORDS, NOT_WHOLE, bring_pictures
from .rows import settle


@kernel
def settle_many(state, screen):
    """`rows.settle` on every row."""
    stand_alone()
    for e in range(len(state)):
        settle(state[e], screen[e])


def lasting_words(state: np.ndarray) -> np.ndarray:
    """Registers [LASTING_WORDS, n] of rows [n, ROW_WORDS]."""
    return np.ascontiguousarray(np.concatenate([state[:, :RULE_STACK], state[:, TIA : TIA + TIA_WORDS]], axis=1).T)


def rows_to_device(rows: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """registers, memory, screen and random of rows; the rows are left as they are."""
    state = np.array(rows["state"], np.int32)
    screen = np.array(rows["screen"]).view(np.uint64)
    settle_many(state, screen)
    random = np.array(rows["random"]).view(np.uint32)
    return lasting_words(state), np.array(rows["memory"]), screen, random


def rows_from_device(
    registers: np.ndarray, memory: np.ndarray, screen: np.ndarray, random: np.ndarray
) -> dict[str, np.ndarray]:
    """The inverse of `rows_to_device`."""
    state = np.zeros((len(memory), ROW_WORDS), np.int32)
    state[:, :RULE_STACK] = registers[:RULE_STACK].T
    state[:, TIA : TIA + TIA_WORDS] = registers[RULE_STACK:].T
    # All of the log has been taken in. The count stays: a frame under way ends its replay with its last entry.
    state[:, LOG_DONE] = state[:, LOG_COUNT]
    return {"state": state, "memory": memory, "screen": screen, "random": random}


@kernel
def _find_origins(random, sticky, stream, found_out):
    stand_alone()
    for e in range(len(random)):
        for k in range(3):
            if k == STICKY_STREAM and not sticky:
                continue
            for i in range(625):
                stream[i] = random[e, k, i]
            mt19937.origin(stream, found_out[k, e])


def origins(random: np.ndarray, *, sticky: bool) -> np.ndarray:
    """Seeds and numbers of draws, int64 [2, 3, n], of generators [n, 3, 625]; those of sticky actions only if asked for.

    Errors: ValueError for one that no seed leads to.
    """
    found = np.zeros((3, len(random), 2), np.int64)
    _find_origins(random, sticky, np.zeros(625, np.uint32), found)
    if (found[..., 0] < 0).any():
        row = int(np.argwhere(found[..., 0] < 0)[0, 1])
        raise ValueError(f"saved consoles: a generator of row {row} is none that a seed gives in 62 million numbers; expected ale-py's")
    return np.moveaxis(found, -1, 0)


@kernel
def _make_streams(seeds, draws, random_out):
    stand_alone()
    for e in range(len(random_out)):
        for k in range(3):
            mt19937.restore(random_out[e, k], np.int64(seeds[k, e]), np.int64(draws[k, e]))


def streams_of(seeds: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Generators uint32 [n, 3, 625] from seeds and draws [3, n]."""
    random = np.zeros((seeds.shape[1], 3, 625), np.uint32)
    _make_streams(seeds, draws, random)
    return random


@kernel
def _play_again(state, memory, rom, screen, captured, controls, past, whole):
    stand_alone()
    for e in range(len(state)):
        if whole[e] != NOT_WHOLE:
            history.recall(e, state[e], memory[e], past)
            bring_pictures(state[e], memory[e], rom, screen[e], captured[e], controls[e], np.int64(whole[e]))


def rows_with_pictures(
    registers: np.ndarray, memory: np.ndarray, random: np.ndarray, past: np.ndarray, whole: np.ndarray,
    slot_of: np.ndarray, screens: np.ndarray, captured: np.ndarray, rom: np.ndarray,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Rows and captured pictures [n, 3, words] of an environment's consoles: played again, or from their slots."""  # fmt: skip
    slots = np.maximum(slot_of, 0)
    lack = (slot_of < 0) | (whole != NOT_WHOLE)
    own_screens, own_captured = screens[slots], captured[slots]
    own_screens[lack] = 0
    own_captured[lack] = 0
    rows = rows_from_device(registers, memory, own_screens, random)
    controls = rows["state"][:, IN_SWCHA : IN_SWCHA + CONTROL_WORDS].copy()
    _play_again(rows["state"], rows["memory"], rom, own_screens, own_captured, controls, past, whole)
    return rows, own_captured
