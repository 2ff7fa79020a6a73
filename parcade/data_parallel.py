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

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from parcade.cluster import mpi, torchrun
from parcade.cluster.heartbeat import Heartbeat, activity_of
from parcade.cluster.ranks import check_versions
from parcade.cluster.signals import STOP_FILE, StopRequest
from parcade.errors import UsageError
from parcade.exchange.agreement import RareAgreement
from parcade.exchange.base import Exchange, LocalExchange, OptimizerFactory
from parcade.exchange.choice import exchange_of_ranks
from parcade.exchange.collective import wait_for_device
from parcade.fit_results import Fit, recordable, reporting, write_figures, write_module
from parcade.fit_settings import Device, FitConfig, Place, check_fit, check_same, device_of
from parcade.machine.device_timing import attach_device_clock, device_seconds
from parcade.machine.devices import check_gpu, free_device_memory, is_stand_in, torch_device
from parcade.machine.threads import check_threads, set_threads, threads_asked_for
from parcade.machine.timing import Timer
from parcade.profile.recorder import recorder_from_environment
from parcade.report.writers import MetricsFile, Writers

__all__ = [
    "Device", "Engine", "Evaluate", "Fit", "FitConfig", "Loss", "Place", "batches", "connect", "device_of",
    "fit", "placed",
]  # fmt: skip

Loss = Callable[[Tensor, Tensor], Tensor]
Evaluate = Callable[[nn.Module], dict[str, Any]]
Engine = Literal["auto", "local", "mpi", "gloo"]


def connect(
    engine: Engine = "auto",
    *,
    device: Device = "cpu",
    network_interface: str = "",
    timeout_seconds: float = 120.0,
) -> Exchange:
    """Return the exchange for the launcher of this process: mpiexec, torchrun or none.

    With ``device="cuda"``, every rank gets its own GPU, which becomes torch's current device, and NCCL
    transfers GPU tensors. Also sizes torch's thread pool: to ``OMP_NUM_THREADS`` if set, otherwise to an even
    portion of the cores. Under mpiexec, an exception that ends one rank's program from now on ends all ranks.

    Errors: UsageError for a missing launcher or GPU, for more ranks than GPUs on a host, or for an
    ``OMP_NUM_THREADS`` far above the number of cores.
    """
    for name, value, known in (("engine", engine, Engine), ("device", device, Device)):
        if value not in get_args(known):
            raise UsageError(f"{name}={value!r}; expected one of {', '.join(get_args(known))}")
    check_threads("OMP_NUM_THREADS", threads_asked_for())
    if device == "cuda":
        check_gpu("device 'cuda'")
    if engine == "auto":
        engine = "gloo" if torchrun.launched_by_torchrun() else "mpi" if mpi.launched_by_mpi() else "local"
    timer = Timer()
    exchange = _connected_exchange(engine, timer, device == "cuda", network_interface, timeout_seconds)
    if device == "cuda":
        attach_device_clock([timer], torch_device(device))
    set_threads(
        threads_asked_for(), exchange.local_size, len(exchange.local_cores), serial=False, overlap=False
    )
    return exchange


def _connected_exchange(
    engine: Engine, timer: Timer, cuda: bool, network_interface: str, timeout_seconds: float
) -> Exchange:
    if engine == "local":
        return LocalExchange(timer)
    if engine == "gloo":
        torchrun.connect(
            cuda=cuda and not is_stand_in(),
            network_interface=network_interface,
            timeout_seconds=timeout_seconds,
        )
    else:
        mpi.find_mpiexec()
        mpi.mpi_rank()
        check_versions()
        mpi.abort_on_exceptions()
    return exchange_of_ranks(
        timer,
        gloo=engine == "gloo",
        cuda=cuda,
        timeout_seconds=timeout_seconds,
        network_interface=network_interface,
    )


# Said at once: an update or an evaluation may take long.
STOPPING = "stopping after the updates of the next few seconds; Ctrl-C again ends at once"


