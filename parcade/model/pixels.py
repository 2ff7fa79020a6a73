"""Normalisation of images of bytes: in one pass by compiled code, where it is loaded.

The compiled code is that of the native consoles (``parcade/atari/pixels.py``). Its results equal
those of torch's operations bit for bit. Processes without it, and other devices, use torch's.
Shapes: N images of F frames, uint8 ``[N, F, height, width]``.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

MOST_THREADS = 4
"""With more threads, torch's passes should take less time than one pass of one thread: on one thread they
take about four times as long (``benchmarks/pixels.py``). Not measured on more than one."""

_kernels: ModuleType | None = None


def use_compiled() -> None:
    """Use compiled code in this process from now on. It is loaded, or compiled like the consoles' code."""
    global _kernels
    from parcade.atari import pixels
    from parcade.atari.compiling.prepare import prepare

    prepare()
    _kernels = pixels if pixels.IS_COMPILED else None


def can_normalize(images: Tensor) -> bool:
    """Return whether compiled code can normalise these images; it cannot be traced or recorded in a graph."""
    return (
        _kernels is not None
        and _get_current_dispatch_mode() is None
        and not torch.compiler.is_compiling()
        and images.dtype == torch.uint8
        and images.device.type == "cpu"
        and images.ndim == 4
        and images.is_contiguous()
        and torch.get_num_threads() <= MOST_THREADS
    )


def normalized(
    images: Tensor,
    offset: Tensor,
    scale: Tensor,
    clip: float,
    dtype: torch.dtype,
    memory: Tensor | None = None,
) -> Tensor:
    """Return ``(images - offset) * scale``, clipped, as ``[N, height, width, F]``.

    Args:
        images: ``can_normalize`` is true of them.
        offset, scale: float32 ``[height, width]``.
        dtype: float32 or bfloat16.
        memory: for the result, of its size and type; by default new memory.
    """
    N, F, height, width = images.shape
    out = torch.empty(images.numel(), dtype=dtype) if memory is None else memory
    rows, columns = images.view(N, F, height * width).numpy(), out.view(N, F * height * width)
    pixels = offset.flatten().numpy(), scale.flatten().numpy(), np.float32(clip)
    if dtype == torch.float32:
        _kernels.normalize_float32(rows, *pixels, columns.numpy())
    else:
        values = np.empty(columns.shape[1], np.float32)
        bits = columns.view(torch.uint16).numpy()
        _kernels.normalize_bfloat16(rows, *pixels, values, values.view(np.uint32), bits)
    return out.view(N, height, width, F)
