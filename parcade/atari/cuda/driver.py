"""The only place that imports numba-cuda; reports a missing package, driver or GPU in one line."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import warnings
from typing import Any

import numpy as np

OLDEST_DRIVER = (12, 0)  # oldest CUDA version that a driver must support
OLDEST_CAPABILITY = (8, 0)  # compute capability of the oldest GPU


class DeviceUnavailable(RuntimeError):
    """No usable GPU; the message says in one line what is missing."""


@functools.cache
def import_cuda(module: str = "numba.cuda") -> Any:
    """Import a module of numba-cuda; all its imports go through this function. Errors: ImportError.

    numba-cuda 0.30.4 needs `np.row_stack`, which NumPy 2.5 removed, while it imports its array functions.
    This function imports them with a temporary alias; nothing needs the alias afterwards.
    """
    with contextlib.ExitStack() as importing:
        importing.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", DeprecationWarning)  # it uses other names that NumPy 2.5 deprecates
        if not hasattr(np, "row_stack"):
            np.row_stack = np.vstack
            importing.callback(delattr, np, "row_stack")
        importlib.import_module("numba.cuda" if is_simulated() else "numba.cuda.np.arrayobj")
    return importlib.import_module(module)


@functools.cache
def require_cuda() -> Any:
    """Return numba.cuda, ready for use.

    Errors: DeviceUnavailable that names what is missing: numba-cuda, a driver, a GPU, or newer ones.
    """
    try:
        cuda = import_cuda()
    except ImportError as error:
        raise DeviceUnavailable(
            f"device 'cuda' needs numba-cuda ({error}); run: pip install 'parcade[cuda]'"
        ) from error
    if is_simulated():
        return cuda
    try:
        available = cuda.is_available()
    except Exception as error:  # a broken driver may raise anything
        raise DeviceUnavailable(
            f"device 'cuda': the driver failed to start: {error}; use device 'cpu'"
        ) from error
    if not available:
        raise DeviceUnavailable("device 'cuda': found no NVIDIA GPU or driver; use device 'cpu'")
    version = driver_version(cuda)
    if version < OLDEST_DRIVER:
        got, least = ".".join(map(str, version)), ".".join(map(str, OLDEST_DRIVER))
        raise DeviceUnavailable(
            f"device 'cuda': the driver supports CUDA {got}; expected {least} or newer; update the driver"
        )
    _check_capability(_capability_of(cuda))
    # A launch with few consoles is slow but not a mistake.
    import_cuda("numba.cuda.dispatcher").config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
    return cuda


def _capability_of(cuda: Any) -> tuple[int, int]:
    return tuple(cuda.cudadrv.driver.driver.get_device().compute_capability)


def _check_capability(capability: tuple[int, int]) -> None:
    """Check that a GPU has the instructions that keep lanes in step. Errors: DeviceUnavailable."""
    if capability < OLDEST_CAPABILITY:
        got, least = ".".join(map(str, capability)), ".".join(map(str, OLDEST_CAPABILITY))
        raise DeviceUnavailable(
            f"device 'cuda': the GPU has compute capability {got}; expected {least} (Ampere) or newer; "
            "use device 'cpu'"
        )


def is_simulated() -> bool:
    """Whether Numba's CUDA simulator replaces a GPU; it also requires NUMBA_DISABLE_JIT=1."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"


def is_available() -> bool:
    """Whether `require_cuda` succeeds."""
    try:
        require_cuda()
    except DeviceUnavailable:
        return False
    return True


def compute_capability() -> tuple[int, int]:
    """Return the compute capability of the GPU that this process would use. Errors: DeviceUnavailable.

    The query creates no context, so it allocates no GPU memory.
    """
    return _capability_of(require_cuda())


def release_memory(cuda: Any) -> None:
    """Free the device memory of arrays that nothing refers to.

    numba-cuda keeps it until ten arrays, or a fifth of the device's memory, are waiting.
    """
    context = cuda.current_context()
    context.memory_manager.deallocations.clear()  # of arrays
    context.deallocations.clear()  # of modules, streams and events


def driver_version(cuda: Any) -> tuple[int, int]:
    """Return the newest CUDA version that the installed driver supports."""
    version = cuda.cudadrv.driver.driver.get_version()
    return (int(version[0]), int(version[1]))
