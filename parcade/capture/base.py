"""The interface of capture: ``capture.run(function, *arguments)`` calls a function or replays its recording.

A replay equals a call if the function follows these rules:

- It operates only on tensors: its arguments, and tensors whose address never changes (parameters, buffers,
  gradients, optimiser state). It may write the latter in place.
- It reads no value on the host (``.item()``, ``if tensor:``, ``.cpu()``), takes no data from the host
  (``torch.tensor``), and has no side effects on the host. Exceptions are the fixed arrays of ``Upload`` and
  ``Download`` (``machine/devices.py``): a replay copies what they then hold.
- It keeps no tensor that it allocated, except those it returns. The next replay overwrites these.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parcade.errors import UsageError

# Calls that run normally before one is recorded: optimisers create their state, libraries choose algorithms.
WARM_UP_CALLS = 2
# Limit of recordings: beyond it, shapes probably keep changing, and every graph has its own memory pool.
MOST_GRAPHS = 32
MOST_COUNTED = 256


class Fixed:
    """Tensor arguments that keep their values while this object is passed, so they are copied only once."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors


class Capture:
    """Call functions without recording them."""

    is_on = False
    is_recording = False
    """Whether a call is being recorded right now."""

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return ``function(*arguments)``, where the tensors of a ``Fixed`` replace it in the arguments.

        Arguments are tensors, None, or hashable values that determine what the function does. While capture
        is on, the next run of the same function overwrites tensors in the result.
        """
        return function(*_expanded(arguments))


class CaptureError(RuntimeError):
    """A function broke a rule of capture; the message says which."""


class NotCapturable(RuntimeError):
    """A function is correct but cannot be captured, e.g. because it communicates with other processes."""


class Recording(NamedTuple):
    """A recorded call: its replay, its own copies of the tensor arguments, and its outputs."""

    replay: Callable[[], None]
    inputs: list[Tensor]
    outputs: Any
    filled: dict[int, weakref.ref[Fixed]]
    """Position of an argument to the ``Fixed`` whose tensors the copies currently hold."""


class RecordingCapture(Capture):
    """Record a function once per signature of its arguments; subclasses implement ``record``.

    If a function cannot be recorded, ``strict`` raises the error. Otherwise one line on stderr reports it,
    and the function runs without recording.
    """

    is_on = True
    strict = False
    warm_up_calls = WARM_UP_CALLS

    def __init__(self) -> None:
        self._calls: OrderedDict[Any, int] = OrderedDict()
        self._recordings: dict[Any, Recording] = {}
        self._never: set[tuple[Callable[..., Any], ...]] = set()

    @property
    def num_graphs(self) -> int:
        """Number of recordings so far."""
        return len(self._recordings)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        what = (function, *(argument for argument in arguments if callable(argument)))
        if what in self._never:
            return function(*_expanded(arguments))
        key = (function, *(_kind(argument) for argument in arguments))
        recording = self._recordings.get(key)
        if recording is None:
            if self._count(key) <= self.warm_up_calls:
                return self.warm_up(function, _expanded(arguments))
            recording = self._new_recording(key, what, _expanded(arguments))
            if recording is None:
                return function(*_expanded(arguments))
        _fill(recording, arguments)
        recording.replay()
        return recording.outputs

    def _count(self, key: Any) -> int:
        self._calls[key] = self._calls.pop(key, 0) + 1
        if len(self._calls) > MOST_COUNTED:
            self._calls.popitem(last=False)
        return self._calls[key]

    def _new_recording(
        self, key: Any, what: tuple[Callable[..., Any], ...], arguments: tuple[Any, ...]
    ) -> Recording | None:
        function, name = what[0], getattr(what[min(1, len(what) - 1)], "__qualname__", "a function")
        if len(self._recordings) >= MOST_GRAPHS:
            return self._give_up(what, f"{name} was called with more than {MOST_GRAPHS} kinds of arguments")
        try:
            inputs = [argument.detach().clone() for argument in arguments if isinstance(argument, Tensor)]
            copies = iter(inputs)
            own = tuple(next(copies) if isinstance(argument, Tensor) else argument for argument in arguments)
            self.is_recording = True
            replay, outputs = self.record(function, own)
        except NotCapturable as error:
            return self._give_up(what, f"{name}: {error}")
        except torch.OutOfMemoryError as error:
            raise UsageError(
                f"the GPU has too little memory to record {name} as a CUDA graph; "
                "use --no-capture, fewer --num-envs, or a larger --num-minibatches"
            ) from error
        except RuntimeError as error:
            if self.strict:
                raise
            return self._give_up(what, f"{name}: {str(error).strip().splitlines()[0][:200]}")
        finally:
            self.is_recording = False
        recording = self._recordings[key] = Recording(replay, inputs, outputs, {})
        return recording

    def _give_up(self, what: tuple[Callable[..., Any], ...], reason: str) -> None:
        print(f"parcade: not captured, kernels are launched individually: {reason}", file=sys.stderr)
        self._never.add(what)

    def warm_up(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a call before one is recorded."""
        return function(*arguments)

    def record(
        self, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> tuple[Callable[[], None], Any]:
        """Record a call; return its replay on the same tensors and its outputs. Errors: RuntimeError."""
        raise NotImplementedError


def _expanded(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace every ``Fixed`` in the arguments by its tensors."""
    return tuple(
        x
        for argument in arguments
        for x in (argument.tensors if isinstance(argument, Fixed) else (argument,))
    )


def _kind(argument: Any) -> Any:
    """Return the part of a recording's key for one argument: shape and type of a tensor, or the value."""
    if isinstance(argument, Fixed):
        return tuple(_kind(tensor) for tensor in argument.tensors)
    if isinstance(argument, Tensor):
        return argument.shape, argument.dtype, argument.device
    if isinstance(argument, float):
        raise CaptureError("a float argument would be recorded as a constant; pass a tensor")
    return argument


def _fill(recording: Recording, arguments: tuple[Any, ...]) -> None:
    """Copy the arguments into the recording's own tensors.

    Changes cannot be detected: a replay does not increment the version counters of tensors that it writes.
    """
    own = iter(recording.inputs)
    for i, argument in enumerate(arguments):
        tensors = argument.tensors if isinstance(argument, Fixed) else (argument,)
        copies = [next(own) for tensor in tensors if isinstance(tensor, Tensor)]
        if isinstance(argument, Fixed):
            held = recording.filled.get(i)
            if held is not None and held() is argument:
                continue
            recording.filled[i] = weakref.ref(argument)
        for copy, tensor in zip(copies, (x for x in tensors if isinstance(x, Tensor)), strict=True):
            copy.copy_(tensor)
