"""One rank per GPU: NCCL reduces GPU tensors, MPI everything else.

MPI starts and connects the ranks; torch.distributed then sends gradients from GPU to GPU. The device of a
tensor decides which transport is used, so callers need no changes.
"""

from __future__ import annotations

import datetime
import os
import socket

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from parcade.cluster.hosts import interface_name, own_address
from parcade.errors import UsageError
from parcade.exchange.allreduce import AllreduceExchange
from parcade.machine.timing import Timer

LOOPBACK = "127.0.0.1"


class NcclExchange(AllreduceExchange):
    """Exchange between all ranks of MPI.COMM_WORLD, each with its own GPU.

    ``backend="gloo"`` reduces CPU tensors in the same way, for tests without a GPU. A collective call waits
    up to ``timeout_seconds`` for the other ranks, then raises RuntimeError. All transfers use
    ``network_interface``, given by name or by its network. Errors: UsageError for more ranks than GPUs on a
    host, for an interface that this host does not have, and if other hosts cannot reach rank 0.
    """

    def __init__(
        self,
        timer: Timer,
        *,
        backend: str = "nccl",
        timeout_seconds: float = 120.0,
        network_interface: str = "",
    ) -> None:
        super().__init__(timer)
        self._network_interface = network_interface
        if network_interface:
            os.environ[f"{backend.upper()}_SOCKET_IFNAME"] = interface_name(network_interface)
        self._device_type = "cuda" if backend == "nccl" else "cpu"
        if backend == "nccl":
            if self.local_size > torch.cuda.device_count():
                raise UsageError(
                    f"{self.local_size} ranks on this host and {torch.cuda.device_count()} GPU(s); "
                    "start one rank per GPU"
                )
            torch.cuda.set_device(self._local_rank)
        if not dist.is_initialized():
            timeout = datetime.timedelta(seconds=timeout_seconds)
            store = self._meeting_place(timeout)
            dist.init_process_group(
                backend, store=store, rank=self.rank, world_size=self.world_size, timeout=timeout
            )

    def _meeting_place(self, timeout: datetime.timedelta) -> dist.TCPStore:
        """Return the store that rank 0 serves. MPI broadcasts its address.

        The store uses the loopback interface if all ranks are on one host. Rank 0 binds the socket here,
        because the store itself would listen on every interface, at a port that may no longer be free.
        """
        text, listening = np.zeros(256, np.uint8), None
        if self.rank == 0:
            host = LOOPBACK if self.local_size == self.world_size else own_address(self._network_interface)
            if host is not None:
                listener = socket.create_server((host, 0))
                place = f"{host} {listener.getsockname()[1]}".encode()
                listening = listener.detach()
                text[: len(place)] = np.frombuffer(place, np.uint8)
        self._comm.Bcast(text, root=0)
        if not text.any():
            raise UsageError(
                "the name of the first rank's host resolves to no address that other hosts reach; "
                "use --network-interface, e.g. --network-interface eth0"
            )
        host, port = bytes(text).rstrip(b"\0").decode().split()
        return dist.TCPStore(
            host, int(port), self.world_size, self.rank == 0, timeout, master_listen_fd=listening
        )

    def _reduce(self, x: Tensor) -> None:
        if x.device.type == self._device_type:
            dist.all_reduce(x)
        else:
            super()._reduce(x)

    def broadcast(self, x: Tensor) -> Tensor:
        if x.device.type != self._device_type:
            return super().broadcast(x)
        with self.communicating(x.numel() * x.element_size()):
            dist.broadcast(x, src=0)
        return x

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        super().close()
