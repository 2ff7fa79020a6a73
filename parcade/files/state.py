"""Saved states: flat dicts of arrays. The names of a part start with its prefix, e.g. ``group.lives``."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def part_of(state: dict[str, T], prefix: str) -> dict[str, T]:
    """Return the entries whose names start with the prefix, with the prefix removed."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def behind(prefix: str, part: dict[str, T]) -> dict[str, T]:
    """Return the part with the prefix added to its names; the inverse of ``part_of``."""
    return {prefix + name: value for name, value in part.items()}
