"""Ranges of settings, declared in the type of the field that they constrain.

A frozen dataclass declares ``num_envs: Count = 32`` and calls ``check_ranges(self)`` in ``__post_init__``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from dataclasses import dataclass
from typing import Annotated, Any

from parcade.errors import UsageError


@dataclass(frozen=True)
class Range:
    """Numbers from ``low``, to ``high`` if there is one; ``low`` itself is excluded if ``is_open``."""

    low: float
    high: float | None = None
    is_open: bool = False

    def check(self, name: str, value: float) -> None:
        """Errors: UsageError of one line, if the value is outside."""
        if self.is_open and value <= self.low:
            raise UsageError(f"{name}={value} is not above {self.low:g}; use a positive number")
        if self.high is not None and isinstance(value, int) and value > self.high:
            raise UsageError(f"{name}={value:,} is above {self.high:,}; use {self.high:,} or less")
        if self.high is not None and isinstance(value, float) and not self.low <= value <= self.high:
            bounds = f"[{self.low:g}, {self.high:g}]"
            raise UsageError(f"{name}={value} is not in {bounds}; use a number between these")
        if value < self.low:
            raise UsageError(f"{name}={value} is below {self.low:g}; use {self.low:g} or more")


Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
Positive = Annotated[float, Range(0, is_open=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]


@functools.cache
def ranges_of(settings: type) -> dict[str, Range]:
    """The declared ranges of a dataclass, by field."""
    found: dict[str, Range] = {}
    for name, hint in typing.get_type_hints(settings, include_extras=True).items():
        for part in (hint, *typing.get_args(hint)):  # the hint itself, or the members of a union
            for extra in getattr(part, "__metadata__", ()):
                if isinstance(extra, Range):
                    found[name] = extra
    return found


def check_ranges(settings: Any) -> None:
    """Check that numbers are finite and in their range; None is in every range. Errors: UsageError."""
    ranges = ranges_of(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{field.name}={value} is not finite; use a finite number")
        if field.name in ranges and value is not None:
            ranges[field.name].check(field.name, value)
