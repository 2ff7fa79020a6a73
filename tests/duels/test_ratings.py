"""Bradley-Terry ratings."""

import numpy as np
import pytest

from parcade.duels.ratings import MEAN_RATING, bradley_terry

pytestmark = pytest.mark.quick


def test_two_players_are_rated_by_elos_formula():
    """7 wins of 10 and a virtual draw: 7.5 of 11."""
    rated = bradley_terry(np.array([[0, 7], [3, 0]]))
    expected = 400 * np.log10(7.5 / 3.5)
    assert rated.ratings[0] - rated.ratings[1] == pytest.approx(expected)
    assert rated.ratings.mean() == pytest.approx(MEAN_RATING)


def test_the_error_of_two_players_is_that_of_a_binomial():
    """The difference of log strengths has variance 1 / (n p q); each rating takes half the difference."""
    rated = bradley_terry(np.array([[0, 5], [5, 0]]))
    difference = 400 / np.log(10) / np.sqrt(11 * 0.25)
    assert rated.errors[0] == pytest.approx(difference / 2)


def test_a_player_that_always_wins_has_a_finite_rating():
    rated = bradley_terry(np.array([[0, 10, 10], [0, 0, 10], [0, 0, 0]]))
    assert np.isfinite(rated.ratings).all()
    assert rated.ratings[0] > rated.ratings[1] > rated.ratings[2]


def test_ratings_recover_the_strengths_that_made_the_results():
    strength = np.array([1.0, 2.0, 4.0])
    wins = 10_000 * strength[:, None] / (strength[:, None] + strength)
    np.fill_diagonal(wins, 0)
    rated = bradley_terry(wins)
    assert np.diff(rated.ratings) == pytest.approx([400 * np.log10(2)] * 2, abs=0.1)


def test_players_that_never_met_are_compared_through_those_they_met_alone():
    """Without a loop of matches, each pair has the difference of two players: 0 and 2 get no draw."""
    rated = bradley_terry(np.array([[0, 7, 0], [3, 0, 9], [0, 1, 0]]))
    expected = [400 * np.log10(7.5 / 3.5), 400 * np.log10(9.5 / 1.5)]
    assert rated.ratings[:2] - rated.ratings[1:] == pytest.approx(expected, rel=1e-6)
    # The differences are independent; the first rating is (2 first + second) / 3 above the mean.
    first, second = (11 / (7.5 * 3.5), 11 / (9.5 * 1.5))
    expected = 400 / np.log(10) * np.sqrt((4 * first + second) / 9)
    assert rated.errors[0] == pytest.approx(expected, rel=1e-6)
