"""Data-parallel supervised training of any torch module on any dataset, with the agents' gradient exchange.

Every rank holds the module and processes its portion of every batch. One Allreduce per update averages one
flat gradient, so N ranks with B samples each take the same updates as one process with N * B. Parameters of
several dtypes and resuming are not supported.

The device of the module's parameters decides where it trains: on the CPU, or on one GPU per rank. The order
of the samples is drawn on the host. On a GPU, the order of an epoch is copied at its start; the data are
copied once, or batch by batch (``data_on``). The loss is summed on the device and read after the last epoch.

The evaluation runs on rank 0, while the other ranks wait for it in their next update. Every rank therefore
pays for an evaluation. ``parcade profile`` shows this cost; ``evaluate_every`` sets the interval.
"""

from parcade.data_parallel.connection import Engine, connect
from parcade.data_parallel.data import batches, placed
from parcade.data_parallel.evaluations import Evaluate
from parcade.data_parallel.fitting import Loss, fit
from parcade.data_parallel.results import Fit
from parcade.data_parallel.settings import Device, FitConfig, Place, device_of

__all__ = [
    "Device", "Engine", "Evaluate", "Fit", "FitConfig", "Loss", "Place", "batches", "connect", "device_of",
    "fit", "placed",
]  # fmt: skip
