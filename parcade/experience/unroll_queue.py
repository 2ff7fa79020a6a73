"""The queue of unrolls between actors and learners, with back-pressure.

Paper: Espeholt 2018, "IMPALA", arXiv 1802.01561, section 3. The bound is on unrolls *under way*: being played, waiting,
or being learned from. An actor is not asked for another while as many are under way, so memory is bounded, and so is
how old an unroll's policy can be: with U unrolls an update, at most ``max_lag`` = ceil(capacity / U) - 1 updates when
unrolls are learned in the order they were begun. Capacity U means that nothing is played while the learner learns: lag 0.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple


class Unroll(NamedTuple):
    """What waits: a handle on the arrays, and the policy_version that played them."""

    data: Any
    version: int


class UnrollQueue:
    """First in, first out. ``admit`` before an unroll is begun, ``put`` when it is there, ``learned`` when it is done."""

    def __init__(self, capacity: int, unrolls_per_update: int) -> None:
        if capacity < unrolls_per_update:
            raise ValueError(
                f"capacity={capacity} unrolls never hold the {unrolls_per_update} of one update; use that many or more"
            )
        self.capacity = capacity
        self.unrolls_per_update = unrolls_per_update
        self.under_way = 0
        self.waiting: deque[Unroll] = deque()

    @property
    def max_lag(self) -> int:
        """Updates between the weights that play an unroll and those that learn from it, at most."""
        return -(-self.capacity // self.unrolls_per_update) - 1

    def admit(self) -> bool:
        """Whether another unroll may begin; if so it is under way from now on."""
        if self.under_way >= self.capacity:
            return False
        self.under_way += 1
        return True

    def put(self, unroll: Unroll) -> None:
        """An unroll is there."""
        self.waiting.append(unroll)

    def drop(self, count: int = 1) -> None:
        """Unrolls that will never be there: their actor died."""
        self.under_way -= count

    @property
    def ready(self) -> bool:
        """Whether an update's unrolls wait."""
        return len(self.waiting) >= self.unrolls_per_update

    def take(self) -> list[Unroll]:
        """The unrolls of one update, oldest first; they stay under way until ``learned``."""
        return [self.waiting.popleft() for _ in range(self.unrolls_per_update)]

    def learned(self) -> None:
        """An update is over: its unrolls make room."""
        self.under_way -= self.unrolls_per_update