def fit(
    module: nn.Module,
    dataset: Dataset,
    loss: Loss,
    config: FitConfig,
    *,
    exchange: Exchange,
    optimizer: OptimizerFactory,
    evaluate: Evaluate | None = None,
    run: Path | None = None,
    say: Callable[[str], None] = print,
) -> Fit:
    """Train a module in place. Collective: every rank calls it.

    Args:
        module: float32 parameters on one device, the CPU or this rank's GPU. The dataset may be on the host.
        dataset: yields ``(input, target)``; the same on every rank.
        loss: ``loss(module(input), target)``, a mean over samples.
        optimizer: creates the optimiser of one flat parameter vector, e.g.
            ``lambda p: torch.optim.Adam(p, 1e-3)``.
        evaluate: called on rank 0 with the module in evaluation mode; returns metrics to record, by name.
            Tensors and NumPy arrays of one number are recorded as numbers; a metric of the name ``epoch``,
            ``updates`` or ``seconds`` as ``evaluation/NAME``.
        run: a directory that every rank can access, for ``metrics.jsonl``, ``result.json``,
            ``module.safetensors`` and heartbeats.
        say: called on rank 0 with one line per evaluation, and one if the fit is stopped.

    The first Ctrl-C or SIGTERM on any rank, or a file ``stop`` in ``run``, stops all ranks after the same
    update, within a few seconds of updates. The fit then ends as after its last epoch.

    Results that cannot be written at the end, e.g. on a full disk, are reported with ``say``. An exception of
    ``evaluate``, ``loss`` or the dataset on rank 0 leaves the module of the last update in ``run``.

    Errors: UsageError for a batch size that the number of ranks does not divide, an unsupported module, a
    directory that cannot be made or holds a run of ``parcade train``, data that do not fit on the GPU, or
    ranks with different datasets or settings; RuntimeError when the ranks' parameters differ at the end.
    """
    check_fit(module, dataset, config, exchange)
    check_same(module, dataset, config, exchange, has_run=run is not None)
    if run is not None:
        run = Path(run)
        if (run / "config.json").exists():
            raise UsageError(f"{run} holds a run of parcade train; use another directory")
    dataset = placed(dataset, device_of(module), config.data_on)
    exchange.attach(module, optimizer, config.max_grad_norm)
    _share_buffers(module, exchange)  # which initialisations may have drawn at random, as parameters
    with (
        mpi.aborting_on_exit() if exchange.world_size > 1 else contextlib.nullcontext(),
        _registered(run, config, exchange) if run else contextlib.nullcontext(),
    ):
        with StopRequest(run, STOPPING if exchange.rank == 0 else "") as stop:
            fitting = _Fitting(module, dataset, loss, config, exchange, evaluate, run, say, stop)
            try:
                done = fitting.run_epochs()
            except Exception:  # of the caller's code
                if run is not None and exchange.rank == 0 and fitting.done.updates:
                    with reporting(say, run):
                        write_module(run, module)
                        say(f"the module of update {fitting.done.updates:,} is in {run}")
                raise
        _share_buffers(module, exchange)
        exchange.check_parameters()
        if run is not None and exchange.rank == 0:
            with reporting(say, run):
                write_module(run, module)
                write_figures(run, module, config, exchange, done)
    return done


def _registered(run: Path, config: FitConfig, exchange: Exchange) -> Heartbeat:
    from parcade.cluster.processes import clear_records

    failure = "the first rank cannot write it"
    is_ready = torch.ones(1)
    if exchange.rank == 0:
        try:
            run.mkdir(parents=True, exist_ok=True)
            clear_records(run)
            (run / STOP_FILE).unlink(missing_ok=True)
            (run / "metrics.jsonl").unlink(missing_ok=True)
        except OSError as error:
            failure = error.strerror
            is_ready.zero_()
    # Register only after rank 0 has removed an earlier fit's records.
    if not exchange.broadcast(is_ready):
        raise UsageError(f"run={run} cannot be a directory of results ({failure}); use another one")
    activity = lambda: activity_of([exchange.timer])  # noqa: E731
    return mpi.registered(
        run,
        config.hang_seconds,
        activity,
        by_mpi=mpi.launched_by_mpi(),
        rank=exchange.rank,
        advice="start it again",
    )


