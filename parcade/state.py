"""Saved states: flat dicts of arrays, in which a part's names stand behind the part's prefix, e.g. ``group.lives``."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def part_of(state: dict[str, T], prefix: str) -> dict[str, T]:
    """What stands behind the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def behind(prefix: str, part: dict[str, T]) -> dict[str, T]:
    """A part's state with its prefix: the inverse of ``part_of``."""
    return {prefix + name: value for name, value in part.items()}
