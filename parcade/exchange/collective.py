"""What every exchange whose ranks sum arrays in place does alike, whoever carries the sum."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from parcade.exchange.base import Exchange


class CollectiveExchange(Exchange):
    """Gradients and statistics by one collective sum, ``_reduce``."""

    def _reduce(self, x: Tensor) -> None:
        """Sum over ranks in place."""
        raise NotImplementedError

    def average_gradient(self, grad: Tensor) -> None:
        num_bytes = grad.numel() * grad.element_size()
        with self.communicating(num_bytes):
            started = time.perf_counter()
            self._reduce(grad)
            self.allreduce_seconds += time.perf_counter() - started
            grad /= self.world_size
        self.bytes_moved += num_bytes

    def sum(self, x: Tensor) -> Tensor:
        with self.communicating(x.numel() * x.element_size()):
            self._reduce(x)
        return x

    def time_allreduce(self, num_floats: int, repeats: int) -> np.ndarray:
        buffer, seconds = torch.zeros(num_floats), np.empty(repeats)
        for i in range(-1, repeats):  # the first touches the memory and is not counted
            self.barrier()
            started = time.perf_counter()
            self._reduce(buffer)
            if i >= 0:
                seconds[i] = time.perf_counter() - started
        return seconds
