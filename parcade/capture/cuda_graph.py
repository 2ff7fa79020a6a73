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
        self._device = device
        self._recording_stream: torch.cuda.Stream | None = None

    @property
    def _stream(self) -> torch.cuda.Stream:
        """The stream that records. A graph's kernels keep its priority, so it is that of the first caller."""
        if self._recording_stream is None:
            priority = torch.cuda.current_stream(self._device).priority
            self._recording_stream = torch.cuda.Stream(self._device, priority=priority)
        return self._recording_stream

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
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self._stream.wait_stream(current)
        # thread_local: allocations and waits of other threads do not invalidate the capture.
        recording = torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")
        try:
            with _ONE_AT_A_TIME, recording:
                outputs = function(*arguments)
        finally:  # the context does not return to the stream before it if the capture was invalidated
            torch.cuda.set_stream(current)
        return graph.replay, outputs
