"""The fits on curves that are known, and published figures."""

import numpy as np
import pytest

from parcade.scale import fits

pytest.importorskip("scipy", reason="the extra parcade[reports] is not installed")
pytestmark = pytest.mark.quick
SIZES = (1, 2, 4, 8, 16)


def rng():
    return np.random.default_rng(7)


def exact(curve, *parameters, sizes=SIZES):
    return {n: [fits.CURVES[curve].rate(n, *parameters)] for n in sizes}


def noisy(curve, *parameters, sizes=SIZES, repeats=5, noise=0.02):
    generator = np.random.default_rng(0)
    rate = fits.CURVES[curve].rate
    return {n: list(rate(n, *parameters) * generator.normal(1, noise, repeats)) for n in sizes}


def test_the_published_line_predicts_its_128_cores():
    """746 + 336 steps/s a core: about 44,000 on 128 cores, a hundred times the 440 of the first core."""
    line = fits.fit("line", exact("line", 746, 336, sizes=(1, 2, 4, 8, 12, 18)), rng())
    assert line.parameters == pytest.approx({"a": 746, "b": 336})
    assert line.predict(128) == pytest.approx(43_754)
    assert line.size_for(44_000) == 129 and line.size_for(43_754) == 128
    assert line.error < 1e-9 and line.peak is None


@pytest.mark.parametrize(
    "curve, parameters", [("line", (10.0, 3.0)), ("amdahl", (100.0, 0.05)), ("usl", (100.0, 0.02, 0.001))]
)
def test_a_curve_is_found_again_from_its_own_points(curve, parameters):
    fitted = fits.fit(curve, exact(curve, *parameters), rng())
    assert tuple(fitted.parameters.values()) == pytest.approx(parameters, rel=1e-6)
    assert fitted.draws.shape[0] == 0 and fitted.intervals == {} and fitted.interval(4) is None


def test_amdahl_is_the_usl_without_coherency():
    samples = exact("amdahl", 100.0, 0.1)
    usl = fits.fit("usl", samples, rng())
    assert usl.parameters["kappa"] == pytest.approx(0.0, abs=1e-9)
    assert usl.predict(64) == pytest.approx(fits.fit("amdahl", samples, rng()).predict(64), rel=1e-5)


def test_a_perfect_machine_has_neither_contention_nor_coherency():
    usl = fits.fit("usl", {n: [50.0 * n] for n in SIZES}, rng())
    assert usl.parameters == pytest.approx({"lambda": 50.0, "sigma": 0.0, "kappa": 0.0}, abs=1e-7)
    assert usl.size_for(1e6) == 20_000


def test_superlinear_points_do_not_make_negative_parameters():
    usl = fits.fit("usl", {1: [100.0], 2: [220.0], 4: [480.0]}, rng())
    assert usl.parameters["sigma"] >= 0 and usl.parameters["kappa"] >= 0


def test_the_usl_turns_where_the_formula_says():
    usl = fits.fit("usl", exact("usl", 100.0, 0.04, 0.0015), rng())
    assert usl.peak == pytest.approx((0.96 / 0.0015) ** 0.5, rel=1e-5)
    best = max(range(1, 100), key=usl.predict)
    assert abs(best - usl.peak) <= 1
    assert usl.size_for(usl.predict(best) * 1.01) is None
    assert usl.size_for(usl.predict(10)) == 10


def test_intervals_hold_the_true_parameters_and_widen_with_the_noise():
    true = (100.0, 0.03, 0.0008)
    quiet = fits.fit("usl", noisy("usl", *true, noise=0.005), rng())
    loud = fits.fit("usl", noisy("usl", *true, noise=0.05), rng())
    width = lambda found, n: found.interval(n)[1] - found.interval(n)[0]  # noqa: E731
    assert width(loud, 32) > 3 * width(quiet, 32)
    low, high = quiet.intervals["sigma"]
    assert low <= high and low < 0.03 * 1.3 and high > 0.03 * 0.7
    low, high = loud.interval(16)
    assert low < fits.CURVES["usl"].rate(16, *true) < high


def test_a_curve_with_more_parameters_than_sizes_is_left_out():
    assert set(fits.fit_all({1: [1.0], 2: [1.9]})) == {"line", "amdahl"}
    with pytest.raises(ValueError, match="usl needs 3 sizes, got 2"):
        fits.fit("usl", {1: [1.0], 2: [1.9]}, rng())


def test_speed_up_and_efficiency_are_against_the_smallest_size():
    samples = {2: [200.0, 210.0, 190.0], 4: [360.0], 8: [400.0]}
    assert fits.speed_up(samples) == {2: 1.0, 4: 1.8, 8: 2.0}
    assert fits.efficiency(samples) == {2: 1.0, 4: 0.9, 8: 0.5}


def test_a_curve_has_turned_only_when_the_spreads_do_not_touch():
    assert fits.turning_size({1: [10, 11], 2: [19, 20], 4: [15, 16]}) == 2
    assert fits.turning_size({1: [10, 11], 2: [19, 20], 4: [18, 19.5]}) is None
    assert fits.turning_size({1: [10], 2: [19]}) is None
