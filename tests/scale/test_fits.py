"""The fits on known curves, and on published numbers."""

import numpy as np
import pytest

from parcade.scale import fits

pytest.importorskip("scipy", reason="the extra parcade[reports] is not installed")
pytestmark = pytest.mark.quick
SIZES = (1, 2, 4, 8, 16)


def exact(curve, *parameters, sizes=SIZES):
    return {n: [fits.CURVES[curve].rate(n, *parameters)] for n in sizes}


def noisy(curve, *parameters, sizes=SIZES, repeats=5, noise=0.02):
    generator = np.random.default_rng(0)
    rate = fits.CURVES[curve].rate
    return {n: list(rate(n, *parameters) * generator.normal(1, noise, repeats)) for n in sizes}


def test_the_published_line_predicts_its_128_cores():
    """746 + 336 steps/s per core: about 44,000 on 128 cores, a hundred times the 440 of the first core."""
    line = fits.fit("line", exact("line", 746, 336, sizes=(1, 2, 4, 8, 12, 18)))
    assert line.parameters == pytest.approx({"a": 746, "b": 336})
    assert line.predict(128) == pytest.approx(43_754)
    assert line.size_for(44_000) == 129 and line.size_for(43_754) == 128
    assert line.error < 1e-9 and line.peak is None


@pytest.mark.parametrize(
    "curve, parameters", [("line", (10.0, 3.0)), ("amdahl", (100.0, 0.05)), ("usl", (100.0, 0.02, 0.001))]
)
def test_a_curve_is_found_again_from_its_own_points(curve, parameters):
    fitted = fits.fit(curve, exact(curve, *parameters))
    assert tuple(fitted.parameters.values()) == pytest.approx(parameters, rel=1e-6)
    assert len(fitted.repeats) == 0 and fitted.ranges == {} and fitted.range_at(4) is None


def test_amdahl_is_the_usl_without_coherency():
    samples = exact("amdahl", 100.0, 0.1)
    usl = fits.fit("usl", samples)
    assert usl.parameters["kappa"] == pytest.approx(0.0, abs=1e-9)
    assert usl.predict(64) == pytest.approx(fits.fit("amdahl", samples).predict(64), rel=1e-5)


def test_a_perfect_machine_has_neither_contention_nor_coherency():
    usl = fits.fit("usl", {n: [50.0 * n] for n in SIZES})
    assert usl.parameters == pytest.approx({"lambda": 50.0, "sigma": 0.0, "kappa": 0.0}, abs=1e-7)
    assert usl.size_for(1e6) == 20_000


def test_superlinear_points_do_not_make_negative_parameters():
    usl = fits.fit("usl", {1: [100.0], 2: [220.0], 4: [480.0]})
    assert usl.parameters["sigma"] >= 0 and usl.parameters["kappa"] >= 0


def test_the_usl_turns_where_the_formula_says():
    usl = fits.fit("usl", exact("usl", 100.0, 0.04, 0.0015))
    assert usl.peak == pytest.approx((0.96 / 0.0015) ** 0.5, rel=1e-5)
    best = max(range(1, 100), key=usl.predict)
    assert abs(best - usl.peak) <= 1
    assert usl.size_for(usl.predict(best) * 1.01) is None
    assert usl.size_for(usl.predict(10)) == 10


@pytest.mark.parametrize("curve", ["line", "amdahl", "usl"])
def test_a_rate_that_falls_from_the_start_peaks_at_size_one(curve):
    falling = fits.fit(curve, {1: [100.0], 2: [80.0], 4: [60.0]})
    assert falling.predict(1) > falling.predict(2) and falling.peak == 1
    assert falling.size_for(falling.predict(1)) == 1 and falling.size_for(2 * falling.predict(1)) is None


def test_a_peak_beyond_a_million_is_found():
    usl = fits.CurveFit("usl", {"lambda": 1.0, "sigma": 0.0, "kappa": 1e-12}, np.array([]), 0.0)
    assert usl.peak == pytest.approx(1e6)
    size = usl.size_for(400_000)
    assert usl.reaches(400_000, size) and not usl.reaches(400_000, size - 1)


