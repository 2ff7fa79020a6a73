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

    def is_fast_here(self) -> bool:
        """Whether this machine's CPU computes in this format natively; when not, bfloat16 is slower than float32."""
        if self.name == "float32":
            return True
        return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())
