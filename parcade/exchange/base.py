"""The gradient-exchange interface, and its implementation for a single process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parcade.capture.base import Capture
from parcade.errors import UsageError
from parcade.files.state import part_of
from parcade.machine.facts import usable_cores
from parcade.machine.timing import Timer
from parcade.model.optimizers import made_optimizer
from parcade.model.parameters import FlatParameters, check_finite, clip_norm, tensors_of
from parcade.model.policy import Policy, RunningStatistics

OptimizerFactory = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""A function of tensors. Returns a scalar to minimise and detached tensors of any shape to report."""


class Exchange:
    """Turns losses into updates of one policy. Subclasses combine the gradients of several processes.

    ``accumulate(loss, ...)`` adds the gradient of a loss to the flat buffer. ``apply()`` averages the buffer
    over ranks (one Allreduce), clips its norm and takes an optimiser step. ``minimize(loss, ...)`` does both.
    A loss is a function of tensors, so that its GPU work can be recorded once and replayed
    (``parcade/capture``), transparently to the algorithm. Reductions are collective: every rank must call
    them in the same order.

    Attributes: ``rank`` and ``world_size``; ``optimizer``; ``parameters``, the flat vectors; ``updates``, the
    number of updates so far; ``bytes_moved``, the bytes of gradients exchanged, and ``allreduce_seconds``,
    the time this took (on GPUs only valid while a profile is recorded); ``on_collective(bytes, over)``, an
    optional callback that is called before (over=False) and after (over=True) every collective call;
    ``barrier_first``, which puts a barrier before every collective call, to time waiting
    separately.
    """

    rank = 0
    world_size = 1
    local_size = 1
    """Number of ranks on this host, which share its cores."""
    local_cores: tuple[int, ...]
    """The cores that the ranks on this host may use together: a launcher may pin each rank to its own."""
    steps_alone = False
    """Whether updates need no other process, so that gradient and step can be captured together."""
    capture = Capture()
    """Runs the device work of updates."""

    def __init__(self, timer: Timer) -> None:
        self.timer = timer
        self.local_cores = usable_cores()
        self.updates = 0
        self.bytes_moved = 0
        self.allreduce_seconds = 0.0
        self.on_collective: Callable[[int, bool], None] | None = None
        self.barrier_first = False
        self.loss: Tensor | None = None
        """Value of the last accumulated loss."""

    def attach(
        self,
        policy: torch.nn.Module,
        optimizer: OptimizerFactory,
        max_grad_norm: float | None,
        capture: Capture | None = None,
    ) -> None:
        """Set the policy (or any other module) to update. All ranks start from the parameters of rank 0.

        Errors: UsageError unless ``optimizer`` makes an optimiser that takes a step with one gradient.
        """
        self.policy = policy
        self.parameters = FlatParameters(policy)
        self.optimizer = made_optimizer(optimizer, self.parameters.data)
        self.max_grad_norm = max_grad_norm
        self.capture = capture or Capture()
        if self.capture.is_on:
            make_capturable(self.optimizer, self.parameters.data.device)
        self.broadcast(self.parameters.data.detach())
        for frozen in (p for p in policy.parameters() if not p.requires_grad):
            self.share(frozen)

    def minimize(self, loss: Loss, *arguments: Any) -> dict[str, Tensor]:
        """Take one update on ``loss(*arguments)``. Returns its metrics, which no later call overwrites."""
        if not self.steps_alone:
            figures = self.accumulate(loss, *arguments)
            self.apply()
            return figures
        figures = self.capture.run(self._whole_update, loss, *arguments)
        self.updates += 1
        return self._kept(figures)

    def accumulate(self, loss: Loss, *arguments: Any) -> dict[str, Tensor]:
        """Add the gradient of ``loss(*arguments)`` to the flat buffer. Returns metrics like ``minimize``."""
        self.loss, figures = self.capture.run(self._gradient, loss, *arguments)
        return self._kept(figures)

    def apply(self) -> None:
        """Average the accumulated gradient over ranks, clip it, take an optimiser step, and zero it."""
        self.average_gradient(self.parameters.grad)
        self.capture.run(self._take_step)
        self.updates += 1

    def _whole_update(self, loss: Loss, *arguments: Any) -> dict[str, Tensor]:
        _, figures = self._gradient(loss, *arguments)
        self._take_step()
        return figures

    def _gradient(self, loss: Loss, *arguments: Any) -> tuple[Tensor, dict[str, Tensor]]:
        value, figures = checked_loss(loss(*arguments))
        value.backward()
        return value.detach(), figures

    def _take_step(self) -> None:
        """Clip the averaged gradient, take an optimiser step, and zero the gradient; all on the device."""
        grad = self.parameters.grad
        clip_norm(grad, self.max_grad_norm)
        self.optimizer.step()
        grad.zero_()
        if isinstance(self.policy, Policy):  # another module's attribute of this name is its own
            self.policy.version += 1

    def _kept(self, figures: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copy the metrics if capture is on, because the next replay overwrites them.

        One call of torch, because each call costs the host as much as launching the whole update. A product
        with 1 is a copy; ``_foreach_clone`` is not in torch 2.11.
        """
        kept = {name: each for name, each in figures.items() if isinstance(each, Tensor)}
        if not self.capture.is_on or not kept:
            return figures
        return figures | dict(zip(kept, torch._foreach_mul(list(kept.values()), 1), strict=True))

    @property
    def version(self) -> int:
        """Number of updates in the policy's weights, known on the host without a device sync."""
        return self.updates

    def average_gradient(self, grad: Tensor) -> None:
        """Replace grad ``[P]`` by its mean over ranks, in place. Does nothing with a single process."""

    def sum(self, x: Tensor) -> Tensor:
        """Sum x over ranks in place and return it."""
        return x

    def merge_statistics(self, statistics: RunningStatistics, moments: Tensor) -> None:
        """Merge the input moments of all ranks into a policy's statistics."""
        statistics.merge(self.sum(moments))

    def maximum(self, x: np.ndarray) -> np.ndarray:
        """Take the element-wise maximum of x over ranks, in place, and return it."""
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        """Overwrite x with that of rank 0 on every rank, and return it."""
        return x

    def share(self, tensor: Tensor) -> None:
        """Overwrite a tensor, of any type and layout, with that of rank 0 on every rank."""
        if self.world_size == 1 or not tensor.numel():
            return
        own = tensor.detach()
        for axis, stride in enumerate(own.stride()):
            if stride == 0:  # an expanded axis is one element in memory
                own = own.narrow(axis, 0, 1)
        data = own.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)
        own.copy_(self.broadcast(data).view(own.dtype).reshape(own.shape))

    def gather_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows ``[k, m]`` float64 of all ranks, concatenated in rank order, on every rank."""
        return rows

    def sum_and_gather(self, x: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum over ranks of the vector x float64, and ``gather_rows(rows)``, in one call.

        It is one Allreduce if no rank has rows.
        """
        return x, rows

    def gather_on_first(self, x: np.ndarray) -> np.ndarray | None:
        """Return the arrays ``[m]`` of all ranks as ``[world_size, m]`` on rank 0; None on other ranks."""
        return x[None]

    def time_allreduce(self, num_floats: int, repeats: int, device: torch.device | str = "cpu") -> np.ndarray:
        """Measure the seconds ``[repeats]`` of an Allreduce of ``num_floats`` float32 on a device.

        A barrier precedes every call. The result is empty for a single process.
        """
        return np.empty(0)

    def barrier(self) -> None:
        """Wait for all ranks."""

    @contextlib.contextmanager
    def communicating(self, num_bytes: int) -> Iterator[None]:
        """Context manager around every collective call: its timing scope, and the hooks of a profile."""
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
        """Check that all ranks hold identical parameters. Errors: RuntimeError naming those that differ."""
        digests = self.gather_rows(np.array([[self.parameters.digest()]], np.uint64).view(np.float64)).view(
            np.uint64
        )
        check_same_digests("rank", digests[:, 0].tolist(), self.updates)

    def check_finite(self) -> None:
        """Check that all parameters are finite. Errors: UsageError."""
        check_finite([self.parameters.data], self.updates)

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the counters and the optimiser's state as arrays."""
        values = optimizer_state(self.optimizer, self.parameters.data)
        return {
            "counters": np.array([self.updates, self.bytes_moved]),
            **{f"optimizer.{name}": value.numpy() for name, value in values.items()},
            "learning_rate": np.float64(learning_rate(self.optimizer)),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore a state returned by ``get_state``; other entries are ignored."""
        self.updates, self.bytes_moved = (int(x) for x in state["counters"])
        load_optimizer_state(self.optimizer, self.parameters.data, tensors_of(part_of(state, "optimizer.")))
        set_learning_rate(self.optimizer, float(state["learning_rate"]))

    def close(self) -> None:
        """Leave the group of ranks."""


def checked_loss(result: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return what a loss returned. Errors: UsageError unless it is a scalar to minimise and metrics."""
    expected = "expected a tuple of a scalar tensor with a gradient and a dict of metrics, which may be {}"
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise UsageError(f"the loss returned a {type(result).__name__}; {expected}")
    value, figures = result
    if not isinstance(value, Tensor) or not isinstance(figures, dict):
        kinds = f"({type(value).__name__}, {type(figures).__name__})"
        raise UsageError(f"the loss returned a tuple {kinds}; {expected}")
    if value.numel() != 1:
        raise UsageError(f"the loss has shape {list(value.shape)}; expected a scalar: take its mean")
    if not value.requires_grad:
        raise UsageError(
            "the loss does not depend on the trained parameters; compute it from what the network returns, "
            "without detach"
        )
    return value, figures


def check_same_digests(unit: str, digests: Sequence[int], updates: int) -> None:
    """Check that all units, such as ranks, have the same digest of their parameters.

    Errors: RuntimeError naming those that differ from the first.
    """
    different = [str(i) for i, digest in enumerate(digests) if digest != digests[0]]
    if different:
        raise RuntimeError(
            f"the parameters of {unit} {', '.join(different)} differ from {unit} 0's after update "
            f"{updates}; expected identical bits on all {len(digests)} {unit}s; the run stops here"
        )


class LocalExchange(Exchange):
    """Exchange of a single process, without communication."""

    steps_alone = True


def make_capturable(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Make an optimiser keep its learning rate and step count on the device, as captured steps require."""
    for group in optimizer.param_groups:
        group["capturable"] = True
        group["lr"] = torch.tensor(float(group["lr"]), device=device)
        # Use the fused kernel if there is one, else the foreach variant, which accepts a tensor as lr.
        group["fused" if "fused" in group else "foreach"] = True


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """Return the learning rate of the only parameter group. Syncs with the device if it is kept there."""
    return float(optimizer.param_groups[0]["lr"])


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def step_size(optimizer: torch.optim.Optimizer) -> Tensor:
    """Return a copy of the learning rate as a scalar tensor on its device."""
    rate = optimizer.param_groups[0]["lr"]
    return rate.clone() if isinstance(rate, Tensor) else torch.tensor(rate)


def optimizer_state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Return an optimiser's state of a parameter, by name, in host memory; empty before the first step."""
    return {
        name: torch.as_tensor(value).detach().cpu().clone()
        for name, value in optimizer.state[parameter].items()
    }


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, parameter: Tensor, saved: dict[str, Tensor]
) -> None:
    """Restore a state returned by ``optimizer_state``.

    Existing tensors are overwritten in place, because a captured step refers to their addresses. Those that
    were not saved, because the first step had not been taken, become zero: moments and counts start there.
    """
    state, on_device = optimizer.state[parameter], optimizer.param_groups[0].get("capturable", False)
    for name in state.keys() - saved.keys():
        if isinstance(state[name], Tensor):
            state[name].zero_()
    for name, value in saved.items():
        if name in state and isinstance(state[name], Tensor):
            state[name].copy_(value)
        else:
            # A scalar is the step count, which optimisers keep on the host unless their step is captured.
            state[name] = value.to(parameter.device, copy=True) if value.ndim or on_device else value.clone()
