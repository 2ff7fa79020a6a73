"""Values of actions and importance weights against their definitions and their special cases."""

import numpy as np
import pytest
import torch

from parcade.rl.q_learning import (
    distribution_of,
    epsilon_greedy_value,
    importance_weights,
    value_of,
)

pytestmark = pytest.mark.quick


def test_values_and_distributions_are_those_of_the_actions():
    q = torch.tensor([[3.0, 4.0], [0.0, 9.0]])
    assert value_of(q, torch.tensor([1, 0])).tolist() == [4.0, 0.0]
    z = torch.stack([q, -q], dim=-1)
    assert distribution_of(z, torch.tensor([1, 0])).tolist() == [[4.0, -4.0], [0.0, 0.0]]


def test_sarsa_expects_the_maximum_when_greedy_and_the_mean_when_random():
    q = torch.tensor([[1.0, 5.0, 0.0]])
    assert epsilon_greedy_value(q, torch.tensor(0.0)).item() == 5.0
    assert epsilon_greedy_value(q, torch.tensor(1.0)).item() == 2.0
    assert epsilon_greedy_value(q, torch.tensor(0.5)).item() == 3.5


def test_importance_weights_equal_their_definition_one_by_one():
    probabilities = torch.tensor([0.5, 0.25, 0.2, 0.05], dtype=torch.float64)
    expected = np.array([(1 / (10 * p)) ** 0.6 for p in probabilities.tolist()])
    np.testing.assert_allclose(importance_weights(probabilities, 10, 0.6), expected)
    assert importance_weights(probabilities, 10, 0.0).tolist() == [1.0] * 4


def test_importance_weights_undo_the_sampling():
    """Weighted samples drawn by priority have the mean of uniform ones."""
    random = np.random.default_rng(0)
    values, priorities = random.normal(size=50), random.random(50) + 0.1
    p = priorities / priorities.sum()
    drawn = random.choice(50, 200_000, p=p)
    weights = importance_weights(torch.from_numpy(p[drawn]), 50, 1.0).numpy()
    assert np.average(values[drawn], weights=weights) == pytest.approx(values.mean(), abs=0.02)
