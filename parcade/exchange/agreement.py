"""Agreeing on an end that depends on a clock or a signal, without a collective operation per update."""

from __future__ import annotations

import math
import time

import numpy as np

from parcade.exchange.base import Exchange

SECONDS_BETWEEN_QUESTIONS = 2.0


class RareAgreement:
    """Asks all ranks whether one of them sets a flag, once every few seconds of updates.

    The number of updates between two questions starts at one, at most doubles each time, and depends only on
    values that the ranks have agreed on. So all ranks ask after the same update, and none waits for an
    answer that another does not give.
    """

    def __init__(self, exchange: Exchange, seconds: float = SECONDS_BETWEEN_QUESTIONS) -> None:
        self._exchange = exchange
        self._seconds = seconds
        self._between = self._left = 1
        self._since = time.perf_counter()

    def count_update(self) -> bool:
        """Count an update. Return whether all ranks must call ``ask`` now."""
        self._left -= 1
        return self._left == 0

    def ask(self, *flags: bool, seconds_left: float = math.inf) -> list[bool]:
        """Return for every flag whether any rank sets it. Collective.

        ``seconds_left`` is the time until this rank will set a flag, if it knows: if updates then take as
        long as before, the next question comes no later.
        """
        spent = time.perf_counter() - self._since
        answers = self._exchange.maximum(np.array([*flags, spent, -seconds_left], np.float64))
        seconds_per_update = max(answers[-2] / self._between, 1e-9)
        seconds = min(self._seconds, -answers[-1])
        self._between = self._left = int(np.clip(seconds / seconds_per_update, 1, 2 * self._between))
        self._since = time.perf_counter()
        return [bool(answer) for answer in answers[:-2]]
