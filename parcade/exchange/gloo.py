"""The exchange without MPI: torch.distributed, with gloo over TCP for CPU tensors and NCCL for GPU tensors.

``torchrun`` starts the ranks. The device of a tensor decides which backend is used.
"""

from __future__ import annotations

import os

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from parcade.cluster import torchrun
from parcade.exchange.collective import CollectiveExchange
from parcade.machine.timing import Timer


class GlooExchange(CollectiveExchange):
    """Exchange between all processes started by torchrun, connected by ``cluster.torchrun.connect``."""

    def __init__(self, timer: Timer) -> None:
        super().__init__(timer)
        torchrun.connect()
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        # torchrun numbers the ranks of a host one after another.
        self.local_cores = self._cores_of_host(self.rank - int(os.environ.get("LOCAL_RANK", "0")))

    def _reduce(self, x: Tensor) -> None:
        dist.all_reduce(x)

    def maximum(self, x: np.ndarray) -> np.ndarray:
        with self.communicating(x.nbytes):
            dist.all_reduce(torch.from_numpy(x), op=dist.ReduceOp.MAX)
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        with self.communicating(x.numel() * x.element_size()):
            dist.broadcast(x, src=0)
        return x

    def _gather(self, rows: np.ndarray) -> np.ndarray:
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        dist.all_gather(counts, torch.tensor([len(rows)]))
        # gloo gathers equal shapes only: every rank pads its rows to the largest number of rows.
        longest = max(int(count) for count in counts)
        padded = torch.zeros(longest, rows.shape[1], dtype=torch.float64)
        padded[: len(rows)] = torch.from_numpy(rows)
        gathered = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(gathered, padded)
        return torch.cat([part[: int(count)] for part, count in zip(gathered, counts, strict=True)]).numpy()

    def gather_on_first(self, x: np.ndarray) -> np.ndarray | None:
        own = torch.from_numpy(np.ascontiguousarray(x))
        parts = [torch.empty_like(own) for _ in range(self.world_size)] if self.rank == 0 else None
        with self.communicating(x.nbytes):
            dist.gather(own, parts, dst=0)
        return torch.stack(parts).numpy() if parts is not None else None

    def close(self) -> None:
        torchrun.leave()

    def barrier(self) -> None:
        dist.barrier()
