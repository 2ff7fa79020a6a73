"""Rates as functions of size: a line, Amdahl's law and Gunther's law, with ranges over repeats. Pure maths.

Notation: n is the size (cores or ranks), X(n) the rate, lambda the rate at size 1, sigma the serial share
(contention), and kappa the cost of keeping every pair consistent (coherency).

- line: X(n) = a + b n
- Amdahl 1967, "Validity of the single processor approach": X(n) = lambda n / (1 + sigma (n - 1))
- Gunther 1993, "A simple capacity model for massively parallel transaction systems" (the universal
  scalability law): X(n) = lambda n / (1 + sigma (n - 1) + kappa n (n - 1))                              (1)

The reciprocal of (1) is linear: n / X(n) = 1/lambda + (sigma/lambda) (n - 1) + (kappa/lambda) n (n - 1). The
fit is therefore a non-negative least-squares problem with a unique solution and without a starting point.
Rows are scaled by X/n, so that the fit minimises relative errors. Otherwise the largest size would dominate.

The range of a fit shows its uncertainty. Sizes are measured in turn, so the k-th repeats of all sizes form
one complete measurement, which is fitted separately. Three repeats are too few for a 90 % interval; see
``range_holds``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LARGEST_SIZE = 10_000_000
"""Sizes beyond it, in cores or ranks, are no answer."""
ROUNDING = 1e-9
"""Relative error of a predicted rate, so that ``size_for(predict(n))`` is n."""

Samples = Mapping[int, Sequence[float]]
"""Measured rates by size, one per repeat."""


@dataclass(frozen=True)
class CurveFit:
    """One curve fitted to the samples.

    | field | meaning |
    |---|---|
    | parameters | by name, fitted to the median rates |
    | repeats | ``[R, k]`` parameters of each repeat with a finite fit, fitted separately; 0 or at least 2 |
    | error | mean relative residual over sizes |

    Parameters are bounded, so the fit to the medians may be outside the range of the repeats.
    """

    name: str
    parameters: dict[str, float]
    repeats: np.ndarray
    error: float

    def predict(self, n: float) -> float:
        """Return the rate at size n."""
        return CURVES[self.name].rate(n, *self.parameters.values())

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Minimum and maximum of each parameter over the repeats; empty without repeats."""
        columns = zip(self.parameters, self.repeats.T, strict=True) if len(self.repeats) else ()
        return {name: (float(values.min()), float(values.max())) for name, values in columns}

    def range_at(self, n: float) -> tuple[float, float] | None:
        """Return the lowest and highest rate at size n over the repeats; None without repeats."""
        rates = [float(CURVES[self.name].rate(n, *row)) for row in self.repeats]
        return (min(rates), max(rates)) if rates else None

    @property
    def peak(self) -> float | None:
        """The size with the highest rate; None if the rate does not fall up to ``LARGEST_SIZE``."""
        kappa = self.parameters.get("kappa", 0.0)
        rise = max(1.0 - self.parameters.get("sigma", 0.0), 0.0)
        if kappa * LARGEST_SIZE**2 > rise:  # the derivative of (1) has the sign of 1 - sigma - kappa n^2
            return max(1.0, math.sqrt(rise / kappa))
        return None if self.reaches(self.predict(1), 2) else 1.0  # the rate falls from the start

    def reaches(self, rate: float, n: float) -> bool:
        """Return whether the rate at size n is at least this one, but for rounding."""
        return self.predict(n) >= rate * (1 - ROUNDING)

    def size_for(self, rate: float) -> int | None:
        """Return the smallest size with at least this rate; None if the curve never reaches it."""
        end = LARGEST_SIZE
        if self.peak is not None:
            end = min(LARGEST_SIZE, max(math.floor(self.peak), math.ceil(self.peak), key=self.predict))
        if self.reaches(rate, 1):
            return 1  # also of curves that only fall
        if not self.reaches(rate, end):
            return None
        low, high = 0, end
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.reaches(rate, middle) else (middle, high)
        return high


@dataclass(frozen=True)
class Curve:
    """A family of curves: its rate, its fit, and the names of its parameters, one size needed for each."""

    rate: Callable[..., float]
    fit: Callable[[np.ndarray, np.ndarray], tuple[float, ...]]
    names: tuple[str, ...]


