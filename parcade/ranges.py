"""Types and ranges of settings, declared in the type of the field that they constrain.

A frozen dataclass declares ``num_envs: Count = 32`` and calls ``check_ranges(self)`` in ``__post_init__``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import reprlib
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any

import numpy as np

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
            bounds = f"{'(' if self.is_open else '['}{self.low:g}, {self.high:g}]"
            raise UsageError(f"{name}={value} is not in {bounds}; use a number between these")
        if value < self.low:
            raise UsageError(f"{name}={value} is below {self.low:g}; use {self.low:g} or more")


Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Positive = Annotated[float, Range(0, is_open=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
PositiveFraction = Annotated[float, Range(0, 1, is_open=True)]

# Networks, optimisers and returns compute in float32, whose largest number is 3.4e38.
LARGEST = 1e30
# Counters, file formats and tensors hold integers of 64 bits.
LARGEST_INTEGER = 2**63 - 1


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return an argument of a function as an int. Errors: UsageError unless it is an integer in the range."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise UsageError(f"{name}={value!r} is not an integer; use an integer, {low} or more")
    Range(low, high).check(name, int(value))
    return int(value)


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


@functools.cache
def types_of(settings: type) -> dict[str, tuple[Any, ...]]:
    """The types that each field of a dataclass accepts: the members of a union, without ranges."""
    hints = typing.get_type_hints(settings)
    unions = (typing.Union, types.UnionType)
    return {
        field.name: typing.get_args(hint) if typing.get_origin(hint) in unions else (hint,)
        for field in dataclasses.fields(settings)
        for hint in [hints[field.name]]
    }


def check_ranges(settings: Any) -> None:
    """Check that fields have their type, are finite and in their range; None is in every range.

    NumPy scalars, and whole numbers written as floats, become plain Python numbers. Errors: UsageError.
    """
    ranges = ranges_of(type(settings))
    for name, accepted in types_of(type(settings)).items():
        given = getattr(settings, name)
        value = _plain(name, given, accepted)
        if value is not given:
            object.__setattr__(settings, name, value)
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{name}={value} is not finite; use a finite number")
        if float in accepted and value is not None and abs(value) > LARGEST:
            raise UsageError(f"{name}={reprlib.repr(value)} is beyond {LARGEST:g}; use a smaller number")
        if name in ranges and value is not None:
            ranges[name].check(name, value)
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise UsageError(f"{name}={reprlib.repr(value)} is beyond 2**63 - 1; use a smaller number")


def _plain(name: str, value: Any, accepted: tuple[Any, ...]) -> Any:
    """Return the value as one of the accepted types. Errors: UsageError if it is none of them."""
    for kind in accepted:
        for plain in _as(kind, value):
            return plain
    raise UsageError(f"{name}={reprlib.repr(value)}: expected {in_words(accepted)}")


def _as(kind: Any, value: Any) -> Iterator[Any]:
    """Yield the value as a plain Python object of a type, or nothing if it is of another type."""
    is_truth = isinstance(value, (bool, np.bool_))
    if kind is bool:
        yield from [bool(value)] if is_truth else []
    elif kind is int:
        is_whole = isinstance(value, float) and value.is_integer()
        yield from [int(value)] if is_whole or (isinstance(value, Integral) and not is_truth) else []
    elif kind is float:
        is_number = isinstance(value, Real) and not is_truth
        yield from [value if type(value) in (int, float) else float(value)] if is_number else []
    elif typing.get_origin(kind) is typing.Literal:
        yield from [value] if isinstance(value, str) and value in typing.get_args(kind) else []
    elif typing.get_origin(kind) is tuple:
        parts = list(value) if isinstance(value, list | tuple) else [None]
        plain = [each for part in parts for each in _as(typing.get_args(kind)[0], part)]
        yield from [tuple(plain)] if len(plain) == len(parts) else []
    elif isinstance(value, kind):
        yield value


def in_words(accepted: tuple[Any, ...]) -> str:
    """Return the types that a field accepts (``types_of``) for a message: ``an integer or None``."""
    return " or ".join(_in_words(kind) for kind in accepted)


def _in_words(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        *others, last = map(repr, typing.get_args(kind))
        return f"{', '.join(others)} or {last}" if others else last
    if typing.get_origin(kind) is tuple:
        return "a sequence, each " + _in_words(typing.get_args(kind)[0])
    words = {int: "an integer", float: "a number", bool: "True or False", str: "a string", type(None): "None"}
    return words.get(kind, kind.__name__)
