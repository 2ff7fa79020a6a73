"""Normalisation and sums of images of bytes: in one pass by compiled code, where it is loaded.

The compiled code is that of the native consoles (``parcade/atari/pixels.py``). Its results have the bits of
torch's operations, which serve all other processes and devices, so that it matters to the speed alone.
Shapes: N images of F frames, uint8 ``[N, F, height, width]``.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from torch import Tensor

MOST_THREADS = 4
"""With more threads, torch's passes over a batch take less time than one pass of one thread."""

_kernels: ModuleType | None = None


def use_compiled() -> None:
    """Use compiled code in this process from now on. It is loaded, or compiled like the consoles' code."""
    global _kernels
    from parcade.atari import pixels
    from parcade.atari.compiling.prepare import prepare

    prepare()
    _kernels = pixels if pixels.IS_COMPILED else None


def is_served(images: Tensor) -> bool:
    """Return whether compiled code can serve these images; it cannot be traced."""
    return (
        _kernels is not None
        and not torch.compiler.is_compiling()
        and images.dtype == torch.uint8
        and images.device.type == "cpu"
        and images.ndim == 4
        and images.is_contiguous()
        and torch.get_num_threads() <= MOST_THREADS
    )


def normalized(images: Tensor, offset: Tensor, scale: Tensor, clip: float, dtype: torch.dtype) -> Tensor:
    """Return ``(images - offset) * scale``, clipped, as ``[N, height, width, F]``.

    Args:
        images: for which ``is_served`` is true.
        offset, scale: float32 ``[height, width]``.
        dtype: float32 or bfloat16.
    """
    N, F, height, width = images.shape
    rows, columns = images.view(N, F, -1).numpy(), F * height * width
    pixels = offset.flatten().numpy(), scale.flatten().numpy(), np.float32(clip)
    # NumPy asks for large pages, unlike torch. Small ones take longer to get than to fill.
    if dtype == torch.float32:
        out = np.empty((N, columns), np.float32)
        _kernels.normalize_float32(rows, *pixels, out)
    else:
        out, values = np.empty((N, columns), np.uint16), np.empty(columns, np.float32)
        _kernels.normalize_bfloat16(rows, *pixels, values, values.view(np.uint32), out)
    return torch.from_numpy(out).view(dtype).view(N, height, width, F)


def newest_sums(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of the newest frame's pixels and of their squares, float64 ``[height, width]``.

    Args:
        images: for which ``is_served`` is true.
    """
    N, F, height, width = images.shape
    sums = torch.zeros(2, height * width, dtype=torch.float64)
    for rows in images.view(N, F, -1).split(_kernels.MOST_ROWS):
        part = np.zeros((2, height * width), np.uint32)
        _kernels.add_moments(rows.numpy(), F - 1, *part)
        sums += torch.from_numpy(part.astype(float))
    total, squares = sums.view(2, height, width)
    return total, squares
