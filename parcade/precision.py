"""Which number format the network computes in. Losses, parameters and statistics are always float32 or better."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class Precision:
    """``float32``, or ``bfloat16`` for the network's layers (mixed precision by autocast)."""

    name: Literal["float32", "bfloat16"] = "float32"

    def autocast(self, device: str = "cpu") -> contextlib.AbstractContextManager:
        """A context in which forward passes use this precision."""
        if self.name == "float32":
            return contextlib.nullcontext()
        return torch.autocast(device, torch.bfloat16)


def full_precision(device: str) -> contextlib.AbstractContextManager:
    """A context in which nothing is narrowed, whatever context it stands in. Torch's meta device narrows nothing anyway."""
    if not torch.amp.is_autocast_available(device):
        return contextlib.nullcontext()
    return torch.autocast(device, enabled=False)


def cpu_has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 natively (AVX512-BF16)."""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


def resolve(name: str, device: str = "cpu") -> str:
    """``auto`` as what this machine is faster in; any other name as it is. Every GPU that runs parcade has bfloat16."""
    if name != "auto":
        return name
    return "bfloat16" if device == "cuda" or cpu_has_bfloat16() else "float32"
