"""Ranks agree on flags rarely, and all ask one another after the same update."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from parcade.exchange import agreement as module
from parcade.exchange.agreement import RareAgreement

pytestmark = pytest.mark.quick


def questions(monkeypatch, num_updates, seconds_per_update, seconds_left=lambda now: np.inf):
    """The updates after which one rank asks, on a clock that only updates move."""
    now = 0.0
    monkeypatch.setattr(module.time, "perf_counter", lambda: now)
    agreement, asked = RareAgreement(SimpleNamespace(maximum=lambda x: x)), []
    for update in range(1, num_updates + 1):
        now += seconds_per_update
        if agreement.count_update():
            asked.append(update)
            assert agreement.ask(False, update == 7, seconds_left=seconds_left(now)) == [False, update == 7]
    return asked


def test_the_updates_between_questions_double_until_they_take_seconds(monkeypatch):
    assert questions(monkeypatch, 800, 0.0101) == [1, 3, 7, 15, 31, 63, 127, 255, 453, 651]
    assert questions(monkeypatch, 7, 60.0) == [1, 2, 3, 4, 5, 6, 7], "an update takes longer than the pause"


def test_the_next_question_comes_when_a_rank_expects_its_flag(monkeypatch):
    asked = questions(monkeypatch, 200, 0.0101, lambda now: max(1.0 - now, 0.0))
    assert asked[:8] == [1, 3, 7, 15, 31, 63, 99, 100], "1 s is over within update 100"


def test_ranks_of_different_speed_ask_after_the_same_update():
    """Two ranks in threads: each only has its own clock, and rank 1 is the slow one by turns."""
    both, rows = threading.Barrier(2, timeout=100), [None, None]
    clocks, asked, answers = threading.local(), ([], []), ([], [])

    def maximum(rank, x):
        rows[rank] = x
        both.wait()
        largest = np.maximum(*rows)
        both.wait()
        return largest

    def train(rank):
        clocks.now = 0.0
        agreement = RareAgreement(SimpleNamespace(maximum=lambda x: maximum(rank, x)))
        for update in range(1, 501):
            clocks.now += 0.01 if (update // 50 + rank) % 2 else 0.05
            if agreement.count_update():
                asked[rank].append(update)
                answers[rank].append(agreement.ask(rank == 1 and update > 100))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clocks.now))
        threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(200)
    assert asked[0] == asked[1] and 8 < len(asked[0]) < 30
    assert answers[0] == answers[1] == [[update > 100] for update in asked[0]]
