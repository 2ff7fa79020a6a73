"""Importance of settings, on functions whose settings are known to matter or not."""

import numpy as np
import pytest

from parcade.sweep.importance import FEWEST_TRIALS, importances
from parcade.sweep.space import Choice, Span, random_settings

pytestmark = pytest.mark.quick
SPACE = {
    "rate": Span("rate", 1e-4, 1e-1, log=True, whole=False),
    "weight": Span("weight", 0.0, 1.0, log=False, whole=False),
    "parts": Choice("parts", (2, 4, 8)),
    "depth": Span("depth", 1, 4, log=False, whole=True),
}


def drawn(number: int) -> list[dict]:
    return [random_settings(SPACE, seed=1, number=i) for i in range(number)]


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("rate", lambda each: -((np.log10(each["rate"]) + 2.5) ** 2)),
        ("weight", lambda each: np.exp(5 * each["weight"])),
        ("parts", lambda each: {2: 0.0, 4: 9.0, 8: 1.0}[each["parts"]]),
        ("depth", lambda each: float(each["depth"])),
    ],
)
def test_the_setting_that_matters_is_first_and_not_by_chance(name, objective):
    noise = np.random.default_rng(2).normal(size=20)
    values = [objective(each) + 0.1 * n for each, n in zip(drawn(20), noise, strict=True)]
    first, *others = importances(SPACE, drawn(20), values)
    assert first.name == name and first.share > 0.8 and first.chance < 0.01
    assert all(other.share < 0.5 for other in others)


def test_a_setting_without_effect_explains_the_noise_only_by_chance():
    random = np.random.default_rng(3)
    found = [importances(SPACE, drawn(20), list(random.normal(size=20))) for _ in range(50)]
    chances = [each.chance for one in found for each in one]
    assert 0.02 < np.mean(np.array(chances) < 0.1) < 0.2  # uniform, as probabilities by chance are
    assert np.mean([each.share for one in found for each in one]) < 0.1


def test_the_share_of_a_linear_setting_is_the_adjusted_r_squared_worked_by_hand():
    # Ranks -5/2 ... 5/2 on a line: R^2 = 1. With one pair swapped: r = 1 - 6 * 2 / (6 * 35), and the parabola
    # adds nothing, because the residuals are antisymmetric about the middle.
    space = {"weight": SPACE["weight"]}
    settings = [{"weight": i / 5} for i in range(6)]
    assert importances(space, settings, [0, 1, 2, 3, 4, 5])[0].share == pytest.approx(1)
    r_squared = (1 - 6 * 2 / (6 * 35)) ** 2
    (found,) = importances(space, settings, [0, 1, 3, 2, 4, 5])
    assert found.share == pytest.approx(1 - (1 - r_squared) * 5 / 3)


def test_too_few_or_equal_values_have_no_importance():
    assert importances(SPACE, drawn(FEWEST_TRIALS - 1), [1.0, 2, 3, 4, 5]) == []
    assert importances(SPACE, drawn(9), [1.0] * 9) == []


def test_a_setting_that_was_drawn_only_once_per_value_explains_nothing():
    space = {"parts": Choice("parts", tuple(range(6)))}
    (found,) = importances(space, [{"parts": i} for i in range(6)], [1.0, 2, 3, 4, 5, 6])
    assert (found.share, found.chance) == (0.0, 1.0)
