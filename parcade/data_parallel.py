"""Supervised training of any torch module on any dataset, over the same gradient exchange as the agents'.

Every rank holds the module and sees its share of every batch; one Allreduce an update averages one flat gradient. So N ranks
with a batch of B each take the updates that one process would take with N * B. What is left out: tensors on a GPU,
parameters of several types, resuming.

The evaluation runs on rank 0 while the others go on to their next update and wait there: what an evaluation costs, every rank
pays. ``parcade profile`` shows it; ``evaluate_every`` decides how often.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, TensorDataset

from parcade.cluster import mpi, torchrun
from parcade.cluster.ranks import check_versions
from parcade.cluster.signals import STOP_FILE, StopRequest
from parcade.cluster.watchdog import Signs
from parcade.errors import UsageError
from parcade.exchange.base import Exchange, LocalExchange, OptimizerFactory
from parcade.profile.recorder import recorder_from_environment
from parcade.report.machine import commit, machine
from parcade.report.timing import Timer
from parcade.run_directory import write_json
from parcade.threads import set_threads, threads_asked_for

Loss = Callable[[Tensor, Tensor], Tensor]
Evaluate = Callable[[nn.Module], dict[str, Any]]
Engine = Literal["auto", "local", "mpi", "gloo"]


@dataclass(frozen=True)
class FitConfig:
    """How a module is fitted. A batch is that of all ranks together."""

    epochs: int = 30
    """Passes over the data."""
    batch_size: int = 128
    """Samples of an update over all ranks; a rest smaller than a batch is left out of its epoch."""
    evaluate_every: int = 30
    """Epochs between evaluations; the last epoch is always evaluated, 0 evaluates none."""
    seed: int = 0
    """Decides the order of the samples."""
    max_grad_norm: float | None = None
    """Longer gradients are cut to this norm."""
    hang_seconds: float = 120.0
    """End the job when no rank gets on for this long; 0 never."""


@dataclass
class Fit:
    """What a fit came to, on every rank; ``evaluations`` on rank 0 alone."""

    epochs: int = 0
    updates: int = 0
    samples: int = 0
    """Over all ranks."""
    seconds: float = 0.0
    loss: float = float("nan")
    """Mean over the last epoch and all ranks."""
    scope_seconds: dict[str, list[float]] = field(default_factory=dict)
    """Wall clock in each timing scope, rank by rank."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)


def connect(engine: Engine = "auto", *, network_interface: str = "", timeout_seconds: float = 120.0) -> Exchange:
    """The exchange of whatever started this process: mpiexec, torchrun, or nobody. Errors: UsageError.

    Sizes torch's pool of threads: what ``OMP_NUM_THREADS`` says, else this process's even share of the cores.
    """
    if engine == "auto":
        engine = "gloo" if torchrun.launched_by_torchrun() else "mpi" if mpi.launched_by_mpi() else "local"
    timer = Timer()
    if engine == "gloo":
        from parcade.exchange.gloo import GlooExchange

        torchrun.connect(network_interface=network_interface, timeout_seconds=timeout_seconds)
        exchange = GlooExchange(timer)
    elif engine == "mpi":
        mpi.find_mpiexec()
        mpi.mpi_rank()
        from parcade.exchange.allreduce import AllreduceExchange

        check_versions()
        exchange = AllreduceExchange(timer)
    else:
        exchange = LocalExchange(timer)
    set_threads(threads_asked_for(), exchange.local_size, serial=False, overlap=False)
    return exchange


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
    """Train a module in place, on this rank among all; collective.

    Args:
        dataset: of ``(input, target)``; the same on every rank.
        loss: ``loss(module(input), target)``, a mean over samples.
        optimizer: makes the optimiser of one flat parameter vector, e.g. ``lambda p: torch.optim.Adam(p, 1e-3)``.
        evaluate: called with the module in evaluation mode, on rank 0; its figures are recorded.
        run: a directory every rank can see, for ``metrics.jsonl``, ``result.json``, ``module.safetensors`` and heartbeats.
        say: given a line an evaluation, on rank 0.

    Errors: UsageError for a batch that does not divide by the ranks or a module that does not fit; RuntimeError when ranks
    come to different parameters.
    """
    _check(module, dataset, config, exchange)
    exchange.attach(module, optimizer, config.max_grad_norm)
    timer = exchange.timer
    signs = lambda: Signs(timer.standing[0], timer.standing[1], timer.seconds["learn"] > 0)  # noqa: E731
    with _registered(run, config, exchange, signs) if run else contextlib.nullcontext():
        with StopRequest(run) as stop:
            done = _Fitting(module, dataset, loss, config, exchange, evaluate, run, say, stop).run_epochs()
        _share_buffers(module, exchange)
        exchange.check_parameters()
        if run is not None and exchange.rank == 0:
            _write_results(run, module, config, exchange, done)
    return done


