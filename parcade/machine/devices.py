"""Devices: placement of tensors, transfers between host and device, and the CPU stand-in for a GPU.

With ``PARCADE_GPU_STAND_IN=1`` the device ``cuda`` is the CPU. All GPU work then runs there synchronously,
with the same code and schedule, so a run without a GPU exercises every code path of a run with a GPU.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from parcade.errors import UsageError
from parcade.machine.facts import available_memory_bytes

STAND_IN = "PARCADE_GPU_STAND_IN"


def is_stand_in() -> bool:
    """Whether the CPU replaces a GPU in this process."""
    return os.environ.get(STAND_IN, "") not in ("", "0")


def torch_device(name: str) -> torch.device:
    """Return the torch device of the setting ``cpu`` or ``cuda``."""
    return torch.device("cpu" if name == "cpu" or is_stand_in() else name)


def check_gpu(setting: str) -> None:
    """Check that a GPU exists for a setting such as ``device 'cuda'``. Errors: UsageError."""
    if not is_stand_in() and not torch.cuda.is_available():
        raise UsageError(f"{setting}: torch {torch.__version__} finds no NVIDIA GPU here; use --device cpu")


def free_device_memory(name: str) -> int:
    """Return the free bytes of a device: GPU memory, or host memory for the CPU."""
    if torch_device(name).type == "cuda":
        return torch.cuda.mem_get_info()[0]
    return available_memory_bytes()


def make_repeatable(*, compiles: bool = False) -> None:
    """Make GPU results deterministic: disable algorithm benchmarking and nondeterministic algorithms.

    ``compiles``: whether torch.compile will be used, whose compiler then follows as well.

    Without this, a resumed run would not end bit-identical. cuBLAS reads its variable at first use. The
    setting float32 means float32: cuDNN's convolutions would round their inputs to 10 bits (TF32).
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    if compiles:
        torch.use_deterministic_algorithms(True, warn_only=True)
    else:  # what that function does, without importing the compiler, which takes 1 to 2 s
        torch._C._set_deterministic_algorithms(True, warn_only=True)
    # This debugging aid would launch a kernel for every new tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False


class Upload:
    """A fixed host array and its copy on a device. Write ``host``, then call ``send``.

    Attributes: ``host`` is a NumPy array, pinned for a GPU; ``tensor`` is its copy, at a fixed address.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._staged = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        self.host = self._staged.numpy()
        self.tensor = torch.zeros(shape, dtype=dtype, device=device)

    def send(self) -> None:
        """Copy on the current stream. Do not write ``host`` until the copy has finished."""
        self.tensor.copy_(self._staged, non_blocking=True)


class Download:
    """A fixed host array that receives copies of a device tensor."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._staged = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        self._is_over = torch.cuda.Event() if device.type == "cuda" else None

    def receive(self, tensor: Tensor) -> None:
        """Queue a copy of a tensor on the current stream, after the work queued before."""
        self._staged.copy_(tensor, non_blocking=True)

    def mark(self) -> None:
        """Mark the copies queued so far on the current stream as those that ``wait`` waits for.

        A call of its own, because a copy may be part of a recording and its mark may not.
        """
        if self._is_over is not None:
            self._is_over.record()

    def wait(self) -> np.ndarray:
        """Wait for the marked copies and return the array, which the next copy overwrites."""
        if self._is_over is not None:
            self._is_over.synchronize()
        return self._staged.numpy()


class DeviceStream:
    """A CUDA stream, used as a context manager. On a CPU it does nothing, since work runs synchronously.

    An ``urgent`` stream has a higher priority.
    """

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
        """Make later work of this stream wait for a ``mark``."""
        if self._stream is not None and mark is not None:
            self._stream.wait_event(mark)

    def synchronize(self) -> None:
        """Block the host until all work of this stream has finished."""
        if self._stream is not None:
            self._stream.synchronize()


def mark(device: torch.device) -> torch.cuda.Event | None:
    """Record an event on the current stream, for other streams to wait for; return None on a CPU."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record()
    return event
