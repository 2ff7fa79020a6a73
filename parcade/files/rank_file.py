"""The tensors of one rank in a checkpoint: ``rank-K.safetensors``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from parcade.files.run_directory import BadCheckpoint, flush_to_disk, sha256_of


def write_rank_file(directory: Path, rank: int, tensors: dict[str, Any]) -> bytes:
    """Write one rank's tensors into an unfinished checkpoint; return the file's SHA-256. Errors: OSError.

    The directory of the run is not made again if it was deleted: without its settings, nothing resumes.
    """
    directory.mkdir(exist_ok=True)
    path = directory / f"rank-{rank}.safetensors"
    stored, addresses = {}, set()
    for name, value in tensors.items():
        tensor = _as_tensor(value)
        # safetensors refuses two tensors in the same memory.
        stored[name] = tensor.clone() if tensor.data_ptr() in addresses else tensor
        addresses.add(tensor.data_ptr())
    safetensors.torch.save_file(stored, path)
    flush_to_disk(path)
    return sha256_of(path)


def read_rank_file(
    directory: Path, rank: int, wanted: Callable[[str], bool] | None = None
) -> dict[str, Tensor]:
    """Read one rank's tensors, or those whose names are ``wanted``. Errors: BadCheckpoint."""
    path = directory / f"rank-{rank}.safetensors"
    try:
        if wanted is None:
            return safetensors.torch.load_file(path)
        with safetensors.safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys() if wanted(name)}
    except (OSError, safetensors.SafetensorError) as error:
        raise BadCheckpoint(f"{path} cannot be read ({error})") from None


def _as_tensor(value: np.ndarray | np.generic | Tensor) -> Tensor:
    """Return a contiguous tensor that safetensors can store. uint64 is stored as int64 with the same bits.

    Arrays that can be written are not copied: a replay may fill half of the memory.
    """
    if isinstance(value, Tensor):
        there = value.detach().cpu().contiguous()
        return there.clone() if value.device.type == "cpu" else there
    array = np.require(value, requirements="CW")
    return torch.as_tensor(array.view(np.int64) if array.dtype == np.uint64 else array)
