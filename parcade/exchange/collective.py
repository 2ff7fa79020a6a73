"""Common base of exchanges whose ranks sum arrays in place, for any transport."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from parcade.capture.base import NotCapturable
from parcade.exchange.base import Exchange
from parcade.machine.facts import usable_cores


def wait_for_device(x: Tensor) -> None:
    """Wait for all work queued on the device of a tensor. Does nothing for tensors on the host."""
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)


class CollectiveExchange(Exchange):
    """Combines gradients and statistics with one collective sum, ``_reduce``, and gathers rows."""

    def _reduce(self, x: Tensor) -> None:
        """Sum x over ranks in place."""
        raise NotImplementedError

    def _gather(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows ``[k, m]`` float64 of all ranks, concatenated in rank order."""
        raise NotImplementedError

    def _cores_of_host(self, first: int) -> tuple[int, ...]:
        """Return the cores that all ranks of this host may use; ``first`` is the lowest rank on it."""
        rows = self.gather_rows(np.array([[first, core] for core in usable_cores()]))
        return tuple(int(core) for core in np.unique(rows[rows[:, 0] == first, 1]))

    def average_gradient(self, grad: Tensor) -> None:
        num_bytes = grad.numel() * grad.element_size()
        self._wait_if_recorded(grad)  # so that the backward pass counts as learning, not as communication
        with self.communicating(num_bytes):
            started = time.perf_counter()
            self._reduce(grad)
            self._wait_if_recorded(grad)
            self.allreduce_seconds += time.perf_counter() - started
            grad /= self.world_size
        self.bytes_moved += num_bytes

    def sum(self, x: Tensor) -> Tensor:
        if self.capture.is_recording:
            raise NotCapturable("it sums over ranks")
        self._wait_if_recorded(x)
        with self.communicating(x.numel() * x.element_size()):
            self._reduce(x)
            self._wait_if_recorded(x)
        return x

    def gather_rows(self, rows: np.ndarray) -> np.ndarray:
        rows = np.ascontiguousarray(rows, np.float64)
        with self.communicating(rows.nbytes):
            return self._gather(rows)

    def sum_and_gather(self, x: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = np.ascontiguousarray(rows, np.float64)
        packed = np.empty(len(x) + 1)
        packed[:-1], packed[-1] = x, len(rows)
        with self.communicating(packed.nbytes + rows.nbytes):
            self._reduce(torch.from_numpy(packed))
            return packed[:-1], self._gather(rows) if packed[-1] else rows

    def _wait_if_recorded(self, x: Tensor) -> None:
        """Wait for the device while a profile is recorded, since calls return before the GPU is done.

        Without a recorder nothing waits, and ``allreduce_seconds`` is not valid on GPUs.
        """
        if self.on_collective is not None:
            wait_for_device(x)

    def time_allreduce(self, num_floats: int, repeats: int, device: torch.device | str = "cpu") -> np.ndarray:
        buffer, seconds = torch.zeros(num_floats, device=device), np.empty(repeats)
        for i in range(-1, repeats):  # the first call is a warm-up and is not counted
            wait_for_device(buffer)
            self.barrier()
            started = time.perf_counter()
            self._reduce(buffer)
            wait_for_device(buffer)
            if i >= 0:
                seconds[i] = time.perf_counter() - started
        return seconds
