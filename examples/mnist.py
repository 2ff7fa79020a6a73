"""Data-parallel training on handwritten digits, for any torch module and dataset, over MPI, gloo or alone.

    python examples/mnist.py                                       # scikit-learn's 1,797 digits, one process
    mpiexec -n 4 python examples/mnist.py --data DIR               # MNIST's four IDX files (.gz or not)
    torchrun --nproc-per-node 2 examples/mnist.py                  # gloo, without MPI
    mpiexec -n 4 python examples/mnist.py --device cuda            # four ranks with one GPU each
    parcade profile -- python examples/mnist.py --evaluate-every 1 # profile, evaluating every epoch

The error report is written in a straightforward, slow way: rank 0 processes every sample again, including
the training data, copies inputs and outputs batch by batch (to the GPU and back if the network is on one),
and counts the confusions. With ``--evaluate-every 1``, it costs as much as the training, and all ranks wait.
``--data-on host`` is the same pattern in training: every batch of every epoch is copied to the GPU.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's waiting threads leave the cores to others

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from parcade.data_parallel import Device, Engine, FitConfig, Place, connect, device_of, fit
from parcade.errors import UsageError, reported
from parcade.flags import parse
from parcade.machine.devices import torch_device

IDX_DTYPES = {0x08: np.uint8, 0x09: np.int8, 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@dataclass(frozen=True)
class Flags:
    """Train a small convolutional network on digits."""

    data: str = ""
    """Directory with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-...; empty uses scikit-learn's
    digits."""
    epochs: int = 30
    """Passes over the data."""
    batch_size: int = 128
    """Samples per update, over all ranks."""
    evaluate_every: int = 30
    """Epochs between error reports."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    seed: int = 0
    """Seed of the initial weights and the order of the samples."""
    device: Device = "cpu"
    """The CPU, or one GPU per rank."""
    data_on: Place = "device"
    """device: copy the training data to the GPU once; host: copy them batch by batch."""
    engine: Engine = "auto"
    """How gradients are exchanged; auto detects the launcher of this process."""
    network_interface: str = ""
    """Network interface for gloo, e.g. eth0."""
    run_dir: str = ""
    """Directory for metrics and weights; empty saves nothing."""


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file as an array. Errors: UsageError when it is invalid or truncated."""
    try:
        raw = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise UsageError(f"{path} cannot be read ({error}); expected an IDX file") from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in IDX_DTYPES or len(raw) < 4 + 4 * raw[3]:
        raise UsageError(
            f"{path} starts with {raw[:4].hex()}; expected an IDX file, which starts with 0000 and a type"
        )
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
    dtype = np.dtype(IDX_DTYPES[raw[2]])
    expected = 4 + 4 * raw[3] + math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise UsageError(
            f"{path} has {len(raw)} bytes, expected {expected} for shape {shape}; download it again"
        )
    return np.frombuffer(raw, dtype, offset=4 + 4 * raw[3]).reshape(shape)


def mnist(directory: Path) -> tuple[TensorDataset, TensorDataset]:
    """Read training and test data from MNIST's files: images ``[n, 1, 28, 28]`` in [0, 1], labels ``[n]``."""

    def one(kind: str, what: str) -> np.ndarray:
        for name in (f"{kind}-{what}-ubyte", f"{kind}-{what}-ubyte.gz"):
            if (directory / name).exists():
                return read_idx(directory / name)
        raise UsageError(f"{directory} has no {kind}-{what}-ubyte (or .gz); expected MNIST's four IDX files")

    def pair(kind: str) -> TensorDataset:
        images, labels = one(kind, "images-idx3"), one(kind, "labels-idx1")
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise UsageError(f"{kind}: images {images.shape} and labels {labels.shape} do not match")
        return TensorDataset(
            torch.from_numpy(images / np.float32(255))[:, None], torch.from_numpy(labels.astype(np.int64))
        )

    return pair("train"), pair("t10k")


def bundled_digits() -> tuple[TensorDataset, TensorDataset]:
    """Return scikit-learn's digits: images ``[n, 1, 8, 8]`` in [0, 1]; every fifth is in the test set."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UsageError(
            "the bundled digits need scikit-learn; run pip install scikit-learn, or use --data DIR"
        ) from None
    digits = load_digits()
    images = torch.from_numpy(digits.images.astype(np.float32) / 16)[:, None]
    labels = torch.from_numpy(digits.target.astype(np.int64))
    test = torch.arange(len(labels)) % 5 == 0
    return TensorDataset(images[~test], labels[~test]), TensorDataset(images[test], labels[test])


def network(side: int) -> nn.Module:
    """Build a network of two convolutions and a hidden layer for images ``[n, 1, side, side]``."""
    half = (side + 1) // 2
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * half * half, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def error_report(module: nn.Module, parts: dict[str, TensorDataset]) -> dict[str, float]:
    """Return each dataset's error in percent, and its most frequently confused pair of digits."""
    figures: dict[str, float] = {}
    device = device_of(module)
    for name, data in parts.items():
        images, labels = (tensor.clone() for tensor in data.tensors)
        outputs = [module(batch.clone().to(device)).cpu().clone() for batch in images.split(64)]
        guesses = torch.cat(outputs).argmax(1)
        confusion = torch.zeros(10, 10, dtype=torch.int64)
        for truth, guess in zip(labels.tolist(), guesses.tolist(), strict=True):
            confusion[truth, guess] += 1
        figures[f"{name}_error_percent"] = 100.0 * float((guesses != labels).double().mean())
        confusion.fill_diagonal_(0)
        figures[f"{name}_most_confused"] = int(confusion.argmax())  # 10 * digit + prediction
    return figures


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels)


def main(arguments: list[str]) -> int:
    flags = parse(Flags, arguments, prog="examples/mnist.py")
    train, test = mnist(Path(flags.data)) if flags.data else bundled_digits()
    exchange = connect(flags.engine, device=flags.device, network_interface=flags.network_interface)
    torch.manual_seed(flags.seed)
    done = fit(
        network(train.tensors[0].shape[-1]).to(torch_device(flags.device)),
        train,
        loss,
        FitConfig(
            epochs=flags.epochs,
            batch_size=flags.batch_size,
            evaluate_every=flags.evaluate_every,
            seed=flags.seed,
            data_on=flags.data_on,
        ),
        exchange=exchange,
        optimizer=lambda parameters: torch.optim.Adam(parameters, flags.learning_rate),
        evaluate=lambda module: error_report(module, {"train": train, "test": test}),
        run=Path(flags.run_dir) if flags.run_dir else None,
    )
    if exchange.rank == 0:
        rate = done.samples / done.seconds
        print(f"{done.epochs} epochs, {done.updates} updates, {rate:,.0f} samples/s, loss {done.loss:.4f}")
    exchange.close()
    return 0


if __name__ == "__main__":
    with reported("mnist.py"):
        sys.exit(main(sys.argv[1:]))
