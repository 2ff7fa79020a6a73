"""Saved states of groups of environments, joined into that of one group and divided again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

State = dict[str, Any]


def joined(states: Sequence[State]) -> dict[str, np.ndarray | Tensor]:
    """Join the states of groups into the state of one group of all their environments, in order."""
    if len(states) == 1:
        return dict(states[0])
    whole: dict[str, np.ndarray | Tensor] = {}
    for name in states[0]:
        parts = [np.asarray(state[name]) for state in states]
        whole[name] = (
            sum(parts) if name == "counters" else np.concatenate(parts, axis=int(name == "policy_state"))
        )
    return whole


def parted(state: State, sizes: Sequence[int]) -> list[dict[str, np.ndarray]]:
    """Inverse of ``joined`` for groups of these sizes. Values not per environment go to the first."""
    edges = np.cumsum(sizes)[:-1]
    parts: list[dict[str, np.ndarray]] = [{} for _ in sizes]
    for name, value in state.items():
        if name == "counters":
            portions = [value, *(np.zeros_like(value) for _ in sizes[1:])]
        elif name == "log.new":
            portions = [value, *(value[:0] for _ in sizes[1:])]
        else:
            portions = np.split(value, edges, axis=int(name == "policy_state"))
        for part, portion in zip(parts, portions, strict=True):
            part[name] = portion
    return parts
