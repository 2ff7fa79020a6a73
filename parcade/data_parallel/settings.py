"""The settings of a fit, and what a module, a dataset and the ranks must fulfil."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from parcade.errors import UsageError
from parcade.exchange.base import Exchange

Device = Literal["cpu", "cuda"]
Place = Literal["device", "host"]


@dataclass(frozen=True)
class FitConfig:
    """Settings of a fit. A batch is the batch of all ranks together."""

    epochs: int = 30
    """Passes over the data."""
    batch_size: int = 128
    """Samples per update over all ranks; an incomplete last batch of an epoch is dropped."""
    evaluate_every: int = 30
    """Epochs between evaluations. The last epoch is always evaluated; 0 disables evaluation."""
    seed: int = 0
    """Seed of the order of the samples."""
    max_grad_norm: float | None = None
    """Gradients are clipped to this norm; None disables clipping."""
    data_on: Place = "device"
    """Where a TensorDataset is kept when training on a GPU: device copies it to every rank's GPU once, before
    the first epoch; host copies it batch by batch in every epoch. Other datasets are always copied batch by
    batch. On a CPU, nothing is copied."""
    hang_seconds: float = 120.0
    """End the job when no rank makes progress for this long; 0 disables. An evaluation, for which all other
    ranks wait, must take less."""


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's parameters."""
    return next(module.parameters()).device


def check_fit(module: nn.Module, dataset: Dataset, config: FitConfig, exchange: Exchange) -> None:
    """Check what this rank can tell alone of a fit's arguments. Errors: UsageError."""
    device = _check_module(module)
    # connect(device="cuda") attaches the device clock.
    if device.type == "cuda" and exchange.world_size > 1 and exchange.timer.device_clock is None:
        raise UsageError(
            f"the module is on {device}, but the ranks are connected for the CPU; use connect(device='cuda')"
        )
    if config.data_on not in get_args(Place):
        raise UsageError(f"data_on={config.data_on!r}; expected one of {', '.join(get_args(Place))}")
    for name in ("epochs", "batch_size", "evaluate_every", "seed"):
        if not isinstance(getattr(config, name), int):
            raise UsageError(f"{name}={getattr(config, name)!r}: expected an integer")
    norm, hang = config.max_grad_norm, config.hang_seconds
    if norm is not None and not (isinstance(norm, (int, float)) and norm > 0):
        raise UsageError(f"max_grad_norm={norm!r}: expected a number above 0, or None")
    if not (isinstance(hang, (int, float)) and hang >= 0):
        raise UsageError(f"hang_seconds={hang!r}: expected a number of 0 or more")
    if not hasattr(dataset, "__len__"):
        raise UsageError(
            f"a {type(dataset).__name__} has no length; every rank takes its portion of a dataset's rows by "
            "number, so it needs __len__ and __getitem__"
        )
    if config.epochs < 1 or config.batch_size < 1 or config.evaluate_every < 0:
        raise UsageError(
            f"epochs={config.epochs}, batch_size={config.batch_size}, "
            f"evaluate_every={config.evaluate_every}: expected 1 or more, 1 or more, and 0 or more"
        )
    most = 2**63 - 1 - config.epochs  # the sampler adds the epoch
    if not -(2**63) <= config.seed <= most:
        raise UsageError(f"seed={config.seed}: expected an integer from {-(2**63)} to {most}")
    if config.batch_size % exchange.world_size:
        below = config.batch_size // exchange.world_size * exchange.world_size
        choice = f"{below} or {below + exchange.world_size}" if below else str(exchange.world_size)
        raise UsageError(
            f"batch_size={config.batch_size} is not divisible by world_size={exchange.world_size}; "
            f"use {choice}"
        )
    if len(dataset) < config.batch_size:
        raise UsageError(
            f"batch_size={config.batch_size} is more than the {len(dataset)} samples of the dataset; "
            "use a smaller batch"
        )


def check_same(
    module: nn.Module, dataset: Any, config: FitConfig, exchange: Exchange, *, has_run: bool
) -> None:
    """Check what all ranks must share, or their collective calls would not match. Errors: UsageError."""
    own = {
        "len(dataset)": len(dataset),
        "batch_size": config.batch_size,
        "epochs": config.epochs,
        "evaluate_every": config.evaluate_every,
        "seed": config.seed,
        "max_grad_norm (0: None)": config.max_grad_norm or 0,
        "data_on (0: device, 1: host)": get_args(Place).index(config.data_on),
        "hang_seconds": config.hang_seconds,
        "run (0: None, 1: a directory)": has_run,
        "number of parameters": sum(p.numel() for p in module.parameters()),
        "number of buffer elements": sum(b.numel() for b in module.buffers()),
    }
    rows = exchange.gather_rows(np.array([list(own.values())], np.float64))
    for rank, row in enumerate(rows):
        for name, first, value in zip(own, rows[0], row, strict=True):
            if value != first:
                raise UsageError(
                    f"{name} is {value:.12g} on rank {rank} and {first:.12g} on rank 0; "
                    "give every rank the same dataset, module and settings"
                )


def _check_module(module: nn.Module) -> torch.device:
    """Return a module's device. Errors: UsageError unless it is float32 on one device, a CPU or a GPU."""
    parameters, buffers = list(module.parameters()), list(module.buffers())
    devices = {tensor.device for tensor in (*parameters, *buffers)}
    is_float = all(parameter.dtype == torch.float32 for parameter in parameters)
    if parameters and is_float and len(devices) == 1 and device_of(module).type in get_args(Device):
        return device_of(module)
    kinds = sorted({f"{parameter.dtype} on {parameter.device}" for parameter in parameters})
    kinds += sorted({f"buffers on {buffer.device}" for buffer in buffers if len(devices) > 1})
    raise UsageError(
        f"parameters are {', '.join(kinds) or 'none'}; expected torch.float32 on one device, cpu or cuda; "
        "convert the module first"
    )
