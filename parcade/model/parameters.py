"""All parameters of a module as one flat vector, and all gradients as another.

With a flat vector, an update needs one Allreduce, one norm and one fused optimiser step; a check needs one
hash, and an actor one copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from parcade.errors import UsageError


class FlatParameters:
    """Turns every parameter that a module trains, and its gradient, into a view of two flat buffers.

    Attributes: ``data`` ``[P]``, a leaf Parameter for an optimiser; ``grad`` ``[P]``, its gradient.
    A second instance on the same module moves the parameters again and makes the first instance stale.
    Errors: UsageError if the module trains none.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = [p for p in module.parameters() if p.requires_grad]
        if not parameters:
            raise UsageError(
                f"no parameter of {type(module).__name__} has requires_grad; nothing is to be trained"
            )
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
        """Return the first 8 bytes of the SHA-256 of all parameters, to compare ranks bit for bit."""
        return int.from_bytes(hashlib.sha256(self.data.detach().cpu().numpy().tobytes()).digest()[:8], "big")


def clip_norm(grad: Tensor, max_norm: float | None) -> None:
    """Scale grad ``[P]`` in place to a norm of at most ``max_norm``, without reading a value on the host.

    None leaves it as it is.
    """
    if max_norm is not None:
        grad.mul_((max_norm / (grad.norm() + 1e-6)).clamp(max=1.0))


def check_finite(tensors: Iterable[Tensor], updates: int) -> None:
    """Check that weights are numbers. Errors: UsageError."""
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        raise UsageError(
            f"after update {updates:,} the network's weights are infinite or not numbers, so the run ends; "
            "its checkpoints are from before; use a smaller --learning-rate, or look for such rewards or "
            "observations"
        )


def copy_module_state(source: nn.Module, target: nn.Module) -> None:
    """Copy all parameters and buffers to a module of the same architecture, without allocating."""
    with torch.no_grad():
        for to, from_ in zip(target.parameters(), source.parameters(), strict=True):
            to.copy_(from_)
        for to, from_ in zip(target.buffers(), source.buffers(), strict=True):
            to.copy_(from_)


def state_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, detached, cloned and contiguous."""
    return {name: contiguous_copy(tensor) for name, tensor in module.state_dict().items()}


def contiguous_copy(tensor: Tensor) -> Tensor:
    """Return a detached copy in row-major order.

    A plain clone keeps the layout, e.g. of a frozen layer in channels last, which safetensors refuses.
    """
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def array_of(tensor: Tensor) -> np.ndarray:
    """Return a tensor as an array: a view on the CPU, except of bfloat16, which becomes float32 without loss.

    NumPy has no bfloat16.
    """
    plain = tensor.detach().cpu()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()


def tensors_of(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Return copies of arrays, which may be read-only, as tensors."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def weights_of(policy: nn.Module) -> dict[str, np.ndarray]:
    """Return a policy's weights for an actor: parameters as one array ``data`` ``[P]``; buffers by name."""
    flat = torch.cat([p.detach().reshape(-1) for p in policy.parameters()])
    buffers = {f"buffer.{name}": array_of(buffer).copy() for name, buffer in policy.named_buffers()}
    return {"data": array_of(flat), **buffers}


@torch.no_grad()
def load_weights(policy: nn.Module, weights: dict[str, np.ndarray]) -> None:
    """Load weights returned by ``weights_of``."""
    flat, start = torch.from_numpy(np.array(weights["data"])), 0
    for p in policy.parameters():
        p.copy_(flat[start : start + p.numel()].view_as(p))
        start += p.numel()
    for name, buffer in policy.named_buffers():
        buffer.copy_(torch.from_numpy(np.array(weights[f"buffer.{name}"])))
