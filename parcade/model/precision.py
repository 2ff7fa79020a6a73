"""The network's floating-point format. Losses, parameters and statistics are always float32 or wider."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class Precision:
    """``float32``, or ``bfloat16`` for the network's layers (mixed precision with autocast)."""

    name: Literal["float32", "bfloat16"] = "float32"

    @property
    def dtype(self) -> torch.dtype:
        """torch's type of the format."""
        return getattr(torch, self.name)

    def autocast(self, device: str = "cpu") -> contextlib.AbstractContextManager:
        """Return a context in which forward passes use this precision."""
        if self.name == "float32":
            return contextlib.nullcontext()
        return torch.autocast(device, torch.bfloat16)


def full_precision(device: str) -> contextlib.AbstractContextManager:
    """Return a context that disables autocast. Torch's meta device has no autocast."""
    if not torch.amp.is_autocast_available(device):
        return contextlib.nullcontext()
    return torch.autocast(device, enabled=False)


def autocast_dtype(device: str) -> torch.dtype:
    """Return the format to which the present autocast converts; float32 without autocast."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return torch.float32


def cpu_has_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 natively (AVX512-BF16)."""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


def resolve(name: str, device: str = "cpu") -> Literal["float32", "bfloat16"]:
    """Replace ``auto`` by the faster format on this device; every GPU that runs parcade supports bfloat16."""
    if name != "auto":
        return name
    return "bfloat16" if device == "cuda" or cpu_has_bfloat16() else "float32"
