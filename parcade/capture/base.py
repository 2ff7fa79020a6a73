"""The interface: ``capture.run(function, *arguments)`` calls a function, or replays what it did when it was recorded.

What a function must keep to, so that a replay does what a call would do:

- it works on tensors alone: those among its arguments, and others that stay at their address for good (parameters,
  buffers, gradients, optimiser state), which it may write in place;
- it reads no value on the host (``.item()``, ``if tensor:``, ``.cpu()``), takes no data from it (``torch.tensor``), and
  has no effect there;
- it keeps no tensor that it allocated, but for those it returns. These are written again by the next replay.
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

# Calls that are carried out before one is recorded: optimisers make their state in the first, libraries choose algorithms.
WARM_UP_CALLS = 2
# Beyond these a function's shapes keep changing, and every graph holds memory of its own.
MOST_GRAPHS = 32
MOST_COUNTED = 256


class Fixed:
    """Tensors among the arguments that keep their values as long as this object is passed: copied once for all its runs."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors


class Capture:
    """Calls functions as they are: nothing is recorded."""

    is_on = False
    is_recording = False
    """Whether a call is being recorded right now."""

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What ``function(*arguments)`` returns, the tensors of a ``Fixed`` in its place.

        Arguments are tensors, None, or hashable values that decide what the function does. While capture is on, tensors in
        the result are overwritten by the next run of the same function.
        """
        return function(*_expanded(arguments))


class CaptureError(RuntimeError):
    """A function broke a rule of capture; the message says which."""


class NotCapturable(RuntimeError):
    """What a function does cannot be captured, and is right without it: it asks other processes, say."""


class Recording(NamedTuple):
    """A recorded call: what replays it, its own copies of the tensors among its arguments, and what it returned."""

    replay: Callable[[], None]
    inputs: list[Tensor]
    outputs: Any
    filled: dict[int, weakref.ref[Fixed]]
    """By argument, the ``Fixed`` whose tensors the copies hold now."""


class RecordingCapture(Capture):
    """Records a function once for every kind of arguments it is called with; a subclass says how.

    ``strict`` raises what keeps a function from being recorded; else a line on stderr says so and it is called as it is.
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
        """Recorded so far."""
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
            return self._give_up(what, f"{name} came with more than {MOST_GRAPHS} kinds of arguments")
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
                f"the GPU has too little memory to record {name} as a CUDA graph; use --no-capture, fewer --num-envs, "
                "or a larger --num-minibatches"
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
        print(f"parcade: not captured, kernels are launched one by one: {reason}", file=sys.stderr)
        self._never.add(what)

    def warm_up(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Carry a call out before one is recorded."""
        return function(*arguments)

    def record(
        self, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> tuple[Callable[[], None], Any]:
        """Record a call: what replays it on the same tensors, and the outputs that it writes. Errors: RuntimeError."""
        raise NotImplementedError


def _expanded(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with every ``Fixed`` replaced by its tensors."""
    return tuple(
        x
        for argument in arguments
        for x in (argument.tensors if isinstance(argument, Fixed) else (argument,))
    )


def _kind(argument: Any) -> Any:
    """What a recording is made for: an argument's shape and type, or its value where it is no tensor."""
    if isinstance(argument, Fixed):
        return tuple(_kind(tensor) for tensor in argument.tensors)
    if isinstance(argument, Tensor):
        return argument.shape, argument.dtype, argument.device
    if isinstance(argument, float):
        raise CaptureError("a float among the arguments would be recorded for good; pass a tensor")
    return argument


def _fill(recording: Recording, arguments: tuple[Any, ...]) -> None:
    """Copy the arguments into the recording's own tensors.

    Whether a tensor has changed cannot be seen: what a replay writes leaves its version counter as it was.
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