def _registered(run: Path, config: FitConfig, exchange: Exchange, signs: Callable[[], Signs]):
    from parcade.cluster.processes import clear_records

    if exchange.rank == 0:
        run.mkdir(parents=True, exist_ok=True)
        clear_records(run)
        (run / STOP_FILE).unlink(missing_ok=True)
        (run / "metrics.jsonl").unlink(missing_ok=True)
    exchange.broadcast(torch.zeros(1))  # nobody registers before the records of an earlier fit are gone
    return mpi.registered(run, config.hang_seconds, signs, rank=exchange.rank, advice="start it anew")


class _Fitting:
    """The loop over epochs and batches, and its counters."""

    def __init__(self, module, dataset, loss, config, exchange, evaluate, run, say, stop) -> None:
        self.module, self.dataset, self.loss, self.config, self.exchange = module, dataset, loss, config, exchange
        self.evaluate, self.run, self.say, self.stop = evaluate, run, say, stop
        self.timer: Timer = exchange.timer
        self.done = Fit()
        self.sampler = DistributedSampler(
            dataset, exchange.world_size, exchange.rank, shuffle=True, seed=config.seed, drop_last=True
        )
        self.recorder = recorder_from_environment(exchange, self.timer)
        self.steps = self.frames = 0
        self._epoch_loss, self._epoch_batches = torch.zeros(1), 0

    def run_epochs(self) -> Fit:
        started, before = time.perf_counter(), self.timer.snapshot()
        stopped = False
        while self.done.epochs < self.config.epochs and not stopped:
            stopped = self._epoch()
            self.done.epochs += 1
            self.done.seconds = time.perf_counter() - started
            last = stopped or self.done.epochs == self.config.epochs
            if self._is_evaluation_due(last):
                self._evaluate()
        if self.recorder is not None:
            self.recorder.write()
        spent = {name: seconds - before[name] for name, seconds in self.timer.snapshot().items()}
        rows = self.exchange.gather_rows(np.array([list(spent.values())]))
        self.done.scope_seconds = {name: rows[:, i].tolist() for i, name in enumerate(spent)}
        mean = self.exchange.sum(self._epoch_loss / max(self._epoch_batches, 1)) / self.exchange.world_size
        self.done.loss = float(mean)
        return self.done

    def _epoch(self) -> bool:
        """One pass over the data; returns whether to stop, on which all ranks agree."""
        self.sampler.set_epoch(self.done.epochs)
        self._epoch_loss.zero_()
        self._epoch_batches = 0
        self.module.train()
        per_rank = self.config.batch_size // self.exchange.world_size
        for inputs, targets in batches(self.dataset, self.sampler, per_rank):
            with self.timer.scope("learn"):
                loss = self.loss(self.module(inputs), targets)
                self.exchange.step(loss)
                self._epoch_loss += loss.detach()
            self._epoch_batches += 1
            self.done.updates += 1
            self.done.samples += self.config.batch_size
            self.steps += per_rank
            if self.recorder is not None:
                self.recorder.end_iteration(self)
                if self._any_rank(self.recorder.is_full):
                    return True
        return self._any_rank(self.stop.requested())

    def _any_rank(self, flag: bool) -> bool:
        return bool(self.exchange.maximum(np.array([float(flag)]))[0])

    def _is_evaluation_due(self, last: bool) -> bool:
        every = self.config.evaluate_every
        return self.evaluate is not None and every > 0 and (last or self.done.epochs % every == 0)

    def _evaluate(self) -> None:
        """On rank 0; the others do not wait here but in their next update."""
        if self.exchange.rank != 0:
            return
        with self.timer.scope("evaluate"), torch.no_grad():
            self.module.eval()
            figures = self.evaluate(self.module)
            shown = "  ".join(f"{name} {value:.4g}" for name, value in figures.items() if isinstance(value, (int, float)))
            self.say(f"epoch {self.done.epochs}  {self.done.samples / self.done.seconds:,.0f} samples/s  {shown}")
        record = {"epoch": self.done.epochs, "updates": self.done.updates, "seconds": round(self.done.seconds, 3), **figures}
        self.done.evaluations.append(record)
        if self.run is not None:
            with open(self.run / "metrics.jsonl", "a") as file:
                file.write(json.dumps(record) + "\n")


