"""All parameters of a module as one flat vector, with one flat gradient beside it.

One vector makes one Allreduce, one norm, one fused optimiser step, one hash and one copy to an actor.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor, nn


class FlatParameters:
    """Re-points every parameter of a module, and its gradient, into two flat buffers.

    Attributes: ``data`` ``[P]`` a leaf Parameter that an optimiser takes, ``grad`` ``[P]`` its gradient.
    Building one twice on the same module moves the parameters again; the older object is then stale.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.data = nn.Parameter(flat)
        self.grad = torch.zeros_like(flat)
        self.data.grad = self.grad
        start = 0
        for p in parameters:
            end = start + p.numel()
            p.data = self.data.detach()[start:end].view_as(p)
            p.grad = self.grad[start:end].view_as(p)
            start = end

    def digest(self) -> int:
        """The first 8 bytes of the SHA-256 of all parameters, equal on ranks that agree bit for bit."""
        return int.from_bytes(hashlib.sha256(self.data.detach().cpu().numpy().tobytes()).digest()[:8], "big")


def copy_module_state(source: nn.Module, target: nn.Module) -> None:
    """Copy every parameter and buffer between two modules of one architecture, without allocating."""
    with torch.no_grad():
        for to, from_ in zip(target.parameters(), source.parameters(), strict=True):
            to.copy_(from_)
        for to, from_ in zip(target.buffers(), source.buffers(), strict=True):
            to.copy_(from_)


def state_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, detached, each in memory of its own."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def weights_of(policy: nn.Module) -> dict[str, np.ndarray]:
    """What an actor needs of a policy: all parameters as one array ``data`` ``[P]``, and every buffer by its name."""
    flat = torch.cat([p.detach().reshape(-1) for p in policy.parameters()])
    buffers = {f"buffer.{name}": buffer.cpu().numpy().copy() for name, buffer in policy.named_buffers()}
    return {"data": flat.cpu().numpy(), **buffers}


@torch.no_grad()
def load_weights(policy: nn.Module, weights: dict[str, np.ndarray]) -> None:
    """Take what ``weights_of`` gave."""
    flat, start = torch.from_numpy(np.array(weights["data"])), 0
    for p in policy.parameters():
        p.copy_(flat[start : start + p.numel()].view_as(p))
        start += p.numel()
    for name, buffer in policy.named_buffers():
        buffer.copy_(torch.from_numpy(np.array(weights[f"buffer.{name}"])))
