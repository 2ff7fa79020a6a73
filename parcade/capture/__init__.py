"""Recording a device's work once and replaying it, so that Python launches no kernel one by one.

``base.py`` is the interface, and work that is not recorded; ``cuda_graph.py`` records CUDA graphs; ``stand_in.py`` records on the
CPU and enforces a graph's rules, for machines without a GPU.
"""

from __future__ import annotations

import torch

from parcade.capture.base import Capture, CaptureError, Fixed
from parcade.devices import is_stand_in

__all__ = ["Capture", "CaptureError", "Fixed", "make_capture"]


def make_capture(device: str, *, enabled: bool = True) -> Capture:
    """What records work on a device of this name: graphs on ``cuda``, nothing on ``cpu`` or where it is not ``enabled``."""
    if device == "cpu" or not enabled:
        return Capture()
    if is_stand_in():
        from parcade.capture.stand_in import StandInGraphs

        return StandInGraphs()
    from parcade.capture.cuda_graph import CudaGraphs

    return CudaGraphs(torch.device(device))
