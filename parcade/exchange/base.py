"""The gradient-exchange seam, and the exchange of one process, which is its own whole world."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parcade.capture.base import Capture
from parcade.parameters import FlatParameters
from parcade.policy import RunningStatistics
from parcade.timing import Timer

OptimizerFactory = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""Of tensors: a scalar to be minimised, and figures to report, scalars or not, without gradient."""


class Exchange:
    """Turns losses into updates of one policy; a subclass says how the gradients of several processes become one.

    ``accumulate(loss, ...)`` adds the gradient of a loss to the flat buffer; ``apply()`` averages the buffer over ranks
    (one Allreduce), clips its norm and takes an optimiser step; ``minimize(loss, ...)`` does both. A loss is a function of
    tensors, so that what it does on a GPU can be recorded once and replayed (``parcade/capture``); algorithms need not
    know whether it is. The reductions are collective: every rank calls them in the same order.

    Attributes: ``rank``, ``world_size``; ``optimizer``; ``parameters`` the flat vectors; ``updates`` taken so far;
    ``bytes_moved`` by gradients and the ``allreduce_seconds`` that took (on GPUs: while a profile is recorded);
    ``on_collective(bytes, over)``, when set, hears of every collective call before it is made and when it is over;
    ``barrier_first`` makes ranks wait for one another before each, so that waiting and communicating can be told apart.
    """

    rank = 0
    world_size = 1
    local_size = 1
    """Ranks on this host, which share its cores."""
    steps_alone = False
    """Whether an update asks nobody, so that gradient and step are one piece of work."""
    capture = Capture()
    """Runs what an update does on the device."""

    def __init__(self, timer: Timer) -> None:
        self.timer = timer
        self.updates = 0
        self.bytes_moved = 0
        self.allreduce_seconds = 0.0
        self.on_collective: Callable[[int, bool], None] | None = None
        self.barrier_first = False
        self.loss: Tensor | None = None
        """What the last accumulated loss came to, until the next one."""

    def attach(
        self,
        policy: torch.nn.Module,
        optimizer: OptimizerFactory,
        max_grad_norm: float | None,
        capture: Capture | None = None,
    ) -> None:
        """Own the updates of a policy, or of any other module; all ranks start from the parameters of rank 0."""
        self.policy = policy
        self.parameters = FlatParameters(policy)
        self.optimizer = optimizer([self.parameters.data])
        self.max_grad_norm = max_grad_norm
        self.capture = capture or Capture()
        if self.capture.is_on:
            make_capturable(self.optimizer, self.parameters.data.device)
        self.broadcast(self.parameters.data.detach())

    def minimize(self, loss: Loss, *arguments: Any) -> dict[str, Tensor]:
        """One update from ``loss(*arguments)``; returns its figures, in memory of their own."""
        if not self.steps_alone:
            figures = self.accumulate(loss, *arguments)
            self.apply()
            return figures
        figures = self.capture.run(self._whole_update, loss, *arguments)
        self.updates += 1
        return self._kept(figures)

    def accumulate(self, loss: Loss, *arguments: Any) -> dict[str, Tensor]:
        """Add the gradient of ``loss(*arguments)`` to the flat buffer; returns its figures, in memory of their own."""
        self.loss, figures = self.capture.run(self._gradient, loss, *arguments)
        return self._kept(figures)

    def apply(self) -> None:
        """Average the accumulated gradient over ranks, clip it, step, and forget it."""
        self.average_gradient(self.parameters.grad)
        self.capture.run(self._take_step)
        self.updates += 1

    def _whole_update(self, loss: Loss, *arguments: Any) -> dict[str, Tensor]:
        _, figures = self._gradient(loss, *arguments)
        self._take_step()
        return figures

    def _gradient(self, loss: Loss, *arguments: Any) -> tuple[Tensor, dict[str, Tensor]]:
        value, figures = loss(*arguments)
        value.backward()
        return value.detach(), figures

    def _take_step(self) -> None:
        """Clip the gradient, step, and forget it: what an update does on the device once the gradient is everybody's."""
        grad = self.parameters.grad
        if self.max_grad_norm is not None:
            grad.mul_((self.max_grad_norm / (grad.norm() + 1e-6)).clamp(max=1.0))
        self.optimizer.step()
        grad.zero_()
        if hasattr(self.policy, "version"):  # a module that is no policy has nobody to tell
            self.policy.version += 1

    def _kept(self, figures: dict[str, Tensor]) -> dict[str, Tensor]:
        """The figures in memory that no replay writes again."""
        return {name: value.clone() for name, value in figures.items()} if self.capture.is_on else figures

    @property
    def version(self) -> int:
        """Updates inside the policy's weights, as the host knows it without asking the device."""
        return self.updates

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
        digests = self.gather_rows(np.array([[self.parameters.digest()]], np.uint64).view(np.float64)).view(
            np.uint64
        )
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

    steps_alone = True


def make_capturable(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Have an optimiser keep its step size and its count of steps on the device, as a replay needs them."""
    for group in optimizer.param_groups:
        group["capturable"] = True
        group["lr"] = torch.tensor(float(group["lr"]), device=device)
        # One kernel where there is one; else the variant for many tensors, whose step size may be a tensor.
        group["fused" if "fused" in group else "foreach"] = True


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """The step size of the one parameter group. Waits for the device where it is kept there."""
    return float(optimizer.param_groups[0]["lr"])


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the step size of every parameter group."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def step_size(optimizer: torch.optim.Optimizer) -> Tensor:
    """The step size as a scalar for a report, left on its device."""
    rate = optimizer.param_groups[0]["lr"]
    return rate.clone() if isinstance(rate, Tensor) else torch.tensor(rate)


def optimizer_state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """What an optimiser keeps of a parameter, by name, in the host's memory; empty before the first step."""
    return {
        name: torch.as_tensor(value).detach().cpu().clone()
        for name, value in optimizer.state[parameter].items()
    }


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, parameter: Tensor, saved: dict[str, Tensor]
) -> None:
    """Take what ``optimizer_state`` gave. What is there is written in place: a captured step knows it by its address."""
    state, on_device = optimizer.state[parameter], optimizer.param_groups[0].get("capturable", False)
    for name, value in saved.items():
        if name in state and isinstance(state[name], Tensor):
            state[name].copy_(value)
        else:
            # A single number is the count of steps, which optimisers keep on the host unless their step is captured.
            state[name] = value.to(parameter.device, copy=True) if value.ndim or on_device else value.clone()
