"""A sharded parameter server, and the exchange of the learners that push gradients to it.

Papers: Nair 2015, "Massively Parallel Methods for Deep Reinforcement Learning" (Gorila), arXiv 1507.04296,
sections 3 and 4; Dean 2012, "Large Scale Distributed Deep Networks" (Downpour SGD), section 4.1.

Every shard owns a slice of the flat parameter vector and the optimiser state of that slice. RMSProp and Adam
are element-wise, so the result is bit-identical for any number of shards. As in Gorila, a shard drops two
kinds of gradients: those computed from parameters that are too many versions old (stale), and those whose
loss is too far from the running mean (outliers).

The ledger counts slices: pushed = applied + stale + outlier + lost. Every learner numbers its pushes, so that
a shard detects lost ones by gaps in the numbers: pushes that never arrived, or that a rollback undid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from parcade.capture.base import Capture
from parcade.exchange.base import Exchange, OptimizerFactory
from parcade.files.state import part_of
from parcade.machine.timing import Timer, process_note
from parcade.model.optimizers import made_optimizer
from parcade.model.parameters import FlatParameters, clip_norm, tensors_of
from parcade.model.policy import Policy, RunningStatistics

APPLIED, STALE, OUTLIER, LOST = range(4)
OUTCOMES = ("applied", "stale", "outlier", "lost")
# Window of the running mean of the loss, in pushes. No push counts as an outlier before this many were seen.
LOSS_MEMORY = 100


def slice_bounds(size: int, count: int) -> np.ndarray:
    """Return the bounds ``[count + 1]`` of ``count`` near-equal slices of a vector."""
    return np.linspace(0, size, count + 1).round().astype(np.int64)


@dataclass
class Push:
    """Header of a pushed gradient slice.

    ``learner`` and ``life`` identify the sender; ``life`` changes when a learner is restarted. ``number``
    counts the pushes of that life from 1. ``version`` is the version of the parameters that the gradient was
    computed from.
    """

    learner: int
    life: int
    number: int
    epoch: int
    version: int
    learning_rate: float
    loss: float


class ParameterShard:
    """A slice of the parameters, its optimiser, and the ledger of its pushes.

    ``epoch`` increases when all shards return to a snapshot together. A shard refuses pushes from another
    epoch, and all pushes before ``begin`` is called. ``version`` is the number of gradients applied.
    """

    def __init__(
        self,
        parameters: Tensor,
        optimizer: OptimizerFactory,
        *,
        max_staleness: int,
        outlier_deviations: float,
    ) -> None:
        self.parameters = nn.Parameter(parameters.detach().clone())
        self.parameters.grad = torch.zeros_like(self.parameters)
        self.optimizer = made_optimizer(optimizer, self.parameters)
        self.max_staleness = max_staleness
        self.outlier_deviations = outlier_deviations
        self.epoch = -1
        self.version = 0
        self.ledger = np.zeros(len(OUTCOMES), np.int64)
        self.loss_moments = np.zeros(3)  # pushes seen, running mean and mean square of |loss|
        self.moments: np.ndarray | None = None
        self._seen: dict[tuple[int, int], int] = {}

    def begin(self, epoch: int, state: dict[str, np.ndarray] | None = None) -> tuple[dict[str, Any], None]:
        """Start to accept pushes, from a snapshot or from the initial parameters."""
        if state is not None:
            self._set_state(state)
        self.epoch = epoch
        return {"version": self.version}, None

    def push(self, push: Push, gradient: np.ndarray) -> tuple[dict[str, Any], np.ndarray | None]:
        """Apply or drop a gradient slice. Returns a note with the ledger, and the current parameters."""
        if push.epoch != self.epoch:
            return {"epoch": self.epoch, "version": self.version}, None
        self._account(push.learner, push.life, push.number)
        outcome = self._judge(push)
        if outcome == APPLIED:
            self.parameters.grad.copy_(torch.from_numpy(np.array(gradient)))
            for group in self.optimizer.param_groups:
                group["lr"] = push.learning_rate
            self.optimizer.step()
            self.version += 1
        self.ledger[outcome] += 1
        return self._note(), self.parameters.detach().numpy().copy()

    def pull(self, epoch: int) -> tuple[dict[str, Any], np.ndarray | None]:
        """Return the current parameters."""
        if epoch != self.epoch:
            return {"epoch": self.epoch, "version": self.version}, None
        return self._note(), self.parameters.detach().numpy().copy()

    def _note(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "version": self.version,
            "pushed": self.pushed,
            "ledger": self.ledger.tolist(),
        }

    @property
    def pushed(self) -> int:
        """Number of gradient slices that learners have sent to this shard, lost ones included."""
        return sum(self._seen.values())

    def _account(self, learner: int, life: int, number: int) -> None:
        """Record a push by its number; numbers skipped since the last push count as lost."""
        before = self._seen.get((learner, life), 0)
        self.ledger[LOST] += number - before - 1
        self._seen[learner, life] = number

    def settle(self, learner: int, life: int, number: int) -> tuple[dict[str, Any], None]:
        """Record that a learner stopped or paused after ``number`` pushes; missing ones count as lost."""
        before = self._seen.get((learner, life), 0)
        if number > before:
            self.ledger[LOST] += number - before
            self._seen[learner, life] = number
        return self._note(), None

    def _judge(self, push: Push) -> int:
        if self.version - push.version > self.max_staleness:
            return STALE
        seen, mean, square = self.loss_moments
        size = abs(push.loss)
        if not np.isfinite(size):
            return OUTLIER
        deviation = max(square - mean * mean, 0.0) ** 0.5
        share = 1 / min(seen + 1, LOSS_MEMORY)
        self.loss_moments[:] = seen + 1, mean + share * (size - mean), square + share * (size * size - square)
        is_outlier = size > mean + self.outlier_deviations * deviation
        return OUTLIER if is_outlier and seen >= LOSS_MEMORY and deviation > 0 else APPLIED

    def merge_moments(self, moments: np.ndarray | None) -> tuple[dict[str, Any], np.ndarray | None]:
        """Add a learner's input moments to the total and return the total."""
        if moments is not None:
            self.moments = moments.copy() if self.moments is None else self.moments + moments
        return {}, None if self.moments is None else self.moments.copy()

    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return a snapshot. The driver snapshots all shards while no push is in flight, so they agree."""
        state = {
            "parameters": self.parameters.detach().numpy().copy(),
            "version": np.int64(self.version),
            "ledger": self.ledger.copy(),
            "loss_moments": self.loss_moments.copy(),
            "seen": np.array([[*key, number] for key, number in self._seen.items()], np.int64).reshape(-1, 3),
        }
        for name, value in self.optimizer.state[self.parameters].items():
            state[f"optimizer.{name}"] = torch.as_tensor(value).numpy().copy()
        if self.moments is not None:
            state["moments"] = self.moments.copy()
        return {"epoch": self.epoch, "version": self.version, **process_note()}, state

    def _set_state(self, state: dict[str, np.ndarray]) -> None:
        with torch.no_grad():
            self.parameters.copy_(torch.from_numpy(np.array(state["parameters"])))
        self.version = int(state["version"])
        self.ledger = np.array(state["ledger"])
        self.loss_moments = np.array(state["loss_moments"])
        self._seen = {(int(learner), int(life)): int(number) for learner, life, number in state["seen"]}
        optimizer = tensors_of(part_of(state, "optimizer."))
        if optimizer:
            self.optimizer.state[self.parameters] = optimizer
        else:
            self.optimizer.state.clear()
        self.moments = np.array(state["moments"]) if "moments" in state else None

    def close(self) -> None:
        """Do nothing: a shard holds no resources to release."""


class ServerLost(Exception):
    """A shard died or returned to a snapshot. The learner must wait until the driver calls ``begin``."""


class ShardCall(Protocol):
    """A call to a shard in progress."""

    def note(self, timeout: float = ...) -> dict[str, Any]: ...

    @property
    def data(self) -> Any: ...


class StepSize:
    """Placeholder for the optimiser, which is in the shards; each push carries the learning rate set here."""

    def __init__(self) -> None:
        self.param_groups = [{"lr": 0.0}]


class ParameterServerExchange(Exchange):
    """Asynchronous exchange: pushes the clipped gradient to all shards and copies the parameters they return.

    Args:
        num_shards: number of shards of the server.
        fetch: function that turns a call's data into arrays.
        index, count: index of this learner, and number of learners.

    ``shards``, handles with ``start(method, *arguments)``, must be set before any other use, and ``begin``
    called before the first update and after every ServerLost.
    """

    def __init__(self, timer: Timer, *, num_shards: int, fetch: Any, index: int, count: int) -> None:
        super().__init__(timer)
        self.rank, self.world_size = index, count
        self.shards: list[Any] = []
        self.fetch = fetch
        self.life, self.epoch, self.pushes = 0, 0, 0
        self.ledgers = np.zeros((num_shards, 1 + len(OUTCOMES)), np.int64)

    def attach(
        self,
        policy: Policy,
        optimizer: OptimizerFactory,
        max_grad_norm: float | None,
        capture: Capture | None = None,
    ) -> None:
        self.policy = policy
        self.capture = capture or Capture()
        self.parameters = FlatParameters(policy)
        self.optimizer = StepSize()
        self.max_grad_norm = max_grad_norm
        num_shards = len(self.ledgers)
        self.bounds = slice_bounds(len(self.parameters.grad), num_shards)
        self.versions = np.zeros(num_shards, np.int64)

    def begin(self, life: int, epoch: int, pushes: int) -> None:
        """Join an epoch of the server; pull its parameters and input statistics. Errors: ServerLost."""
        self.life, self.epoch, self.pushes = life, epoch, pushes
        self._collect([shard.start("pull", epoch) for shard in self.shards])
        if self.policy.statistics is not None:
            self._merge(self.policy.statistics, None)

    def apply(self) -> None:
        grad = self.parameters.grad
        clip_norm(grad, self.max_grad_norm)
        with self.timer.scope("communicate"):
            self.pushes += 1
            rate, loss = float(self.optimizer.param_groups[0]["lr"]), float(self.loss)
            outgoing, calls = grad.cpu().numpy(), []
            for k, shard in enumerate(self.shards):
                push = Push(
                    learner=self.rank,
                    life=self.life,
                    number=self.pushes,
                    epoch=self.epoch,
                    version=int(self.versions[k]),
                    learning_rate=rate,
                    loss=loss,
                )
                calls.append(shard.start("push", push, outgoing[self.bounds[k] : self.bounds[k + 1]]))
            self._collect(calls)
            self.bytes_moved += 2 * grad.numel() * grad.element_size()
        grad.zero_()
        self.updates += 1

    def _collect(self, calls: list[ShardCall]) -> None:
        """Copy parameters and versions from the shards' replies. Errors: ServerLost."""
        flat = self.parameters.data.detach()
        for k, call in enumerate(calls):
            try:  # the note may arrive although the node has died with the parameters
                note, parameters = call.note(), np.array(self.fetch(call.data))
            except Exception as error:
                raise ServerLost(str(error)) from error
            if note["epoch"] != self.epoch:
                raise ServerLost(f"shard {k} is in epoch {note['epoch']}; expected {self.epoch}")
            flat[self.bounds[k] : self.bounds[k + 1]] = torch.from_numpy(parameters)
            self.versions[k] = note["version"]
            self.ledgers[k] = [note["pushed"], *note["ledger"]]
        self.policy.version.fill_(int(self.versions.min()))

    def merge_statistics(self, statistics: RunningStatistics, moments: Tensor) -> None:
        self._merge(statistics, moments.cpu().numpy())

    def _merge(self, statistics: RunningStatistics, moments: np.ndarray | None) -> None:
        """Add moments, if any, to the server's and copy its total, if there is one. Errors: ServerLost."""
        call = self.shards[0].start("merge_moments", moments)
        try:
            merged = self.fetch(call.data)
        except Exception as error:
            raise ServerLost(str(error)) from error
        if merged is not None:
            statistics.reset()
            statistics.merge(torch.from_numpy(np.array(merged)).to(statistics.mean.device))

    @property
    def version(self) -> int:
        return int(self.versions.min())

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the counters and what the shards answered last; they keep the optimiser's state."""
        return {
            "counters": np.array([self.updates, self.bytes_moved]),
            "versions": self.versions.copy(),
            "pushes": np.int64(self.pushes),
            "ledgers": self.ledgers.copy(),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self.updates, self.bytes_moved = (int(x) for x in state["counters"])
        self.pushes = int(state["pushes"])
        self.versions, self.ledgers = np.array(state["versions"]), np.array(state["ledgers"])
