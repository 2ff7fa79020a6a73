"""The samples of a fit: where a dataset is kept, and one rank's batches of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from parcade.data_parallel.settings import Place
from parcade.errors import UsageError
from parcade.machine.devices import free_device_memory
from parcade.machine.timing import Timer


def placed(dataset: Dataset, device: torch.device, data_on: Place) -> Dataset:
    """Return the dataset; for ``data_on="device"``, a TensorDataset is copied there. Errors: UsageError."""
    if data_on == "host" or not isinstance(dataset, TensorDataset):
        return dataset
    missing = sum(t.numel() * t.element_size() for t in dataset.tensors if t.device != device)
    if missing and device.type == "cuda" and missing > (free := free_device_memory("cuda")):
        raise UsageError(
            f"the data take {missing / 2**30:.1f} GiB, but the GPU has only {free / 2**30:.1f} GiB free; "
            "use data_on='host'"
        )
    return TensorDataset(*(tensor.to(device) for tensor in dataset.tensors))


def batches(
    dataset: Dataset, sampler: DistributedSampler, batch_size: int, *, device: torch.device, timer: Timer
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one rank's batches of an epoch on a device. The ranks' i-th batches form one global batch."""
    if not isinstance(dataset, TensorDataset):
        # Batches are collated on the host. Pinned memory lets a copy overlap with collating the next batch.
        is_on_gpu = device.type == "cuda"
        for batch in DataLoader(dataset, batch_size, sampler=sampler, drop_last=True, pin_memory=is_on_gpu):
            yield _copied(batch, device, timer, non_blocking=is_on_gpu)
        return
    # Index all rows of a batch at once; DataLoader would fetch and stack samples one by one. The order is
    # copied to the device of the data once per epoch.
    order = torch.tensor(list(sampler)).to(dataset.tensors[0].device)
    for start in range(0, len(order) - batch_size + 1, batch_size):
        rows = [tensor[order[start : start + batch_size]] for tensor in dataset.tensors]
        # A synchronous copy: data_on="host" reproduces the straightforward implementation.
        yield _copied(rows, device, timer)


def _copied(
    batch: list[Any], device: torch.device, timer: Timer, *, non_blocking: bool = False
) -> tuple[Any, ...]:
    """Copy the tensors of a batch to a device. Tensors already there and other objects are kept."""
    elsewhere = [isinstance(part, Tensor) and part.device != device for part in batch]
    if not any(elsewhere):
        return tuple(batch)
    with timer.on_device("copies"):
        return tuple(
            part.to(device, non_blocking=non_blocking) if moves else part
            for part, moves in zip(batch, elsewhere, strict=True)
        )
