"""Statistics over runs and games equal rliable's, and simple cases worked by hand."""

import numpy as np
import pytest

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
    assert statistics.probability_of_improvement(np.array([[1.0, 2.0]]), np.array([[1.0, 1.0]])) == 0.75
