"""CUDA graphs: record the kernels of a call once, then launch them with a single driver call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from parcade.capture.base import RecordingCapture

# One capture at a time per process: the threads of an actor and a learner may both start one.
_ONE_AT_A_TIME = threading.Lock()


class CudaGraphs(RecordingCapture):
    """CUDA graphs on one GPU. Each has its own memory pool, so graphs of two threads may run concurrently."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._stream = torch.cuda.Stream(device)

    def warm_up(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        # Use the stream that records later: autograd remembers the stream on which it accumulates a gradient.
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
        # thread_local: allocations and waits of other threads do not invalidate the capture.
        with _ONE_AT_A_TIME, torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            outputs = function(*arguments)
        return graph.replay, outputs
