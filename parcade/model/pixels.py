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
    out = torch.empty(N, height, width, F, dtype=dtype)
    rows, columns = images.view(N, F, -1).numpy(), out.view(N, -1)
    pixels = offset.flatten().numpy(), scale.flatten().numpy(), np.float32(clip)
    if dtype == torch.float32:
        _kernels.normalize_float32(rows, *pixels, columns.numpy())
    else:
        values = torch.empty(columns.shape[1])
        bits = values.view(torch.uint32).numpy()
        _kernels.normalize_bfloat16(rows, *pixels, values.numpy(), bits, columns.view(torch.uint16).numpy())
    return out


def newest_sums(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of the newest frame's pixels and of their squares, float64 ``[height, width]``.

    Args:
        images: for which ``is_served`` is true.
    """
    N, F, height, width = images.shape
    total, squares = torch.zeros(2, height * width, dtype=torch.float64)
    for rows in images.view(N, F, -1).split(_kernels.MOST_ROWS):
        parts = torch.zeros(2, height * width, dtype=torch.uint32).numpy()
        _kernels.add_moments(rows.numpy(), F - 1, *parts)
        total += torch.from_numpy(parts[0].astype(float))
        squares += torch.from_numpy(parts[1].astype(float))
    return total.view(height, width), squares.view(height, width)
