"""What a fit returns, records and writes to its directory."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from parcade.data_parallel.settings import FitConfig
from parcade.files.run_directory import write_json
from parcade.machine.facts import commit, machine
from parcade.model.parameters import contiguous_copy


@dataclass
class Fit:
    """Result of a fit, on every rank; ``evaluations`` are on rank 0 only."""

    epochs: int = 0
    """Complete passes over the data."""
    updates: int = 0
    samples: int = 0
    """Over all ranks."""
    seconds: float = 0.0
    """Wall-clock time up to the last update, including all evaluations but the last."""
    epoch_seconds: list[float] = field(default_factory=list)
    """``seconds`` at the end of each complete epoch."""
    loss: float = float("nan")
    """Mean over all ranks and the last epoch, or over its updates before a stop."""
    scope_seconds: dict[str, list[float]] = field(default_factory=dict)
    """Wall-clock time in each timing scope, one value per rank. On a GPU, ``learn`` includes the
    synchronisation at the end of an epoch."""
    device_seconds: dict[str, list[float]] = field(default_factory=dict)
    """GPU time per kind of work (``device_timing.py``), one value per rank; empty on a CPU."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)


@contextlib.contextmanager
def reporting(say: Callable[[str], None], run: Path) -> Iterator[None]:
    """Say that a result cannot be written. The caller still has the module."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # the last for a full disk
        say(f"warning: the results of this fit cannot be written to {run} ({error})")


def recordable(figures: Any) -> dict[str, Any]:
    """Return the metrics of an evaluation as JSON values. What JSON lacks is recorded as text.

    A mistake in them must not cost the training that led to them.
    """
    if not isinstance(figures, Mapping):
        return {} if figures is None else {"evaluation": repr(figures)}
    return {str(name): _json_value(value) for name, value in figures.items()}


def _json_value(value: Any) -> Any:
    """Return a JSON value; None for NaN and infinities, the text of an object for what is none."""
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = value.item() if math.prod(value.shape) == 1 else value.tolist()
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return None if isinstance(value, float) else repr(value)
    return value


def write_module(run: Path, module: nn.Module) -> None:
    """Write ``module.safetensors``. Errors: OSError or SafetensorError, as on a full disk."""
    # An extra state (torch's get_extra_state) may be any object; the file holds tensors only.
    state = {name: each for name, each in module.state_dict().items() if isinstance(each, Tensor)}
    tensors = {name: contiguous_copy(tensor) for name, tensor in state.items()}
    temporary = run / "module.safetensors.tmp"
    try:
        safetensors.torch.save_file(tensors, temporary)
        os.replace(temporary, run / "module.safetensors")
    finally:
        temporary.unlink(missing_ok=True)


def write_figures(run: Path, done: Fit, config: FitConfig, *, device: torch.device, ranks: int) -> None:
    """Write ``result.json``. Errors: OSError."""
    result = {
        "epochs": done.epochs,
        "updates": done.updates,
        "samples": done.samples,
        "seconds": round(done.seconds, 3),
        "epoch_seconds": [round(seconds, 4) for seconds in done.epoch_seconds],
        "samples_per_second": round(done.samples / done.seconds, 1),
        "loss": _json_value(done.loss),
        "ranks": ranks,
        "batch_size": config.batch_size,
        "evaluate_every": config.evaluate_every,
        "device": str(device),
        "data_on": config.data_on,
        "scope_seconds": {
            name: [round(s, 4) for s in seconds] for name, seconds in done.scope_seconds.items()
        },
        "device_seconds": {
            name: [round(s, 4) for s in seconds] for name, seconds in done.device_seconds.items()
        },
        "commit": commit(),
        "machine": machine(),
    }
    write_json(run / "result.json", result)
