"""The counter-based random numbers of ``random.py``, computed on a device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from parcade.random import GOLDEN, MIX_1, MIX_2


class TensorUniforms:
    """``uniforms`` on a device for a fixed set of keys ``[n]`` uint64, without synchronisation.

    ``at(step)`` returns ``[n, 2]`` float32, equal to ``uniforms(keys, step, 2)`` rounded to float32.
    """

    def __init__(self, keys: np.ndarray, device: torch.device) -> None:
        self._keys = torch.from_numpy(keys.view(np.int64).copy()).to(device)
        with np.errstate(over="ignore"):
            columns = GOLDEN * np.arange(1, 3, dtype=np.uint64)
        self._columns = torch.from_numpy(columns.view(np.int64)).to(device)

    def set_keys(self, keys: np.ndarray) -> None:
        """Replace the keys, also for recorded launches."""
        self._keys.copy_(torch.from_numpy(keys.view(np.int64).copy()))

    def at(self, step: int) -> Tensor:
        """Return two uniform numbers per key at one step."""
        offset = _signed(int(GOLDEN) * (step + 1))
        bits = _mix_tensor(_mix_tensor(_mix_tensor(self._keys + offset)[:, None] + self._columns))
        return (_shift_right(bits, 11).double() * 2.0**-53).float()


def _signed(value: int) -> int:
    """Return the low 64 bits of an integer as an int64."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _shift_right(z: Tensor, count: int) -> Tensor:
    """Shift right logically; ``>>`` on int64 is an arithmetic shift, which extends the sign."""
    return (z >> count) & ((1 << (64 - count)) - 1)


def _mix_tensor(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * _signed(int(MIX_1))
    z = (z ^ _shift_right(z, 27)) * _signed(int(MIX_2))
    return z ^ _shift_right(z, 31)
