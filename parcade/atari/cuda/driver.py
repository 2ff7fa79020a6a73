"""numba-cuda and the driver: imported in one place, and refused in one line where something is missing."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import warnings
from typing import Any

import numpy as np

OLDEST_DRIVER = (12, 0)  # CUDA version a driver must serve


class DeviceUnavailable(RuntimeError):
    """There is no GPU that could be used; says in one line what is missing."""


@functools.cache
def import_cuda(module: str = "numba.cuda") -> Any:
    """A module of numba-cuda; all imports of them go through here. Errors: ImportError.

    numba-cuda 0.30.4 expects `np.row_stack`, which numpy 2.5 removed, when it imports its array functions for the first kernel. They are
    imported here, with the alias in place until they are; nothing needs it afterwards.
    """
    with contextlib.ExitStack() as importing:
        importing.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy 2.5 deprecates other names that it uses
        if not hasattr(np, "row_stack"):
            np.row_stack = np.vstack
            importing.callback(delattr, np, "row_stack")
        importlib.import_module("numba.cuda" if is_simulated() else "numba.cuda.np.arrayobj")
    return importlib.import_module(module)


@functools.cache
def require_cuda() -> Any:
    """numba.cuda, ready. Errors: DeviceUnavailable naming what is missing: numba-cuda, a driver, a device, a newer driver."""
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
    except Exception as error:  # a broken driver raises whatever it likes
        raise DeviceUnavailable(
            f"device 'cuda': the driver does not start: {error}; use device 'cpu'"
        ) from error
    if not available:
        raise DeviceUnavailable("device 'cuda': no NVIDIA GPU or driver was found here; use device 'cpu'")
    version = driver_version(cuda)
    if version < OLDEST_DRIVER:
        got, least = ".".join(map(str, version)), ".".join(map(str, OLDEST_DRIVER))
        raise DeviceUnavailable(
            f"device 'cuda': the driver serves CUDA {got}, {least} is needed; update the NVIDIA driver"
        )
    import_cuda(
        "numba.cuda.dispatcher"
    ).config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # few consoles are slow and not wrong
    return cuda


def is_simulated() -> bool:
    """Whether numba's simulator stands in for a GPU; it needs NUMBA_DISABLE_JIT=1 as well."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"


def is_available() -> bool:
    """Whether `require_cuda` finds what it needs."""
    try:
        require_cuda()
    except DeviceUnavailable:
        return False
    return True


def compute_capability() -> tuple[int, int]:
    """That of the GPU which this process would use. Asking creates no context, so it takes no GPU memory. Errors: DeviceUnavailable."""
    return tuple(require_cuda().cudadrv.driver.driver.get_device().compute_capability)


def driver_version(cuda: Any) -> tuple[int, int]:
    """The CUDA version the installed driver serves."""
    version = cuda.cudadrv.driver.driver.get_version()
    return (int(version[0]), int(version[1]))
