"""Scores against hand-computed values: raw points of complete episodes, merged over ranks."""

import numpy as np
import pytest

from parcade.experience.episodes import EpisodeLog, ScoreBoard

pytestmark = pytest.mark.quick


def test_the_log_adds_up_raw_points_per_game():
    log = EpisodeLog(np.array([4, 5]))
    log.record(
        np.array([10.0, -1.0]),
        np.array([4, 4]),
        np.array([False, False]),
        np.array([1, 1]),
        np.array([True, True]),
    )
    log.record(
        np.array([5.0, -1.0]),
        np.array([4, 2]),
        np.array([False, True]),
        np.array([2, 2]),
        np.array([True, True]),
    )
    log.record(
        np.array([1.0, 7.0]),
        np.array([4, 4]),
        np.array([True, False]),
        np.array([3, 3]),
        np.array([True, True]),
    )
    assert log.take_new().tolist() == [[-2.0, 2.0, 6.0, 5.0, 2.0], [16.0, 3.0, 12.0, 4.0, 3.0]]
    assert log.take_new().shape == (0, 5)
    assert log.score.tolist() == [0.0, 7.0]
    assert log.steps.tolist() == [0, 1] and log.frames.tolist() == [0, 4]


def test_a_log_goes_on_from_its_state():
    log, other = EpisodeLog(np.array([0])), EpisodeLog(np.array([0]))
    log.record(np.array([3.0]), np.array([4]), np.array([True]), np.array([1]), np.array([True]))
    log.record(np.array([2.0]), np.array([4]), np.array([False]), np.array([2]), np.array([True]))
    other.set_state(log.get_state())
    for each in (log, other):
        each.record(np.array([1.0]), np.array([4]), np.array([True]), np.array([3]), np.array([True]))
    np.testing.assert_array_equal(log.take_new(), other.take_new())


def test_discarded_episodes_leave_nothing_to_the_next_ones():
    log = EpisodeLog(np.array([0]))
    log.record(np.array([3.0]), np.array([4]), np.array([False]), np.array([1]), np.array([True]))
    log.forget_current()
    log.add_finished(np.array([[9.0, 8.0, 32.0, 1.0, 8.0]]))  # of another log
    log.record(np.array([5.0]), np.array([4]), np.array([True]), np.array([2]), np.array([True]))
    assert log.take_new().tolist() == [[9.0, 8.0, 32.0, 1.0, 8.0], [5.0, 1.0, 4.0, 0.0, 2.0]]


def rows(scores, ended_at, env=0):
    return np.array([[s, 10, 40, env, t] for s, t in zip(scores, ended_at, strict=True)], np.float64).reshape(
        -1, 5
    )


def test_the_board_keeps_the_last_hundred_in_the_order_they_ended():
    board = ScoreBoard()
    assert board.score_mean is None and not board.is_full
    board.add(np.concatenate([rows([1.0] * 60, range(60)), rows([3.0] * 60, range(60), env=1)]))
    assert board.episodes == 120 and board.is_full
    assert board.score_mean == 2.0  # the first ten of each have dropped out
    board.add(rows([10.0], [99]))
    assert board.score_mean == pytest.approx((49 * 1 + 50 * 3 + 10) / 100)


def test_the_order_of_ranks_does_not_matter():
    a, b = rows([1.0, 2.0], [5, 1]), rows([3.0], [3], env=1)
    first, second = ScoreBoard(), ScoreBoard()
    first.add(np.concatenate([a, b]))
    second.add(np.concatenate([b, a]))
    np.testing.assert_array_equal(np.array(first.recent), np.array(second.recent))
    assert [row[0] for row in first.recent] == [2.0, 3.0, 1.0]


def test_a_board_goes_on_from_its_state():
    board, other = ScoreBoard(), ScoreBoard()
    board.add(rows([1.0, 4.0], [1, 2]))
    other.set_state(board.get_state())
    assert other.episodes == 2 and other.score_mean == 2.5
