"""Statistics over runs and games equal rliable's, and simple cases worked by hand."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from parcade.suite import statistics

pytestmark = pytest.mark.quick


@pytest.fixture
def random(seed):
    return np.random.default_rng(seed)


def rliable():
    pytest.importorskip("rliable", reason="rliable is not installed (it has no build for Python 3.14)")
    from rliable import library, metrics

    return library, metrics


@pytest.mark.integrations
@pytest.mark.parametrize("runs", [1, 3, 8])
def test_aggregates_equal_rliables(random, runs):
    _, metrics = rliable()
    scores = random.normal(1.0, 2.0, (runs, 7))
    theirs = {
        "IQM": metrics.aggregate_iqm,
        "median": metrics.aggregate_median,
        "mean": metrics.aggregate_mean,
        "optimality gap": metrics.aggregate_optimality_gap,
    }
    for name, aggregate in statistics.AGGREGATES.items():
        assert aggregate(scores) == pytest.approx(theirs[name](scores)), name


@pytest.mark.integrations
def test_performance_profiles_and_probability_of_improvement_equal_rliables(random):
    library, metrics = rliable()
    ours, theirs = random.normal(1.0, 2.0, (5, 7)).round(), random.normal(0.5, 2.0, (4, 7)).round()
    thresholds = np.linspace(-2, 4, 13)
    expected = [library.run_score_deviation(ours, threshold) for threshold in thresholds]
    np.testing.assert_allclose(statistics.performance_profile(ours, thresholds), expected)
    assert statistics.probability_of_improvement(ours, theirs) == pytest.approx(
        metrics.probability_of_improvement(ours, theirs)
    )


@pytest.mark.integrations
def test_intervals_equal_rliables_within_the_noise_of_the_bootstrap(random):
    library, metrics = rliable()
    scores = random.normal(1.0, 2.0, (6, 10))
    ours = statistics.interval(scores, statistics.interquartile_mean, random=random, repetitions=4000)
    _, bounds = library.get_interval_estimates(
        {"ours": scores}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=4000
    )
    width = ours.high - ours.low
    np.testing.assert_allclose([ours.low, ours.high], bounds["ours"][:, 0], atol=0.1 * width)


def test_the_interquartile_mean_ignores_the_best_and_the_worst_quarter():
    assert statistics.interquartile_mean(np.array([[-1000.0, 1.0, 3.0, 1000.0]])) == 2.0


def test_an_interval_of_one_run_is_its_value(random):
    scores = np.array([[0.2, 0.4, 0.9]])
    assert statistics.interval(scores, statistics.mean, random=random) == pytest.approx((0.5, 0.5, 0.5))


def test_the_optimality_gap_counts_scores_above_the_target_as_the_target():
    assert statistics.optimality_gap(np.array([[0.5, 7.0]])) == 0.25


def test_a_tie_is_half_an_improvement():
    ours, theirs = np.array([[1.0, 2.0, 3.0]]), np.array([[1.0, 1.0, 1.0]])
    assert statistics.probability_of_improvement(ours, theirs) == pytest.approx((0.5 + 1 + 1) / 3)


def padded(*games):
    """Scores ``[runs, games]`` of games with different numbers of runs."""
    return np.array(list(itertools.zip_longest(*games, fillvalue=np.nan)), float)


def test_all_runs_of_all_games_count_and_each_game_alike():
    scores = padded([1.0] * 5, [0.0, 4.0, 4.0, 4.0, 4.0], [0.5])
    assert statistics.mean(scores) == pytest.approx((1.0 + 3.2 + 0.5) / 3)
    assert statistics.median(scores) == 1.0
    assert statistics.optimality_gap(scores) == pytest.approx((0.0 + 1 / 5 + 0.5) / 3)
    np.testing.assert_allclose(
        statistics.performance_profile(scores, np.array([0.2, 2.0, 4.0])), [2.8 / 3, 0.8 / 3, 0.0]
    )


@pytest.mark.parametrize("num_runs", [(5, 5, 1), (2, 3), (3, 1, 2, 4), (4, 4)])
def test_the_interquartile_mean_of_unequal_games_is_that_of_copied_runs(random, num_runs):
    games = [random.normal(1.0, 2.0, runs) for runs in num_runs]
    copies = math.lcm(*num_runs)
    copied = np.stack([np.repeat(game, copies // len(game)) for game in games], axis=1)
    expected = stats.trim_mean(copied, 0.25, axis=None)
    assert statistics.interquartile_mean(padded(*games)) == pytest.approx(expected)


def test_the_interquartile_mean_of_many_unequal_games_is_computed_at_once(random):
    games = [random.normal(1.0, 2.0, runs) for runs in range(1, 58)]  # 10**24 copies
    # Exact: the runs side by side, each as wide as its share, without the outer quarters.
    first, last = Fraction(len(games), 4), Fraction(3 * len(games), 4)
    total, position = Fraction(0), Fraction(0)
    for value, width in sorted((value, Fraction(1, len(game))) for game in games for value in game):
        inside = min(position + width, last) - max(position, first)
        total += Fraction(value) * max(inside, Fraction(0))
        position += width
    assert position == len(games)
    assert statistics.interquartile_mean(padded(*games)) == pytest.approx(float(total / (last - first)))


def test_an_interval_draws_each_game_from_its_own_runs(random):
    scores = padded([0.0] * 8 + [8.0], [5.0])
    found = statistics.interval(scores, statistics.mean, random=random)
    assert found.value == pytest.approx((8 / 9 + 5) / 2)
    # 9 draws of one 8 among nine: none in 35 % of the repetitions, four or more in 1 %.
    assert (found.low, found.high) == pytest.approx((2.5, (24 / 9 + 5) / 2))


def test_an_interval_draws_as_many_runs_of_each_game_as_it_has(random):
    counted = []

    def count(scores):
        counted.append(tuple((~np.isnan(scores)).sum(0)))
        return 0.0

    statistics.interval(padded([1.0] * 4, [2.0, 3.0], [5.0]), count, random=random, repetitions=20)
    assert counted == [(4, 2, 1)] * 21  # the scores themselves, too


def test_an_interval_of_equally_many_runs_draws_as_before(random):
    scores = random.normal(1.0, 2.0, (5, 3))
    found = statistics.interval(scores, statistics.mean, random=np.random.default_rng(4), repetitions=50)
    again = np.random.default_rng(4)
    drawn = [scores[again.integers(0, 5, (5, 3)), np.arange(3)].mean(0).mean() for _ in range(50)]
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(drawn, [2.5, 97.5])), rel=1e-12)
