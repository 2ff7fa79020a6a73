"""Rates as functions of size: a straight line, Amdahl's law and Gunther's, with bootstrap intervals. Pure maths.

Notation: n the size (cores or ranks), X(n) the rate, lambda the rate of one, sigma the share that is serial
(contention), kappa the price of keeping every pair in step (coherency).

- line: X(n) = a + b n
- Amdahl 1967, "Validity of the single processor approach": X(n) = lambda n / (1 + sigma (n - 1))
- Gunther 1993, "A simple capacity model for massively parallel transaction systems" (the universal scalability law):
  X(n) = lambda n / (1 + sigma (n - 1) + kappa n (n - 1))                                                            (1)

(1) is linear once turned over: n / X(n) = 1/lambda + (sigma/lambda) (n - 1) + (kappa/lambda) n (n - 1), so the fit is a
non-negative least-squares problem with one answer and no starting point. Rows are scaled by X/n: relative errors count,
not absolute ones, or the largest size would decide everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Samples = Mapping[int, Sequence[float]]
"""Rates measured at each size, one a repeat."""

BOOTSTRAPS = 400
INTERVAL = (5.0, 95.0)
"""Percentiles: what nine of ten repetitions of the whole measurement would fall into."""


@dataclass(frozen=True)
class Fit:
    """One curve through the samples.

    ``predict(n)`` its rate; ``parameters`` by name, ``intervals`` their 90 % bootstrap intervals, empty where every
    size was measured once; ``draws`` ``[BOOTSTRAPS, k]`` the bootstrapped parameters; ``error`` the mean relative
    residual over sizes.
    """

    name: str
    parameters: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    draws: np.ndarray
    error: float

    def predict(self, n: float) -> float:
        """The rate at size n."""
        return CURVES[self.name].rate(n, *self.parameters.values())

    def interval(self, n: float) -> tuple[float, float] | None:
        """The 90 % interval of the rate at size n; None where every size was measured once."""
        if not len(self.draws):
            return None
        low, high = np.percentile([CURVES[self.name].rate(n, *draw) for draw in self.draws], INTERVAL)
        return float(low), float(high)

    @property
    def peak(self) -> float | None:
        """The size beyond which the rate falls; None where it never does."""
        sigma, kappa = self.parameters.get("sigma", 0.0), self.parameters.get("kappa", 0.0)
        return max(1.0, math.sqrt(max(1.0 - sigma, 0.0) / kappa)) if kappa > 1e-12 else None

    def size_for(self, rate: float, largest: int = 10_000_000) -> int | None:
        """The smallest size with at least this rate; None where the curve never gets there."""
        end = largest if self.peak is None else max(1, math.floor(self.peak))
        rate *= 1 - 1e-9  # a size that was asked for by its own rate is large enough
        if self.predict(end) < rate:
            return None
        low, high = 0, end
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.predict(middle) >= rate else (middle, high)
        return high


@dataclass(frozen=True)
class Curve:
    """A family of curves: its rate, how it is fitted to sizes and rates, and the sizes it needs."""

    rate: Callable[..., float]
    fit: Callable[[np.ndarray, np.ndarray], tuple[float, ...]]
    names: tuple[str, ...]
    least_sizes: int


def _fit_line(n: np.ndarray, rates: np.ndarray) -> tuple[float, ...]:
    weights = 1.0 / rates
    return tuple(np.linalg.lstsq(np.stack([weights, n * weights], 1), np.ones(len(n)), rcond=None)[0])


def _fit_turned_over(n: np.ndarray, rates: np.ndarray, columns: Sequence[np.ndarray]) -> tuple[float, ...]:
    from scipy.optimize import nnls

    theta = nnls(np.stack(columns, 1) * (rates / n)[:, None], np.ones(len(n)))[0]
    return (1.0 / theta[0], *(theta[1:] / theta[0])) if theta[0] > 0 else (math.inf, *theta[1:])


def _fit_amdahl(n: np.ndarray, rates: np.ndarray) -> tuple[float, ...]:
    return _fit_turned_over(n, rates, (np.ones(len(n)), n - 1))


def _fit_usl(n: np.ndarray, rates: np.ndarray) -> tuple[float, ...]:
    return _fit_turned_over(n, rates, (np.ones(len(n)), n - 1, n * (n - 1)))


CURVES: dict[str, Curve] = {
    "line": Curve(lambda n, a, b: a + b * n, _fit_line, ("a", "b"), 2),
    "amdahl": Curve(lambda n, lam, sigma: lam * n / (1 + sigma * (n - 1)), _fit_amdahl, ("lambda", "sigma"), 2),
    "usl": Curve(
        lambda n, lam, sigma, kappa: lam * n / (1 + sigma * (n - 1) + kappa * n * (n - 1)),  # eq. 1
        _fit_usl,
        ("lambda", "sigma", "kappa"),
        3,
    ),
}


def fit(name: str, samples: Samples, generator: np.random.Generator) -> Fit:
    """Fit a curve to the median rate of every size; intervals by drawing each size's repeats anew.

    Errors: ValueError for fewer sizes than the curve has parameters.
    """
    curve = CURVES[name]
    if len(samples) < curve.least_sizes:
        raise ValueError(f"{name} needs {curve.least_sizes} sizes, got {len(samples)}")
    n = np.array(sorted(samples), np.float64)
    rates = [np.asarray(samples[size], np.float64) for size in sorted(samples)]
    medians = np.array([np.median(values) for values in rates])
    values = curve.fit(n, medians)
    draws = np.empty((0, len(values)))
    if all(len(repeats) > 1 for repeats in rates):
        drawn = [[np.median(generator.choice(repeats, len(repeats))) for repeats in rates] for _ in range(BOOTSTRAPS)]
        draws = np.array([curve.fit(n, np.array(row)) for row in drawn])
    fitted = np.array([curve.rate(size, *values) for size in n])
    intervals = {
        key: tuple(float(x) for x in np.percentile(draws[:, i], INTERVAL))
        for i, key in enumerate(curve.names)
        if len(draws)
    }
    parameters = {key: float(value) for key, value in zip(curve.names, values, strict=True)}
    return Fit(name, parameters, intervals, draws, float(np.mean(np.abs(fitted / medians - 1))))


def fit_all(samples: Samples, seed: int = 0) -> dict[str, Fit]:
    """Every curve that has sizes enough."""
    generator = np.random.default_rng(seed)
    return {name: fit(name, samples, generator) for name, curve in CURVES.items() if len(samples) >= curve.least_sizes}


def speed_up(samples: Samples) -> dict[int, float]:
    """Median rate of every size over that of the smallest."""
    smallest = min(samples)
    return {n: float(np.median(samples[n]) / np.median(samples[smallest])) for n in sorted(samples)}


def efficiency(samples: Samples) -> dict[int, float]:
    """Speed-up over the size's ratio to the smallest: 1 when every core does what the first did."""
    smallest = min(samples)
    return {n: value * smallest / n for n, value in speed_up(samples).items()}


def turning_size(samples: Samples) -> int | None:
    """The measured size with the highest median rate, when a larger one was measured and is slower by more than the
    spread."""
    medians = {n: float(np.median(values)) for n, values in samples.items()}
    best = max(medians, key=medians.__getitem__)
    larger = [n for n in samples if n > best]
    return best if larger and max(max(samples[n]) for n in larger) < min(samples[best]) else None
