"""The exchange without MPI: torch.distributed's gloo, over TCP. ``torchrun`` starts its ranks and tells them who they are."""

from __future__ import annotations

import contextlib
import datetime
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from parcade.errors import UsageError
from parcade.exchange.collective import CollectiveExchange
from parcade.report.timing import Timer

LEAVING_SECONDS = 10
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class GlooExchange(CollectiveExchange):
    """All processes that torchrun started. Tensors live on the CPU.

    Args:
        network_interface: the one gloo talks over, e.g. eth0; empty leaves the choice to gloo.
        timeout_seconds: how long a collective call waits for the others before it raises RuntimeError.
    """

    def __init__(self, timer: Timer, *, network_interface: str = "", timeout_seconds: float = 120.0) -> None:
        super().__init__(timer)
        missing = [name for name in VARIABLES if name not in os.environ]
        if missing:
            raise UsageError(
                f"engine gloo expects {', '.join(VARIABLES)} in the environment, {', '.join(missing)} not set; "
                "start the ranks with: torchrun --nproc-per-node N SCRIPT"
            )
        if network_interface:
            os.environ["GLOO_SOCKET_IFNAME"] = network_interface
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_seconds))
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

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

    def gather_rows(self, rows: np.ndarray) -> np.ndarray:
        rows = np.ascontiguousarray(rows, np.float64)
        with self.communicating(rows.nbytes):
            counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
            dist.all_gather(counts, torch.tensor([len(rows)]))
            # gloo gathers equal shapes alone: everyone sends as many rows as the longest has.
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
        if not dist.is_initialized():
            return
        # Who leaves while another still talks can bring that one's connection threads down with it.
        with contextlib.suppress(RuntimeError):
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=LEAVING_SECONDS))
        dist.destroy_process_group()

    def barrier(self) -> None:
        dist.barrier()
