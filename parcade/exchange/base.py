"""The gradient-exchange seam, and the exchange of one process, which is its own whole world."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from parcade.parameters import FlatParameters
from parcade.policy import RunningStatistics
from parcade.report.timing import Timer

OptimizerFactory = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


class Exchange:
    """Turns losses into updates of one policy; a subclass says how the gradients of several processes become one.

    ``accumulate(loss)`` adds its gradient to the flat buffer; ``apply()`` averages the buffer over ranks (one
    Allreduce), clips its norm and takes an optimiser step; ``step(loss)`` does both. The reductions are collective:
    every rank calls them in the same order.

    Attributes: ``rank``, ``world_size``; ``optimizer``; ``parameters`` the flat vectors; ``updates`` taken so far;
    ``bytes_moved`` by gradients and the ``allreduce_seconds`` that took (on GPUs: while a profile is recorded);
    ``on_collective(bytes, over)``, when set, hears of every collective call before it is made and when it is over;
    ``barrier_first`` makes ranks wait for one another before each, so that waiting and communicating can be told apart.
    """

    rank = 0
    world_size = 1
    local_size = 1
    """Ranks on this host, which share its cores."""

    def __init__(self, timer: Timer) -> None:
        self.timer = timer
        self.updates = 0
        self.bytes_moved = 0
        self.allreduce_seconds = 0.0
        self.on_collective: Callable[[int, bool], None] | None = None
        self.barrier_first = False

    def attach(self, policy: torch.nn.Module, optimizer: OptimizerFactory, max_grad_norm: float | None) -> None:
        """Own the updates of a policy, or of any other module; all ranks start from the parameters of rank 0."""
        self.policy = policy
        self.parameters = FlatParameters(policy)
        self.optimizer = optimizer([self.parameters.data])
        self.max_grad_norm = max_grad_norm
        self.broadcast(self.parameters.data.detach())

    def step(self, loss: Tensor) -> None:
        """One update from one loss."""
        self.accumulate(loss)
        self.apply()

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of a loss to the flat buffer."""
        loss.backward()

    def apply(self) -> None:
        """Average the accumulated gradient over ranks, clip it, step, and forget it."""
        grad = self.parameters.grad
        self.average_gradient(grad)
        if self.max_grad_norm is not None:
            grad.mul_((self.max_grad_norm / (grad.norm() + 1e-6)).clamp(max=1.0))
        self.optimizer.step()
        grad.zero_()
        self.updates += 1
        if hasattr(self.policy, "version"):  # a module that is no policy has nobody to tell
            self.policy.version += 1

    def average_gradient(self, grad: Tensor) -> None:
        """Replace grad ``[P]`` by its mean over ranks. Alone: nothing to do."""

    def sum(self, x: Tensor) -> Tensor:
        """The sum of x over ranks, in place and returned."""
        return x

    def merge_statistics(self, statistics: RunningStatistics, moments: Tensor) -> None:
        """Let a policy's input statistics see the moments of all ranks."""
        statistics.merge(self.sum(moments))

    def maximum(self, x: np.ndarray) -> np.ndarray:
        """The element-wise maximum of x over ranks, in place and returned."""
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        """Rank 0's x on every rank, in place and returned."""
        return x

    def gather_rows(self, rows: np.ndarray) -> np.ndarray:
        """The rows ``[k, m]`` float64 of all ranks under one another, on every rank."""
        return rows

    def gather_on_first(self, x: np.ndarray) -> np.ndarray | None:
        """The arrays ``[m]`` of all ranks as ``[world_size, m]`` on rank 0; None elsewhere."""
        return x[None]

    def time_allreduce(self, num_floats: int, repeats: int, device: torch.device | str = "cpu") -> np.ndarray:
        """Seconds ``[repeats]`` of an Allreduce of so many float32 on a device, ranks starting together; empty with nobody
        to talk to."""
        return np.empty(0)

    def barrier(self) -> None:
        """Wait for all ranks."""

    @contextlib.contextmanager
    def communicating(self, num_bytes: int) -> Iterator[None]:
        """What every collective call is wrapped in: its timing scope, and what a profile wants to know."""
        if self.on_collective is not None:
            self.on_collective(num_bytes, False)
        if self.barrier_first:
            with self.timer.scope("wait"):
                self.barrier()
        with self.timer.scope("communicate"):
            yield
        if self.on_collective is not None:
            self.on_collective(num_bytes, True)

    def check_parameters(self) -> None:
        """Compare the parameters of all ranks bit for bit. Errors: RuntimeError naming the ranks that differ."""
        digests = self.gather_rows(np.array([[self.parameters.digest()]], np.uint64).view(np.float64)).view(np.uint64)
        different = np.flatnonzero(digests[:, 0] != digests[0, 0])
        if len(different):
            raise RuntimeError(
                f"the parameters of rank {', '.join(map(str, different))} differ from rank 0's after update "
                f"{self.updates}; expected equal bits on all {self.world_size} ranks; the run stops here"
            )

    def close(self) -> None:
        """Leave the group of ranks."""


class LocalExchange(Exchange):
    """One process, no communication."""


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """The step size of the one parameter group."""
    return float(optimizer.param_groups[0]["lr"])


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = value


