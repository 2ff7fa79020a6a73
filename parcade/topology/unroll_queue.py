"""The queue of unrolls between actors and learners, with back-pressure.

Paper: Espeholt 2018, "IMPALA", arXiv 1802.01561, section 3. ``capacity`` bounds the number of unrolls *under
way*: being played, waiting, or being learned from. No unroll starts while ``capacity`` unrolls are under way.
This bounds memory. It also bounds the policy lag where unrolls arrive in the order in which they were
started, as on the serial engine: with U unrolls per update, the lag is at most ``max_lag`` =
ceil(capacity / U) - 1 updates. On a cluster an unroll of a slow actor may be older. With a capacity of U
nothing is played while the learner learns, and the lag is 0.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple


class QueuedUnroll(NamedTuple):
    """An element of the queue: a handle on the arrays, and the policy_version that played them."""

    data: Any
    version: int


class UnrollQueue:
    """A first-in, first-out queue.

    Call ``admit`` before an unroll is started, ``put`` when it arrives, and ``learned`` after its update.
    """

    def __init__(self, capacity: int, unrolls_per_update: int) -> None:
        if capacity < unrolls_per_update:
            raise ValueError(
                f"capacity={capacity} is less than the {unrolls_per_update} unrolls of one update; "
                "use that many or more"
            )
        self.capacity = capacity
        self.unrolls_per_update = unrolls_per_update
        self.under_way = 0
        self.waiting: deque[QueuedUnroll] = deque()

    @property
    def max_lag(self) -> int:
        """Maximum lag in updates, if unrolls arrive in the order in which they were started."""
        return -(-self.capacity // self.unrolls_per_update) - 1

    def admit(self) -> bool:
        """Return whether another unroll may start; if so, count it as under way."""
        if self.under_way >= self.capacity:
            return False
        self.under_way += 1
        return True

    def put(self, unroll: QueuedUnroll) -> None:
        """Append an unroll that arrived."""
        self.waiting.append(unroll)

    def drop(self, count: int = 1) -> None:
        """Stop counting unrolls as under way that will never arrive, because their actor died."""
        self.under_way -= count

    def lose(self, unroll: QueuedUnroll) -> None:
        """Remove a waiting unroll whose data are lost."""
        self.waiting = deque(each for each in self.waiting if each is not unroll)
        self.under_way -= 1

    @property
    def ready(self) -> bool:
        """Whether enough unrolls for one update are waiting."""
        return len(self.waiting) >= self.unrolls_per_update

    def take(self) -> list[QueuedUnroll]:
        """Pop the unrolls of one update, oldest first; they stay under way until ``learned``."""
        return [self.waiting.popleft() for _ in range(self.unrolls_per_update)]

    def learned(self) -> None:
        """Record that an update is done; its unrolls are no longer under way."""
        self.under_way -= self.unrolls_per_update
