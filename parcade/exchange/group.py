"""Gradient averaging between learners of one policy: an allreduce by all-gather, through the driver.

The driver collects ``outgoing`` of every learner and passes all of them to every learner. Each learner
averages them in the same order, so that all parameters stay bit-identical. A restarted learner gets the state
of another one, which MPI's Allreduce does not allow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from parcade.exchange.base import Exchange, Loss
from parcade.machine.timing import Timer
from parcade.model.policy import RunningStatistics


class GroupExchange(Exchange):
    """``accumulate`` computes the local gradient; ``step_with`` takes the step with those of all learners."""

    def __init__(self, timer: Timer, index: int, count: int) -> None:
        super().__init__(timer)
        self.rank, self.world_size = index, count
        self._statistics: RunningStatistics | None = None
        self._moments: Tensor | None = None

    def accumulate(self, loss: Loss, *arguments: Any) -> dict[str, Tensor]:
        # An update is repeated if a learner died during it; discard the gradient of the first attempt.
        self.parameters.grad.zero_()
        return super().accumulate(loss, *arguments)

    def apply(self) -> None:
        """Do nothing: the gradient stays in the flat buffer until ``outgoing`` reads it."""

    def merge_statistics(self, statistics: RunningStatistics, moments: Tensor) -> None:
        self._statistics, self._moments = statistics, moments

    def outgoing(self) -> dict[str, np.ndarray]:
        """Return the arrays for the other learners: gradient ``[P]``, and input moments if there are any."""
        out = {"gradient": self.parameters.grad.cpu().numpy().copy()}
        if self._moments is not None:
            out["moments"] = self._moments.cpu().numpy()
        return out

    def step_with(self, gradients: tuple[dict[str, np.ndarray], ...]) -> None:
        """Average the gradients of all learners in learner order, clip the mean, take an optimiser step."""
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
