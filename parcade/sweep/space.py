"""The space of a sweep: which settings vary, and over which values.

    learning_rate=log:1e-4..1e-2    a number between two bounds, here with a uniform logarithm
    epochs=1..4                     the same; whole, because the setting is an integer
    num_minibatches=2,4,8           one of a list

Names and types are those of the dataclasses from which the algorithm's flags are made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal, get_args, get_origin

import numpy as np

from parcade.algorithms.table import algorithm_row
from parcade.config import TopologyConfig, TrainConfig
from parcade.errors import UsageError, unknown_name
from parcade.files.reading import fits
from parcade.ranges import types_of

Value = bool | int | float | str | None
DIGITS = 4
"""Significant digits of a drawn real number, so that commands stay readable. Narrow spans have more."""


@dataclass(frozen=True)
class Span:
    """Numbers from ``low`` to ``high``, both included. ``log``: the logarithm is uniform."""

    name: str
    low: float
    high: float
    log: bool
    whole: bool

    @property
    def ends(self) -> tuple[Value, ...]:
        """The values to check before a sweep starts."""
        return (self.low, self.high)

    def at(self, share: float) -> Value:
        """Return the value below which a ``share`` in [0, 1) of the span lies."""
        high = self.high + 1 if self.whole else self.high
        if self.log:
            number = math.exp(math.log(self.low) + share * (math.log(high) - math.log(self.low)))
        else:
            number = self.low + share * (high - self.low)
        return self.readable(number)

    def readable(self, number: float) -> Value:
        """Return a number of the span with few digits."""
        number = math.floor(number) if self.whole else float(f"{number:.{self._digits}g}")
        return min(max(number, self.low), self.high)

    @property
    def _digits(self) -> int:
        """Significant digits that tell at least some 900 numbers of the span apart."""
        largest = max(abs(self.low), abs(self.high))
        return DIGITS + max(0, math.floor(math.log10(largest / (self.high - self.low))) - 1)

    def has(self, value: Any) -> bool:
        """Return whether a value of a file is one of the span."""
        return fits(value, int if self.whole else float) and self.low <= value <= self.high

    def coordinate(self, value: Any) -> float:
        """Return the value on the axis on which it is drawn uniformly."""
        return math.log(value) if self.log else float(value)

    def distribution(self) -> Any:
        """Return Optuna's form."""
        from optuna import distributions as d

        kind = d.IntDistribution if self.whole else d.FloatDistribution
        return kind(self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    name: str
    values: tuple[Value, ...]

    @property
    def ends(self) -> tuple[Value, ...]:
        """The values to check before a sweep starts."""
        return self.values

    def at(self, share: float) -> Value:
        """Return the value below which a ``share`` in [0, 1) of the list lies."""
        return self.values[int(share * len(self.values))]

    def readable(self, value: Value) -> Value:
        """Return the value itself."""
        return value

    def has(self, value: Any) -> bool:
        """Return whether a value of a file is in the list."""
        return value in self.values

    def coordinate(self, value: Value) -> float:
        """Return the value's place in the list."""
        return float(self.values.index(value))

    def distribution(self) -> Any:
        """Return Optuna's form."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)


Axis = Span | Choice
Space = dict[str, Axis]


def parse_space(words: tuple[str, ...], config: TrainConfig) -> Space:
    """Return the axes of words such as ``gamma=0.9..0.999``, for the algorithm of a config.

    Errors: UsageError for other words, unknown settings, values of another type, and bounds in wrong order.
    """
    settings = settings_of(config)
    space: Space = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if not equals or not name or not values.strip():
            raise UsageError(
                f"space {word!r} is not NAME=VALUES; "
                "use e.g. learning_rate=log:1e-4..1e-2, epochs=1..4 or num_minibatches=2,4,8"
            )
        if name not in settings:
            raise unknown_name(f"setting of {config.run.algorithm} in --space", name, settings)
        if name in space:
            raise UsageError(f"setting {name} is in --space twice; give all its values once")
        space[name] = _axis(name, values.strip(), settings[name])
    if not space:
        raise UsageError("no --space given; use e.g. --space learning_rate=log:1e-4..1e-2 epochs=1..4")
    return space


def settings_of(config: TrainConfig) -> dict[str, tuple[Any, ...]]:
    """Return the settings that a sweep of this algorithm may vary, with the types they accept."""
    sources = [type(config.hyper), type(config.hyper.network)]
    sources += [TopologyConfig] if algorithm_row(config.run.algorithm).topology else []
    found = {name: types for source in sources for name, types in types_of(source).items()}
    return {name: types for name, types in found.items() if not any(map(is_dataclass, types))}


def _axis(name: str, values: str, types: tuple[Any, ...]) -> Axis:
    log, bounds = values.startswith("log:"), values.removeprefix("log:").split("..")
    if len(bounds) == 2 and {int, float} & set(types):
        return _span(name, bounds, log=log, whole=float not in types)
    if log or len(bounds) > 1:
        wanted = "LOW..HIGH" if {int, float} & set(types) else "a list of values, since it is no number"
        raise UsageError(f"space {name}={values}: expected {wanted}; use e.g. {name}={_example(types)}")
    choices = tuple(_value(name, word.strip(), types) for word in values.split(","))
    if len(set(choices)) < len(choices):
        raise UsageError(f"space {name}={values} lists a value twice; list each once")
    return Choice(name, choices)


def _span(name: str, bounds: list[str], *, log: bool, whole: bool) -> Span:
    low, high = (_value(name, word.strip(), (int if whole else float,)) for word in bounds)
    assert isinstance(low, int | float) and isinstance(high, int | float)
    scale = "log:" if log else ""
    if low == high:
        raise UsageError(f"space {name}={low}..{high} is one value; use {name}={low}")
    if not low < high:
        raise UsageError(
            f"space {name}={scale}{low}..{high}: expected LOW below HIGH; use {name}={scale}{high}..{low}"
        )
    if log and low <= 0:
        raise UsageError(f"space {name}=log:{low}..{high}: a logarithm needs LOW above 0; leave out log:")
    return Span(name, low, high, log=log, whole=whole)


def _value(name: str, word: str, types: tuple[Any, ...]) -> Value:
    """Return a word as a value of the first type that accepts it. Errors: UsageError."""
    for kind in types:
        if kind is type(None) and word.lower() == "none":
            return None
        if kind is bool and word.lower() in ("true", "false"):
            return word.lower() == "true"
        if kind in (int, float):
            try:
                number = float(word)
            except ValueError:
                continue
            if math.isfinite(number) and (kind is float or number.is_integer()):
                return kind(number)
        if kind is str and word or (get_origin(kind) is Literal and word in get_args(kind)):
            return word
    raise UsageError(f"space {name}: {word!r} is no value of this setting; use e.g. {name}={_example(types)}")


def _example(types: tuple[Any, ...]) -> str:
    """Return values of a setting of these types, as a user would write them."""
    for kind in types:
        if get_origin(kind) is Literal:
            return ",".join(get_args(kind))
    return (
        "0.1..0.9" if float in types else "1..4" if int in types else "true,false" if bool in types else "A,B"
    )


def random_settings(space: Space, *, seed: int, number: int) -> dict[str, Value]:
    """Draw the settings of a trial. They depend on the seed and the trial's number only."""
    shares = np.random.default_rng([seed, number]).random(len(space))
    return {name: axis.at(share) for (name, axis), share in zip(space.items(), shares, strict=True)}


def flags_of(settings: dict[str, Value]) -> list[str]:
    """Return the settings as flags of ``parcade train``."""
    return [_flag(name.replace("_", "-"), value) for name, value in settings.items()]


def _flag(name: str, value: Value) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"
