"""Record the work of a device once and replay it, so that Python does not launch every kernel individually.

``base.py`` defines the interface and runs work without recording. ``cuda_graph.py`` records CUDA graphs.
``stand_in.py`` records on the CPU and enforces the rules of CUDA graphs, for machines without a GPU.
"""

from __future__ import annotations

import torch

from parcade.capture.base import Capture, CaptureError, Fixed
from parcade.machine.devices import is_stand_in

__all__ = ["Capture", "CaptureError", "Fixed", "make_capture"]


def make_capture(device: str, *, enabled: bool = True) -> Capture:
    """Return the capture of a device: CUDA graphs on ``cuda``; none on ``cpu`` or if not ``enabled``."""
    if device == "cpu" or not enabled:
        return Capture()
    if is_stand_in():
        from parcade.capture.stand_in import StandInGraphs

        return StandInGraphs()
    from parcade.capture.cuda_graph import CudaGraphs

    return CudaGraphs(torch.device(device))
