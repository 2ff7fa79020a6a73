"""torchrun as a launcher: knowing that it has started us, and bringing its ranks together over torch.distributed.

torchrun ends all ranks once one has failed, so a rank here only has to fail.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from typing import Any

import numpy as np

from parcade.errors import UsageError

CONNECT_SECONDS = 120.0
LEAVING_SECONDS = 10
# The group that all leave together.
_leaving: Any = None
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched_by_torchrun() -> bool:
    """Whether this process is a rank that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def rank() -> int:
    """This process's rank, known before any connection."""
    return int(os.environ["RANK"])


def world_size() -> int:
    """How many ranks torchrun started."""
    return int(os.environ["WORLD_SIZE"])


def connect(
    *, cuda: bool = False, network_interface: str = "", timeout_seconds: float = CONNECT_SECONDS
) -> None:
    """Bring all ranks together, once: gloo for what lives on hosts and, with ``cuda``, NCCL for what lives on GPUs.

    Args:
        network_interface: the one gloo talks over, e.g. eth0; empty leaves the choice to gloo.
        timeout_seconds: how long a collective call waits for the others before it raises RuntimeError.

    Errors: UsageError when torchrun has not started this process, or for more ranks on a host than GPUs.
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
            raise UsageError(f"{ranks} ranks on this host and {gpus} GPU(s); start one rank a GPU")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if network_interface:
        os.environ["GLOO_SOCKET_IFNAME"] = network_interface
    timeout = datetime.timedelta(seconds=timeout_seconds)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timeout)
    _leaving = dist.new_group(
        backend="gloo", timeout=timeout
    )  # a barrier that watches the clock is gloo's alone


def leave() -> None:
    """Part from the others, once all are ready to: who leaves while another still talks can bring that one's threads down."""
    import torch.distributed as dist

    global _leaving
    if not dist.is_initialized():
        return
    with contextlib.suppress(RuntimeError):
        dist.monitored_barrier(_leaving, timeout=datetime.timedelta(seconds=LEAVING_SECONDS))
    _leaving = None
    dist.destroy_process_group()


def gather_bytes(own: np.ndarray) -> np.ndarray:
    """The rows ``[ranks, n]`` of all ranks' ``own`` ``[n]`` uint8. Collective."""
    import torch
    import torch.distributed as dist

    rows = [torch.empty(len(own), dtype=torch.uint8) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, torch.from_numpy(own))
    return torch.stack(rows).numpy()
