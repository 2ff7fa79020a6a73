"""CUDA graphs: the kernels of a call recorded once, then launched by a single call of the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from parcade.capture.base import RecordingCapture

# One capture at a time in a process: an actor's thread may want one while the learner takes its own.
_ONE_AT_A_TIME = threading.Lock()


class CudaGraphs(RecordingCapture):
    """Graphs on one GPU. Every graph has a memory pool of its own, so that graphs of two threads may run at once."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._stream = torch.cuda.Stream(device)

    def warm_up(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        # On the stream that records later: autograd remembers on which stream a parameter's gradient is added up.
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = function(*arguments)
        current.wait_stream(self._stream)
        return outputs

    def record(
        self, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> tuple[Callable[[], None], Any]:
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        # thread_local: what another thread allocates or waits for meanwhile does not spoil the capture.
        with _ONE_AT_A_TIME, torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            outputs = function(*arguments)
        return graph.replay, outputs