class _Fitting:
    """The loop over epochs and batches, with its counters."""

    def __init__(self, module, dataset, loss, config, exchange, evaluate, run, say, stop) -> None:
        self.module, self.dataset, self.loss, self.config, self.exchange = (
            module, dataset, loss, config, exchange)  # fmt: skip
        self.evaluate, self.say, self.stop = evaluate, say, stop
        self.writer = Writers([MetricsFile(run)] if run is not None else [], say)
        self.timer: Timer = exchange.timer
        self.device = device_of(module)
        self.done = Fit()
        self.sampler = DistributedSampler(
            dataset, exchange.world_size, exchange.rank, shuffle=True, seed=config.seed, drop_last=True
        )
        self.per_rank = config.batch_size // exchange.world_size
        self._batches_per_epoch = len(self.sampler) // self.per_rank
        self.recorder = recorder_from_environment(exchange, self.timer)
        self.agreement = RareAgreement(exchange)
        self.steps = self.frames = 0
        self._epoch_loss, self._epoch_batches = torch.zeros(1, device=self.device), 0

    def run_epochs(self) -> Fit:
        clock = self.timer.device_clock
        started, before = time.perf_counter(), self.timer.snapshot()
        before_on_device = clock.snapshot() if clock else {}
        ends = False
        while self.done.epochs < self.config.epochs and not ends:
            ends = self._epoch()
            self.done.seconds = time.perf_counter() - started
            if not ends or self._epoch_batches == self._batches_per_epoch:
                self.done.epochs += 1
                self.done.epoch_seconds.append(self.done.seconds)
            last = ends or self.done.epochs == self.config.epochs
            if self._is_evaluation_due(last):
                self._evaluate()
        if self.recorder is not None:
            self.recorder.write()
        spent = {name: seconds - before[name] for name, seconds in self.timer.snapshot().items()}
        self.done.scope_seconds = self._of_all_ranks(spent)
        if clock is not None:
            wall_seconds = time.perf_counter() - started
            self.done.device_seconds = self._of_all_ranks(
                device_seconds(before_on_device, clock.snapshot(), wall_seconds)
            )
        mean = self.exchange.sum(self._epoch_loss / max(self._epoch_batches, 1)) / self.exchange.world_size
        self.done.loss = float(mean)
        return self.done

    def _of_all_ranks(self, seconds: dict[str, float]) -> dict[str, list[float]]:
        rows = self.exchange.gather_rows(np.array([list(seconds.values())]))
        return {name: rows[:, i].tolist() for i, name in enumerate(seconds)}

    def _epoch(self) -> bool:
        """Train for one epoch, or up to the update after which all ranks end the fit; return whether they do.

        Reads nothing from a GPU.
        """
        self.sampler.set_epoch(self.done.epochs)
        self._epoch_loss.zero_()
        self._epoch_batches = 0
        self.module.train()
        ends = False
        for inputs, targets in batches(self.dataset, self.sampler, self.per_rank, self.device, self.timer):
            with self.timer.scope("learn"):
                self._epoch_loss += self.exchange.minimize(self._loss_of, inputs, targets)["loss"]
            self._epoch_batches += 1
            self.done.updates += 1
            self.done.samples += self.config.batch_size
            self.steps += self.per_rank
            if self.recorder is not None:
                self.recorder.end_iteration(self)
            ends = self.agreement.count_update() and self._agree_to_end()
            if ends:
                break
        with self.timer.scope("learn"):
            wait_for_device(self._epoch_loss)  # asynchronous GPU work counts in this epoch
        return ends

    def _loss_of(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.loss(self.module(inputs), targets)
        return loss, {"loss": loss.detach()}

    def _agree_to_end(self) -> bool:
        """Return whether a stop was requested on any rank, or a recording is full. Collective."""
        if self.recorder is None:
            (stops,), is_full = self.agreement.ask(self.stop.requested()), False
        else:
            with self.recorder.outside_window():
                stops, is_full = self.agreement.ask(
                    self.stop.requested(), self.recorder.is_full, seconds_left=self.recorder.seconds_left
                )
        if stops and self.exchange.rank == 0:
            self.say(f"stopped within epoch {self.done.epochs + 1}, after update {self.done.updates:,}")
        return stops or is_full

    def _is_evaluation_due(self, last: bool) -> bool:
        every = self.config.evaluate_every
        return self.evaluate is not None and every > 0 and (last or self.done.epochs % every == 0)

    def _evaluate(self) -> None:
        """Evaluate on rank 0. The other ranks do not wait here but in their next update."""
        if self.exchange.rank != 0:
            return
        with self.timer.scope("evaluate"), torch.no_grad():
            self.module.eval()
            figures = recordable(self.evaluate(self.module))
            self.module.train()  # as on the other ranks
            shown = "  ".join(
                f"{name} {value:.4g}" for name, value in figures.items() if isinstance(value, (int, float))
            )
            self.say(
                f"epoch {self.done.epochs}  {self.done.samples / self.done.seconds:,.0f} samples/s  {shown}"
            )
        own = {
            "epoch": self.done.epochs,
            "updates": self.done.updates,
            "seconds": round(self.done.seconds, 3),
        }
        others = {f"evaluation/{name}" if name in own else name: each for name, each in figures.items()}
        record = own | others
        self.done.evaluations.append(record)
        self.writer.write(record)


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
    dataset: Dataset, sampler: DistributedSampler, batch_size: int, device: torch.device, timer: Timer
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


def _share_buffers(module: nn.Module, exchange: Exchange) -> None:
    """Broadcast rank 0's buffers, e.g. batch-norm statistics, as torch's DistributedDataParallel does."""
    for buffer in module.buffers():
        exchange.share(buffer)
