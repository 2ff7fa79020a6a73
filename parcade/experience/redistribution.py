"""Saved environments on another number of ranks: their states joined in the run's order, and divided again.

An environment draws its random numbers by its index in the run (``random``), so it plays the same episodes on
whichever rank it continues.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from parcade.experience.episodes import ENV
from parcade.experience.group_states import State, joined, parted
from parcade.experience.source import Source
from parcade.files.state import behind, part_of

GROUP = re.compile(r"((?:group|lane)(\d*))\.env_steps")
"""A name in the saved state of every group of environments."""
SHARED = ("generation", "samples")
"""Counters of sources that are equal on all ranks."""


@dataclass(frozen=True)
class Saved:
    """The sources of a checkpoint, of all its ranks.

    ``read(rank, wanted)`` returns the arrays of a rank's source whose names are ``wanted``.
    """

    ranks: int
    num_envs: int
    read: Callable[[int, Callable[[str], bool]], State]


def state_for(source: Source, rank: int, world_size: int, saved: Saved) -> State:
    """Return what a rank's source continues from: its share of the saved environments, and counters.

    Steps that were played but not learned from are left out, and so is a replay. The first rank gets the
    sums of the counters.
    """
    per_rank = saved.num_envs // world_size
    whole = _environments(saved, rank * per_rank, per_rank)
    frames, cut_games = _sums(saved) if rank == 0 else (np.zeros(2, np.int64), 0)
    whole["counters"] = frames
    state: State = {"turn": np.int64(0), "cut_games": np.int64(cut_games)}
    state |= saved.read(0, SHARED.__contains__)
    parts = parted(whole, [len(group) for group in source.groups])
    for name, part in zip(source.group_names, parts, strict=True):
        state |= behind(f"{name}.", part)
    return state


def _environments(saved: Saved, first: int, count: int) -> State:
    """Return the joined state of environments ``first .. first + count - 1`` of the run."""
    per_rank = saved.num_envs // saved.ranks
    holders = range(first // per_rank, (first + count - 1) // per_rank + 1)
    whole = joined([group for holder in holders for group in _groups_of(saved.read(holder, _is_of_a_group))])
    rows = whole["log.new"]
    begin = first - holders.start * per_rank
    _, mine, _ = parted(whole, [begin, count, len(holders) * per_rank - begin - count])
    mine["log.new"] = rows[(first <= rows[:, ENV]) & (rows[:, ENV] < first + count)]
    return mine


def _sums(saved: Saved) -> tuple[np.ndarray, int]:
    """Return frames and reset frames ``[2]``, and the number of cut episodes, over all ranks."""
    frames, cut_games = np.zeros(2, np.int64), 0
    for rank in range(saved.ranks):
        counters = saved.read(rank, lambda name: name == "cut_games" or name.endswith(".counters"))
        cut_games += int(counters.pop("cut_games"))
        frames += sum(counters.values())
    return frames, cut_games


def _is_of_a_group(name: str) -> bool:
    return name.startswith(("group", "lane"))


def _groups_of(state: State) -> list[State]:
    """Return the states of a source's groups, in order."""
    found = [match for name in state if (match := GROUP.fullmatch(name))]
    in_order = sorted(found, key=lambda match: int(match[2] or 0))
    return [part_of(state, f"{match[1]}.") for match in in_order]