def test_ranges_are_of_the_repeats_each_fitted_on_its_own():
    line = fits.fit("line", {1: [3.0, 5.0, 10.0], 2: [5.0, 9.0, 12.0]})
    assert line.parameters == pytest.approx({"a": 1.0, "b": 4.0})  # through the medians
    assert line.ranges == {"a": pytest.approx((1.0, 8.0)), "b": pytest.approx((2.0, 4.0))}
    assert line.range_at(4) == pytest.approx((9.0, 17.0))
    assert fits.fit("line", {1: [3.0, 5.0], 2: [5.0]}).ranges == {}, "size 2 was measured once"


def test_ranges_widen_with_the_noise():
    quiet, loud = (fits.fit("usl", noisy("usl", 100.0, 0.03, 0.0008, noise=noise)) for noise in (0.005, 0.05))
    width = lambda found: found.range_at(32)[1] - found.range_at(32)[0]  # noqa: E731
    assert width(loud) > 3 * width(quiet)


@pytest.mark.parametrize("repeats", [2, 3, 6])
def test_a_range_holds_the_median_as_often_as_is_said(repeats):
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(2000):  # log-normal, as rates disturbed by other work are: the median is 100
        samples = {n: list(100 * n * np.exp(generator.normal(0, 0.2, repeats))) for n in (1, 2)}
        low, high = fits.fit("line", samples).range_at(1)
        held += low <= 100 <= high
    assert held / 2000 == pytest.approx(fits.range_holds(repeats), abs=0.03)


def test_a_curve_with_more_parameters_than_sizes_is_left_out():
    assert set(fits.fit_all({1: [1.0], 2: [1.9]})) == {"line", "amdahl"}
    with pytest.raises(ValueError, match="usl needs 3 sizes, got 2"):
        fits.fit("usl", {1: [1.0], 2: [1.9]})


def test_the_rate_at_a_peak_between_two_sizes_is_reached_by_the_better_of_them():
    usl = fits.fit("usl", exact("usl", 100.0, 0.0, 1 / 7.84, sizes=(1, 2, 3, 4)))
    assert usl.peak == pytest.approx(2.8) and usl.predict(3) > usl.predict(2)
    assert usl.size_for(usl.predict(3)) == 3


def test_repeats_without_a_finite_fit_are_left_out_of_the_range():
    falling = {2: [100.0, 100.0, 100.0], 4: [190.0, 191.0, 40.0], 8: [350.0, 351.0, 10.0]}
    found = fits.fit("amdahl", falling)
    assert not np.isfinite(fits.CURVES["amdahl"].fit(np.array([2.0, 4, 8]), np.array([100.0, 40, 10]))).all()
    assert len(found.repeats) == 2 and np.isfinite([*found.ranges.values()]).all()


def test_speed_up_and_efficiency_are_against_the_smallest_size():
    samples = {2: [200.0, 210.0, 190.0], 4: [360.0], 8: [400.0]}
    assert fits.speed_up(samples) == {2: 1.0, 4: 1.8, 8: 2.0}
    assert fits.efficiency(samples) == {2: 1.0, 4: 0.9, 8: 0.5}


def test_a_curve_has_turned_only_when_the_spreads_do_not_touch():
    assert fits.turning_size({1: [10, 11], 2: [19, 20], 4: [15, 16]}) == 2
    assert fits.turning_size({1: [10, 11], 2: [19, 20], 4: [18, 19.5]}) is None
    assert fits.turning_size({1: [10], 2: [19]}) is None


def test_a_rate_that_a_falling_curve_starts_with_needs_one():
    for name, parameters in (("line", (110, -10)), ("amdahl", (100, 1.5))):
        fit = fits.fit(name, exact(name, *parameters))
        assert fit.size_for(fit.predict(1)) == 1 and fit.size_for(60) == 1
        assert fit.size_for(200) is None


def test_a_fit_without_a_rate_at_one_is_left_out():
    """Rates that fall faster than by contention alone give an infinite rate at size 1."""
    found = fits.fit_all({2: [100.0], 4: [60.0], 8: [50.0]})
    assert "line" in found and all(np.isfinite(list(fit.parameters.values())).all() for fit in found.values())
    assert len(found) < len(fits.CURVES)
