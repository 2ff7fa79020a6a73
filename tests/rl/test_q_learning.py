"""Q-learning targets, importance weights and ranks against their definitions and their special cases."""

import numpy as np
import pytest
import torch

from parcade.rl.q_learning import (
    double_q_targets,
    epsilon_greedy_value,
    importance_weights,
    q_targets,
    value_of,
    weighted_huber_loss,
)
from parcade.rl.ranks import centered_ranks

pytestmark = pytest.mark.quick


def test_double_q_worked_by_hand():
    returns, discounts = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0])
    online, target = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[10.0, 6.0], [9.0, 9.0]])
    assert double_q_targets(returns, discounts, online, target).tolist() == [4.0, 2.0]
    assert q_targets(returns, discounts, target).tolist() == [6.0, 2.0]
    assert value_of(online, torch.tensor([1, 0])).tolist() == [4.0, 0.0]


def test_double_q_with_one_network_is_plain_q():
    g = torch.Generator().manual_seed(0)
    returns, discounts, q = (
        torch.randn(9, generator=g),
        torch.rand(9, generator=g),
        torch.randn(9, 4, generator=g),
    )
    torch.testing.assert_close(double_q_targets(returns, discounts, q, q), q_targets(returns, discounts, q))


def test_sarsa_expects_the_maximum_when_greedy_and_the_mean_when_random():
    q = torch.tensor([[1.0, 5.0, 0.0]])
    assert epsilon_greedy_value(q, torch.tensor(0.0)).item() == 5.0
    assert epsilon_greedy_value(q, torch.tensor(1.0)).item() == 2.0
    assert epsilon_greedy_value(q, torch.tensor(0.5)).item() == 3.5


def test_importance_weights_equal_their_definition_one_by_one():
    probabilities = torch.tensor([0.5, 0.25, 0.2, 0.05], dtype=torch.float64)
    expected = np.array([(1 / (10 * p)) ** 0.6 for p in probabilities.tolist()])
    np.testing.assert_allclose(importance_weights(probabilities, 10, 0.6), expected / expected.max())
    assert importance_weights(probabilities, 10, 0.0).tolist() == [1.0] * 4


def test_importance_weights_undo_the_sampling():
    """Weighted samples drawn by priority have the mean of uniform ones."""
    random = np.random.default_rng(0)
    values, priorities = random.normal(size=50), random.random(50) + 0.1
    p = priorities / priorities.sum()
    drawn = random.choice(50, 200_000, p=p)
    weights = importance_weights(torch.from_numpy(p[drawn]), 50, 1.0).numpy()
    assert np.average(values[drawn], weights=weights) == pytest.approx(values.mean(), abs=0.02)


def test_the_huber_loss_clips_the_gradient_at_one():
    errors = torch.tensor([0.5, -3.0], requires_grad=True)
    weighted_huber_loss(errors, torch.tensor([1.0, 1.0])).backward()
    assert errors.grad.tolist() == [0.25, -0.5]


def test_centered_ranks_worked_by_hand():
    assert centered_ranks(np.array([3.0, -1.0, 7.0])).tolist() == [0.0, -0.5, 0.5]
    assert centered_ranks(np.array([1.0, 1.0, 2.0])).tolist() == [-0.25, -0.25, 0.5]
    assert centered_ranks(np.full(4, 2.0)).tolist() == [0.0] * 4
