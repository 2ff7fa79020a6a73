"""A fit: the loop over epochs and batches, and what surrounds it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, DistributedSampler

from parcade.cluster import mpi
from parcade.cluster.heartbeat import Heartbeat, activity_of
from parcade.cluster.signals import STOP_FILE, StopRequest
from parcade.data_parallel.data import batches, placed
from parcade.data_parallel.evaluations import Evaluate, Evaluations
from parcade.data_parallel.results import Fit, reporting, write_figures, write_module
from parcade.data_parallel.settings import FitConfig, check_fit, check_same, device_of
from parcade.errors import UsageError
from parcade.exchange.agreement import RareAgreement
from parcade.exchange.base import Exchange, OptimizerFactory
from parcade.exchange.collective import wait_for_device
from parcade.files.outputs import make_directory
from parcade.machine.device_timing import device_seconds
from parcade.profile.recorder import recorder_from_environment

Loss = Callable[[Tensor, Tensor], Tensor]
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

    Errors: UsageError for a batch size that the number of ranks does not divide, an unsupported module or
    optimiser, a loss that is no scalar with a gradient, a directory that cannot be made or holds a run of
    ``parcade train``, data that do not fit on the GPU, or ranks with different datasets or settings;
    RuntimeError when the ranks' parameters differ at the end.
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
            fitting = Fitting(
                module, dataset, loss, config, exchange=exchange, stop=stop, say=say,
                evaluations=Evaluations(evaluate, config, exchange, run=run, say=say),
            )  # fmt: skip
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
                write_figures(run, done, config, device=device_of(module), ranks=exchange.world_size)
    return done


def _registered(run: Path, config: FitConfig, exchange: Exchange) -> Heartbeat:
    """Prepare the directory of a fit and return the heartbeat of this rank in it. Errors: UsageError."""
    from parcade.cluster.processes import clear_records

    failure = "the first rank cannot write it"
    is_ready = torch.ones(1)
    if exchange.rank == 0:
        try:
            make_directory(run)
            clear_records(run)
            (run / STOP_FILE).unlink(missing_ok=True)
            (run / "metrics.jsonl").unlink(missing_ok=True)
        except OSError as error:
            failure = error.strerror
            is_ready.zero_()
    # Register only after rank 0 has removed an earlier fit's records.
    if not exchange.broadcast(is_ready):
        raise UsageError(f"run={run} cannot be a directory of results ({failure}); use another one")
    return mpi.registered(
        run,
        config.hang_seconds,
        lambda: activity_of([exchange.timer]),
        by_mpi=mpi.launched_by_mpi(),
        rank=exchange.rank,
        advice="start it again",
    )


class Fitting:
    """The loop over the epochs of a fit. ``done`` is what it has done so far."""

    def __init__(
        self,
        module: nn.Module,
        dataset: Dataset,
        loss: Loss,
        config: FitConfig,
        *,
        exchange: Exchange,
        evaluations: Evaluations,
        stop: StopRequest,
        say: Callable[[str], None],
    ) -> None:
        self.done = Fit()
        self.steps = self.frames = 0  # for the recorder: samples of this rank, and none
        self._module, self._dataset, self._loss, self._config = module, dataset, loss, config
        self._exchange, self._timer = exchange, exchange.timer
        self._evaluations, self._stop, self._say = evaluations, stop, say
        self._device = device_of(module)
        self._sampler = DistributedSampler(
            dataset, exchange.world_size, exchange.rank, shuffle=True, seed=config.seed, drop_last=True
        )
        self._per_rank = config.batch_size // exchange.world_size
        self._batches_per_epoch = len(self._sampler) // self._per_rank
        self._recorder = recorder_from_environment(exchange, self._timer)
        self._agreement = RareAgreement(exchange)
        self._epoch_loss, self._epoch_batches = torch.zeros(1, device=self._device), 0

    def run_epochs(self) -> Fit:
        """Train for all epochs, or up to a stop, and return what was done. Collective."""
        clock = self._timer.device_clock
        started, before = time.perf_counter(), self._timer.snapshot()
        before_on_device = clock.snapshot() if clock else {}
        ends = False
        while self.done.epochs < self._config.epochs and not ends:
            ends = self._epoch()
            self.done.seconds = time.perf_counter() - started
            if not ends or self._epoch_batches == self._batches_per_epoch:
                self.done.epochs += 1
                self.done.epoch_seconds.append(self.done.seconds)
            is_last = ends or self.done.epochs == self._config.epochs
            self._evaluations.after_epoch(self._module, self.done, is_last=is_last)
        if self._recorder is not None:
            self._recorder.write()
        spent = {name: seconds - before[name] for name, seconds in self._timer.snapshot().items()}
        self.done.scope_seconds = self._of_all_ranks(spent)
        if clock is not None:
            wall_seconds = time.perf_counter() - started
            self.done.device_seconds = self._of_all_ranks(
                device_seconds(before_on_device, clock.snapshot(), wall_seconds)
            )
        mean = self._exchange.sum(self._epoch_loss / max(self._epoch_batches, 1)) / self._exchange.world_size
        self.done.loss = float(mean)
        return self.done

    def _of_all_ranks(self, seconds: dict[str, float]) -> dict[str, list[float]]:
        rows = self._exchange.gather_rows(np.array([list(seconds.values())]))
        return {name: rows[:, i].tolist() for i, name in enumerate(seconds)}

    def _epoch(self) -> bool:
        """Train for one epoch, or up to the update after which all ranks end the fit; return whether they do.

        Reads nothing from a GPU.
        """
        self._sampler.set_epoch(self.done.epochs)
        self._epoch_loss.zero_()
        self._epoch_batches = 0
        self._module.train()
        ends = False
        for inputs, targets in batches(
            self._dataset, self._sampler, self._per_rank, device=self._device, timer=self._timer
        ):
            with self._timer.scope("learn"):
                self._epoch_loss += self._exchange.minimize(self._loss_of, inputs, targets)["loss"]
            self._epoch_batches += 1
            self.done.updates += 1
            self.done.samples += self._config.batch_size
            self.steps += self._per_rank
            if self._recorder is not None:
                self._recorder.end_iteration(self)
            ends = self._agreement.count_update() and self._agree_to_end()
            if ends:
                break
        with self._timer.scope("learn"):
            wait_for_device(self._epoch_loss)  # asynchronous GPU work counts in this epoch
        return ends

    def _loss_of(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self._loss(self._module(inputs), targets)
        if not isinstance(loss, Tensor):
            raise UsageError(f"the loss returned a {type(loss).__name__}; expected a scalar tensor")
        return loss, {"loss": loss.detach()}

    def _agree_to_end(self) -> bool:
        """Return whether a stop was requested on any rank, or a recording is full. Collective."""
        if self._recorder is None:
            (stops,), is_full = self._agreement.ask(self._stop.requested()), False
        else:
            with self._recorder.outside_window():
                stops, is_full = self._agreement.ask(
                    self._stop.requested(), self._recorder.is_full, seconds_left=self._recorder.seconds_left
                )
        if stops and self._exchange.rank == 0:
            self._say(f"stopped within epoch {self.done.epochs + 1}, after update {self.done.updates:,}")
        return stops or is_full


def _share_buffers(module: nn.Module, exchange: Exchange) -> None:
    """Broadcast rank 0's buffers, e.g. batch-norm statistics, as torch's DistributedDataParallel does."""
    for buffer in module.buffers():
        exchange.share(buffer)
