"""torchrun as a launcher: detecting its launch and connecting its ranks with torch.distributed.

torchrun ends all ranks when one fails, so no code here does that.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from typing import Any

import numpy as np

from parcade.cluster.hosts import interface_name
from parcade.errors import UsageError

CONNECT_SECONDS = 120.0
LEAVING_SECONDS = 10
# The gloo group whose barrier all ranks pass before they leave.
_leaving: Any = None
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched_by_torchrun() -> bool:
    """Return whether torchrun started this process. Variables without a rank are left over from another."""
    numbers = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return "TORCHELASTIC_RUN_ID" in os.environ and all(number.isdecimal() for number in numbers)


def rank() -> int:
    """Return this process's rank, without a connection."""
    return int(os.environ["RANK"])


def world_size() -> int:
    """Return the number of ranks that torchrun started."""
    return int(os.environ["WORLD_SIZE"])


def connect(
    *, cuda: bool = False, network_interface: str = "", timeout_seconds: float = CONNECT_SECONDS
) -> None:
    """Connect all ranks, unless connected: gloo for CPU tensors and, with ``cuda``, NCCL for GPU tensors.

    Args:
        network_interface: the interface that gloo and NCCL use, by name or by its network; empty leaves the
            choice to them.
        timeout_seconds: how long a collective call waits for the others before it raises RuntimeError.

    Errors: UsageError when torchrun did not start this process, for more ranks on a host than GPUs, or for an
    interface that this host does not have.
    """
    import torch
    import torch.distributed as dist

    global _leaving
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing:
        raise UsageError(
            f"engine gloo expects {', '.join(VARIABLES)} in the environment, {', '.join(missing)} not set; "
            "start the ranks with: torchrun --nproc-per-node N SCRIPT"
        )
    if dist.is_initialized():
        return
    if cuda:
        ranks, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
        if ranks > gpus:
            raise UsageError(f"{ranks} ranks on this host and {gpus} GPU(s); start one rank per GPU")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if network_interface:
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = interface_name(
            network_interface
        )
    timeout = datetime.timedelta(seconds=timeout_seconds)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timeout)
    # Only gloo has a barrier with a timeout.
    _leaving = dist.new_group(backend="gloo", timeout=timeout)


def leave() -> None:
    """Disconnect when all ranks are ready: a rank that leaves early can crash another one's threads."""
    import torch.distributed as dist

    global _leaving
    if not dist.is_initialized():
        return
    with contextlib.suppress(RuntimeError):
        dist.monitored_barrier(_leaving, timeout=datetime.timedelta(seconds=LEAVING_SECONDS))
    _leaving = None
    dist.destroy_process_group()


def gather_bytes(own: np.ndarray) -> np.ndarray:
    """Gather every rank's ``own`` ``[n]`` uint8 into ``[ranks, n]``. Collective."""
    import torch
    import torch.distributed as dist

    rows = [torch.empty(len(own), dtype=torch.uint8) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, torch.from_numpy(own))
    return torch.stack(rows).numpy()
