"""CUDA graphs without a GPU: record operations on the CPU and enforce the rules of real graphs.

A call is recorded operation by operation below autograd and replayed on the same memory. As on a GPU, the
replay does not repeat what the function did on the host. If the function follows the rules, results are
bit-identical to a call.

Recording rejects values read on the host, data taken from the host, shapes that depend on values, and kept
tensors that were allocated inside. A replay rejects tensors whose address, shape or type has changed.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from parcade.capture.base import CaptureError, RecordingCapture

aten = torch.ops.aten
READS_A_VALUE = {aten._local_scalar_dense, aten.is_nonzero, aten.equal, aten.item}
SHAPE_FROM_VALUES = {
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
}
T = torch.Tensor
TO_THE_HOST = {T.item, T.tolist, T.numpy, T.cpu, T.__bool__, T.__int__, T.__float__, T.__index__}
FROM_THE_HOST = {torch.tensor, torch.as_tensor, torch.from_numpy, T.pin_memory}


class StandInGraphs(RecordingCapture):
    """Recordings on the CPU; every violation of a rule raises CaptureError."""

    strict = True
    warm_up_calls = 1

    def __init__(self) -> None:
        super().__init__()
        allow_capturable_optimizers()

    def record(
        self, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> tuple[Callable[[], None], Any]:
        tape = Tape()
        # A real capture executes nothing, so undo in-place changes of the recording; the replay applies them.
        try:
            with HostRules(), Operations(tape):
                outputs = function(*arguments)
        finally:
            tape.undo()
        outputs = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, outputs)
        tape.check_nothing_kept(function)
        return tape.replay, outputs


class HostRules(TorchFunctionMode):
    """Reject calls that move values between host and device, although both are the same memory here."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in TO_THE_HOST:
            raise CaptureError(
                f"Tensor.{func.__name__} reads a value on the host, which a captured function must not"
            )
        # torch's optimisers are exempt: only on the CPU do they add a host constant to step counts.
        if func in FROM_THE_HOST and not sys._getframe(1).f_globals["__name__"].startswith("torch.optim"):
            raise CaptureError(
                f"{func.__name__} takes data from the host, which a captured function must not"
            )
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """Write every operation to a tape."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if packet in READS_A_VALUE:
            raise CaptureError(f"{packet} reads a value on the host, which a captured function must not")
        by_mask = packet in (aten.index, aten.index_put, aten.index_put_) and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if packet in SHAPE_FROM_VALUES or by_mask:
            raise CaptureError(
                f"{packet} returns a shape that depends on values, which a captured function must not"
            )
        return self.tape.write(func, args, kwargs)


class Tape:
    """Operations in order, on tensors with fixed addresses."""

    def __init__(self) -> None:
        self._operations: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self._known = WeakTensorKeyDictionary()  # tensor to its detached alias
        self._outside: list[tuple[Tensor, int, torch.Size, torch.dtype]] = []
        self._before: list[tuple[Tensor, Tensor]] = []
        self._made: list[weakref.ref[Tensor]] = []
        self._made_storages: set[int] = set()

    def write(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation and record it."""
        held_args, held_kwargs = tree_map(self._held, args), tree_map(self._held, kwargs)
        self._keep_before(func, held_args, held_kwargs)
        result = func(*args, **kwargs)
        taken = {_storage(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        fresh = []
        for i, out in enumerate(tree_leaves(result)):
            if not isinstance(out, Tensor) or out in self._known:
                continue
            self._known[out] = out.detach()
            if _storage(out) not in taken:
                self._made_storages.add(_storage(out))
                self._made.append(weakref.ref(out))
                fresh.append((i, self._known[out]))
        self._operations.append((func, held_args, held_kwargs, fresh))
        return result

    def _held(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if x not in self._known:
            self._known[x] = x.detach()
            if _storage(x) not in self._made_storages:
                self._outside.append((x, x.data_ptr(), x.shape, x.dtype))
        return self._known[x]

    def _keep_before(self, func: Any, args: Any, kwargs: Any) -> None:
        """Save outside tensors that an operation is about to overwrite."""
        values = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        for argument in func._schema.arguments:
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for x in tree_leaves(values.get(argument.name)):
                if isinstance(x, Tensor) and _storage(x) not in self._made_storages:
                    self._before.append((x, x.clone()))

    @torch.no_grad()
    def undo(self) -> None:
        """Restore overwritten tensors in reverse order."""
        for x, before in reversed(self._before):
            x.copy_(before)
        self._before.clear()

    @torch.no_grad()
    def replay(self) -> None:
        """Run all operations again. Errors: CaptureError if a tensor has a new address, shape or type."""
        for x, address, shape, dtype in self._outside:
            if (x.data_ptr(), x.shape, x.dtype) != (address, shape, dtype):
                raise CaptureError(
                    f"a recorded tensor of shape {tuple(shape)} and {dtype} has a new address, or shape "
                    f"{tuple(x.shape)} and {x.dtype}; captured tensors must not move"
                )
        for func, args, kwargs, fresh in self._operations:
            leaves = tree_leaves(func(*args, **kwargs)) if fresh else func(*args, **kwargs)
            for i, own in fresh:
                if leaves[i].shape != own.shape or leaves[i].dtype != own.dtype:
                    raise CaptureError(
                        f"{func} returned shape {tuple(leaves[i].shape)}; recorded {tuple(own.shape)}"
                    )
                own.copy_(leaves[i])

    def check_nothing_kept(self, function: Any) -> None:
        """Check that no tensor allocated inside is still referenced: a replay would not update it.

        Errors: CaptureError.
        """
        if any(ref() is not None for ref in self._made):
            gc.collect()
        kept = [ref() for ref in self._made if ref() is not None]
        if kept:
            name = getattr(function, "__qualname__", function)
            raise CaptureError(
                f"{name} keeps a tensor of shape {tuple(kept[0].shape)} that was allocated inside the capture"
            )


def _storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def allow_capturable_optimizers() -> None:
    """Allow the capturable form of torch's optimisers on the CPU; torch allows it only on accelerators."""
    from torch.optim import radam, rmsprop

    for module in (radam, rmsprop):
        found = module._get_capturable_supported_devices
        if "cpu" not in found():
            module._get_capturable_supported_devices = lambda *args, found=found, **words: [
                *found(*args, **words),
                "cpu",
            ]