def _fit_line(n: np.ndarray, rates: np.ndarray) -> tuple[float, ...]:
    weights = 1.0 / rates
    return tuple(np.linalg.lstsq(np.stack([weights, n * weights], 1), np.ones(len(n)), rcond=None)[0])


def _fit_reciprocal(n: np.ndarray, rates: np.ndarray, columns: list[np.ndarray]) -> tuple[float, ...]:
    """Fit n / X(n), which is linear in the columns after 1."""
    from scipy.optimize import nnls

    rows = np.stack([np.ones(len(n)), *columns], 1) * (rates / n)[:, None]
    theta = nnls(rows, np.ones(len(n)))[0]
    return (1.0 / theta[0], *(theta[1:] / theta[0])) if theta[0] > 0 else (math.inf, *theta[1:])


CURVES: dict[str, Curve] = {
    "line": Curve(lambda n, a, b: a + b * n, _fit_line, ("a", "b")),
    "amdahl": Curve(
        lambda n, lam, sigma: lam * n / (1 + sigma * (n - 1)),
        lambda n, rates: _fit_reciprocal(n, rates, [n - 1]),
        ("lambda", "sigma"),
    ),
    "usl": Curve(
        lambda n, lam, sigma, kappa: lam * n / (1 + sigma * (n - 1) + kappa * n * (n - 1)),  # eq. 1
        lambda n, rates: _fit_reciprocal(n, rates, [n - 1, n * (n - 1)]),
        ("lambda", "sigma", "kappa"),
    ),
}


def range_holds(repeats: int) -> float:
    """Return the probability that the range of independent repeats contains the population median.

    Each repeat is above or below the median with equal probability. The range misses the median only if all
    repeats are on the same side.
    """
    return 1 - 0.5 ** (repeats - 1)


def fit(name: str, samples: Samples) -> CurveFit:
    """Fit a curve to the median rate of every size, and separately to each repeat that all sizes have.

    Errors: ValueError for fewer sizes than the curve has parameters.
    """
    curve = CURVES[name]
    if len(samples) < len(curve.names):
        raise ValueError(f"{name} needs {len(curve.names)} sizes, got {len(samples)}")
    n = np.array(sorted(samples), np.float64)
    rates = [samples[size] for size in sorted(samples)]
    medians = np.array([np.median(values) for values in rates])
    values = curve.fit(n, medians)
    whole = [curve.fit(n, np.array(row)) for row in zip(*rates, strict=False)]
    finite = [parameters for parameters in whole if all(map(math.isfinite, parameters))]
    repeats = np.array(finite if len(finite) > 1 else [])
    fitted = np.array([curve.rate(size, *values) for size in n])
    parameters = {key: float(value) for key, value in zip(curve.names, values, strict=True)}
    return CurveFit(name, parameters, repeats, float(np.mean(np.abs(fitted / medians - 1))))


def fit_all(samples: Samples) -> dict[str, CurveFit]:
    """Fit every curve for which there are enough sizes. A fit without a finite rate at size 1 is left out."""
    fits = {name: fit(name, samples) for name, curve in CURVES.items() if len(samples) >= len(curve.names)}
    return {name: found for name, found in fits.items() if all(map(math.isfinite, found.parameters.values()))}


def speed_up(samples: Samples) -> dict[int, float]:
    """Return the median rate of every size over that of the smallest."""
    smallest = min(samples)
    return {n: float(np.median(samples[n]) / np.median(samples[smallest])) for n in sorted(samples)}


def efficiency(samples: Samples) -> dict[int, float]:
    """Return the speed-up of every size over its ratio to the smallest size: 1 is perfect scaling."""
    smallest = min(samples)
    return {n: value * smallest / n for n, value in speed_up(samples).items()}


def turning_size(samples: Samples) -> int | None:
    """Return the size with the highest median rate, if all larger sizes are slower by more than the spread.

    Return None otherwise, or if there are no larger sizes.
    """
    medians = {n: float(np.median(values)) for n, values in samples.items()}
    best = max(medians, key=medians.__getitem__)
    larger = [n for n in samples if n > best]
    return best if larger and max(max(samples[n]) for n in larger) < min(samples[best]) else None
