"""Synchronous data parallelism: one MPI Allreduce per update averages the gradients of all ranks.

Every rank plays its own environments and holds the same parameters. All ranks have the same number of
samples, so the mean of their gradients is the gradient of the mean over all samples. N ranks with B
environments each therefore learn the same as one rank with N * B environments. Only arrays are sent, through
MPI's buffer interface; no objects.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from parcade.exchange.collective import CollectiveExchange
from parcade.machine.timing import Timer


class AllreduceExchange(CollectiveExchange):
    """Exchange between all ranks of MPI.COMM_WORLD. Tensors must be on the CPU: MPI uses their memory."""

    def __init__(self, timer: Timer) -> None:
        from mpi4py import MPI

        super().__init__(timer)
        self._mpi = MPI
        self._comm = MPI.COMM_WORLD
        self.rank = self._comm.Get_rank()
        self.world_size = self._comm.Get_size()
        host = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_size, self._local_rank = host.Get_size(), host.Get_rank()
        first = np.array([self.rank])
        host.Allreduce(MPI.IN_PLACE, first, op=MPI.MIN)
        host.Free()
        self.local_cores = self._cores_of_host(int(first[0]))

    def _reduce(self, x: Tensor) -> None:
        self._comm.Allreduce(self._mpi.IN_PLACE, x.numpy())

    def maximum(self, x: np.ndarray) -> np.ndarray:
        with self.communicating(x.nbytes):
            self._comm.Allreduce(self._mpi.IN_PLACE, x, op=self._mpi.MAX)
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        with self.communicating(x.numel() * x.element_size()):
            self._comm.Bcast(x.numpy(), root=0)
        return x

    def _gather(self, rows: np.ndarray) -> np.ndarray:
        counts = np.empty(self.world_size, np.int64)
        self._comm.Allgather(np.array([rows.size], np.int64), counts)
        gathered = np.empty(counts.sum(), np.float64)
        self._comm.Allgatherv(rows, [gathered, counts])
        return gathered.reshape(-1, rows.shape[1])

    def gather_on_first(self, x: np.ndarray) -> np.ndarray | None:
        gathered = np.empty((self.world_size, *x.shape), x.dtype) if self.rank == 0 else None
        with self.communicating(x.nbytes):
            self._comm.Gather(np.ascontiguousarray(x), gathered, root=0)
        return gathered

    def barrier(self) -> None:
        self._comm.Barrier()
