"""Several learners of one policy that average their gradients: an allreduce by all-gather, carried by whoever calls.

The driver collects every learner's ``outgoing`` and gives all of them to all; each averages in the same order, so that
all keep the same bits. A learner that died is given another's state. MPI's Allreduce knows no such thing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from parcade.exchange.base import Exchange, Loss
from parcade.policy import RunningStatistics
from parcade.timing import Timer


class GroupExchange(Exchange):
    """``accumulate`` and ``apply`` gather one update's gradient; ``step_with`` takes the step once all have theirs."""

    def __init__(self, timer: Timer, index: int, count: int) -> None:
        super().__init__(timer)
        self.rank, self.world_size = index, count
        self._statistics: RunningStatistics | None = None
        self._moments: Tensor | None = None

    def accumulate(self, loss: Loss, *arguments: Any) -> dict[str, Tensor]:
        # An update whose other half was lost with a learner is begun again: nothing of it may be left.
        self.parameters.grad.zero_()
        return super().accumulate(loss, *arguments)

    def apply(self) -> None:
        """The gradient waits in the flat buffer for ``outgoing``."""

    def merge_statistics(self, statistics: RunningStatistics, moments: Tensor) -> None:
        self._statistics, self._moments = statistics, moments

    def outgoing(self) -> dict[str, np.ndarray]:
        """What the other learners need: gradient ``[P]``, and input moments where the policy keeps any."""
        out = {"gradient": self.parameters.grad.cpu().numpy().copy()}
        if self._moments is not None:
            out["moments"] = self._moments.cpu().numpy()
        return out

    def step_with(self, gradients: tuple[dict[str, np.ndarray], ...]) -> None:
        """Average the gradients of all learners, in their order, clip, step."""
        grad = self.parameters.grad
        grad.zero_()
        for part in gradients:
            grad += torch.from_numpy(np.array(part["gradient"])).to(grad.device)
        grad /= len(gradients)
        self.bytes_moved += len(gradients) * grad.numel() * grad.element_size()
        super().apply()
        if self._statistics is not None:
            moments = torch.from_numpy(np.sum([part["moments"] for part in gradients], axis=0))
            self._statistics.merge(moments.to(grad.device))
            self._statistics = None
