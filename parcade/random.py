"""Random numbers that depend on who asks and when, never on how the asking is spread over ranks or threads.

Numbers are a hash of (key, step, column): the key of environment i comes from the run's seed and i's global index, so
one rank with eight environments and four ranks with two draw the same numbers for the same environment.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators": the SplitMix64 increment and finaliser.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def uniforms(keys: np.ndarray, steps: np.ndarray, columns: int) -> np.ndarray:
    """Uniform numbers in [0, 1): a pure function of its arguments.

    Shapes: keys ``[n]`` uint64, steps ``[n]`` int; returns ``[n, columns]`` float64.
    """
    with np.errstate(over="ignore"):
        at_step = _mix(keys + _GOLDEN * (steps.astype(np.uint64) + np.uint64(1)))
        column = _GOLDEN * np.arange(1, columns + 1, dtype=np.uint64)
        bits = _mix(_mix(at_step[:, None] + column))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def env_seeds(seed: int, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """What seeds environments ``first .. first + count - 1`` of a run, counted over all ranks.

    Returns: console seeds ``[count]`` int32 >= 0, and keys ``[count]`` uint64 for action noise. Both come from
    ``SeedSequence([seed, global index])``, so two runs with different seeds share nothing.
    """
    words = [np.random.SeedSequence([seed, first + i]).generate_state(4, np.uint32) for i in range(count)]
    console = np.array([w[0] >> 1 for w in words], np.int64).astype(np.int32)
    keys = np.array([(int(w[2]) << 32) | int(w[3]) for w in words], np.uint64)
    return console, keys


class TensorUniforms:
    """``uniforms`` of one set of keys on a device: the same bits, with nothing read back.

    Keys ``[n]`` uint64; ``at(step)`` gives ``[n, 2]`` float32 as ``uniforms(keys, step, 2)`` rounded to float32.
    """

    def __init__(self, keys: np.ndarray, device: torch.device) -> None:
        self._keys = torch.from_numpy(keys.view(np.int64).copy()).to(device)
        with np.errstate(over="ignore"):
            columns = _GOLDEN * np.arange(1, 3, dtype=np.uint64)
        self._columns = torch.from_numpy(columns.view(np.int64)).to(device)

    def at(self, step: int) -> Tensor:
        """Two uniform numbers for every key at one step."""
        offset = _signed(int(_GOLDEN) * (step + 1))
        bits = _mix_tensor(_mix_tensor(_mix_tensor(self._keys + offset)[:, None] + self._columns))
        return (_shift_right(bits, 11).double() * 2.0**-53).float()


def _signed(value: int) -> int:
    """The int64 with the low 64 bits of a number."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _shift_right(z: Tensor, count: int) -> Tensor:
    """A logical shift: int64 has no other way not to drag its sign along."""
    return (z >> count) & ((1 << (64 - count)) - 1)


def _mix_tensor(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * _signed(int(_MIX_1))
    z = (z ^ _shift_right(z, 27)) * _signed(int(_MIX_2))
    return z ^ _shift_right(z, 31)