def batches(dataset: Dataset, sampler: DistributedSampler, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of one rank and epoch. The ranks' i-th batches together are one batch of the whole order."""
    if isinstance(dataset, TensorDataset):
        # Rows are taken at once: DataLoader would fetch and stack samples one by one.
        for indices in BatchSampler(sampler, batch_size, drop_last=True):
            yield tuple(tensor[indices] for tensor in dataset.tensors)
    else:
        yield from DataLoader(dataset, batch_size, sampler=sampler, drop_last=True)


def _check(module: nn.Module, dataset: Dataset, config: FitConfig, exchange: Exchange) -> None:
    kinds = {(p.device.type, p.dtype) for p in module.parameters()}
    if kinds != {("cpu", torch.float32)}:
        found = ", ".join(sorted(f"{dtype} on {device}" for device, dtype in kinds)) or "none"
        raise UsageError(f"parameters are {found}; expected torch.float32 on cpu; convert the module first")
    if config.epochs < 1 or config.batch_size < 1 or config.evaluate_every < 0:
        raise UsageError(
            f"epochs={config.epochs}, batch_size={config.batch_size}, evaluate_every={config.evaluate_every}: "
            "expected 1 or more, 1 or more, 0 or more"
        )
    if config.batch_size % exchange.world_size:
        below = config.batch_size // exchange.world_size * exchange.world_size
        choice = f"{below} or {below + exchange.world_size}" if below else str(exchange.world_size)
        raise UsageError(f"batch_size={config.batch_size} is not divisible by world_size={exchange.world_size}; use {choice}")
    if len(dataset) < config.batch_size:
        raise UsageError(f"batch_size={config.batch_size} is more than the {len(dataset)} samples there are; use fewer")


def _share_buffers(module: nn.Module, exchange: Exchange) -> None:
    """Running statistics (of a batch norm, say) are rank 0's, as they are in torch's own data parallelism."""
    for buffer in module.buffers():
        shared = buffer.detach().to(torch.float64)
        buffer.copy_(exchange.broadcast(shared))


def _write_results(run: Path, module: nn.Module, config: FitConfig, exchange: Exchange, done: Fit) -> None:
    import safetensors.torch

    from parcade.parameters import state_tensors

    safetensors.torch.save_file(state_tensors(module), run / "module.safetensors")
    result = {
        "epochs": done.epochs,
        "updates": done.updates,
        "samples": done.samples,
        "seconds": round(done.seconds, 3),
        "samples_per_second": round(done.samples / done.seconds, 1),
        "loss": done.loss,
        "ranks": exchange.world_size,
        "batch_size": config.batch_size,
        "evaluate_every": config.evaluate_every,
        "scope_seconds": {name: [round(s, 4) for s in seconds] for name, seconds in done.scope_seconds.items()},
        "commit": commit(),
        "machine": machine(),
    }
    write_json(run / "result.json", result)
