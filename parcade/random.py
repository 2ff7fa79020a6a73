"""Counter-based random numbers, independent of how environments are distributed over ranks and threads.

Numbers are a hash of (key, step, column). The key of environment i is derived from the run's seed and the
global index i, so an environment draws the same numbers on one rank with eight environments and on four ranks
with two each.
"""

from __future__ import annotations

import numpy as np

# Increment and finaliser of SplitMix64.
# Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators".
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return z ^ (z >> np.uint64(31))


def uniforms(keys: np.ndarray, steps: np.ndarray, columns: int) -> np.ndarray:
    """Return uniform numbers in [0, 1), a pure function of the arguments.

    Shapes: keys ``[n]`` uint64, steps ``[n]`` int; returns ``[n, columns]`` float64.
    """
    with np.errstate(over="ignore"):
        at_step = _mix(keys + GOLDEN * (steps.astype(np.uint64) + np.uint64(1)))
        column = GOLDEN * np.arange(1, columns + 1, dtype=np.uint64)
        bits = _mix(_mix(at_step[:, None] + column))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def env_seeds(seed: int, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the seeds of environments ``first .. first + count - 1`` of a run, by global index.

    Returns: console seeds ``[count]`` int32 >= 0, and keys ``[count]`` uint64 for action noise. Both are
    derived from ``SeedSequence([seed, global index])``, so runs with different seeds are independent.
    """
    words = [np.random.SeedSequence([seed, first + i]).generate_state(4, np.uint32) for i in range(count)]
    console = np.array([w[0] >> 1 for w in words], np.int64).astype(np.int32)
    keys = np.array([(int(w[2]) << 32) | int(w[3]) for w in words], np.uint64)
    return console, keys


def rank_seed(seed: int, rank: int, updates: int = 0) -> int:
    """Return the seed of a rank's minibatches: from the start of a run, or from ``updates`` on."""
    words = [seed, 2**32 + rank] + ([updates] if updates else [])
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seeds_of_life(
    console_seeds: np.ndarray, noise_keys: np.ndarray, life: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return seeds as of ``env_seeds`` for a life of their environments, counted from 1.

    The first life has the given ones. A process that is restarted would otherwise play its first episodes
    again.
    """
    if life == 1:
        return console_seeds, noise_keys
    with np.errstate(over="ignore"):
        keys = _mix(noise_keys + GOLDEN * np.uint64(life))
        console = _mix(keys + GOLDEN) >> np.uint64(33)
    return console.astype(np.int32), keys
