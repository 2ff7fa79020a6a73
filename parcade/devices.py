"""Where tensors live, how they travel between host and device, and what stands in for a GPU where there is none.

With ``PARCADE_GPU_STAND_IN=1`` the device ``cuda`` is the CPU: everything that a GPU would do is done there at once, by
the same code on the same schedule, so a run without a GPU exercises every path that a run with one takes.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from parcade.errors import UsageError
from parcade.machine import available_memory_bytes

STAND_IN = "PARCADE_GPU_STAND_IN"


def is_stand_in() -> bool:
    """Whether the CPU stands in for a GPU in this process."""
    return os.environ.get(STAND_IN, "") not in ("", "0")


def torch_device(name: str) -> torch.device:
    """The torch device that a setting of ``cpu`` or ``cuda`` means here."""
    return torch.device("cpu" if name == "cpu" or is_stand_in() else name)


def check_gpu(setting: str) -> None:
    """Errors: UsageError when this machine has no GPU for a setting such as ``device 'cuda'``."""
    if not is_stand_in() and not torch.cuda.is_available():
        raise UsageError(f"{setting}: torch {torch.__version__} finds no NVIDIA GPU here; use --device cpu")


def free_device_memory(name: str) -> int:
    """Bytes that are free on the device of this name: the GPU's memory, or this machine's."""
    if torch_device(name).type == "cuda":
        return torch.cuda.mem_get_info()[0]
    return available_memory_bytes()


def make_repeatable() -> None:
    """Have a GPU give the same bits for the same work: no algorithm chosen by a race, none that adds in any order.

    A killed and resumed run ends bit-identical only so. cuBLAS reads its variable when it is first used.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = (
        False  # a check of debugging: a kernel for every new tensor
    )


class Upload:
    """A fixed array on the host and its copy on a device. Write ``host``, then ``send``.

    Attributes: ``host`` a numpy array, in pinned memory for a GPU; ``tensor`` its copy, at an address that never changes.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._staged = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        self.host = self._staged.numpy()
        self.tensor = torch.zeros(shape, dtype=dtype, device=device)

    def send(self) -> None:
        """Copy on the current stream. ``host`` must not be written before that copy is over."""
        self.tensor.copy_(self._staged, non_blocking=True)


class Download:
    """A fixed array on the host that a device's tensor is fetched into."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._staged = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        self._is_over = torch.cuda.Event() if device.type == "cuda" else None

    def begin(self, tensor: Tensor) -> None:
        """Copy a tensor on the current stream, once the work queued before is done."""
        self._staged.copy_(tensor, non_blocking=True)
        if self._is_over is not None:
            self._is_over.record()

    def wait(self) -> np.ndarray:
        """Wait for the copy; the array is overwritten by the next one."""
        if self._is_over is not None:
            self._is_over.synchronize()
        return self._staged.numpy()


class DeviceStream:
    """A queue of a GPU's work next to the default one, entered by ``with``. On a CPU work is done at once and this is nothing."""

    def __init__(self, device: torch.device, *, urgent: bool = False) -> None:
        self._stream = (
            torch.cuda.Stream(device, priority=-1 if urgent else 0) if device.type == "cuda" else None
        )
        self._entered = threading.local()

    def __enter__(self) -> DeviceStream:
        if self._stream is not None:
            self._entered.context = torch.cuda.stream(self._stream)
            self._entered.context.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._entered.context.__exit__(kind, error, trace)

    def wait_for(self, mark: torch.cuda.Event | None) -> None:
        """Begin no later work of this queue before a ``mark`` is reached."""
        if self._stream is not None and mark is not None:
            self._stream.wait_event(mark)

    def synchronize(self) -> None:
        """Wait on the host until everything queued here is done."""
        if self._stream is not None:
            self._stream.synchronize()


def mark(device: torch.device) -> torch.cuda.Event | None:
    """The place that the current stream of a device has come to, for other streams to wait for; None on a CPU."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record()
    return event


def follow(event: torch.cuda.Event | None) -> None:
    """Have the current stream begin no later work before a ``mark`` of another stream is reached."""
    if event is not None:
        torch.cuda.current_stream().wait_event(event)
