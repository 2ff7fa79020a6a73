"""Fast returns against slow ones by definition, against hand-computed values, and against each other."""

import numpy as np
import pytest
import torch

from parcade.experience.batch import empty_batch
from parcade.rl.returns import discounted_returns, generalized_advantages, q_lambda_returns
from parcade.testing import slow_discounted_returns, slow_generalized_advantages, slow_q_lambda_returns

pytestmark = pytest.mark.quick


def random_rollout(seed, T=9, B=4):
    g = torch.Generator().manual_seed(seed)
    rewards = torch.randn(T, B, generator=g)
    discounts = 0.97 * (torch.rand(T, B, generator=g) > 0.2).float()
    values = torch.randn(T, B, generator=g)
    return rewards, discounts, values, torch.randn(B, generator=g)


@pytest.mark.parametrize("seed", range(5))
def test_discounted_returns_equal_their_definition(seed):
    rewards, discounts, _, bootstrap = random_rollout(seed)
    expected = slow_discounted_returns(rewards.numpy(), discounts.numpy(), bootstrap.numpy())
    np.testing.assert_allclose(discounted_returns(rewards, discounts, bootstrap), expected, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lambda_", [0.0, 0.5, 0.95, 1.0])
def test_gae_equals_the_weighted_mean_of_n_step_advantages(seed, lambda_):
    rewards, discounts, values, bootstrap = random_rollout(seed)
    expected = slow_generalized_advantages(
        rewards.numpy(), discounts.numpy(), values.numpy(), bootstrap.numpy(), lambda_
    )
    fast = generalized_advantages(rewards, discounts, values, bootstrap, lambda_)
    np.testing.assert_allclose(fast, expected, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lambda_", [0.0, 0.65, 1.0])
def test_q_lambda_equals_the_weighted_mean_of_n_step_targets(seed, lambda_):
    rewards, discounts, max_q, _ = random_rollout(seed)
    expected = slow_q_lambda_returns(rewards.numpy(), discounts.numpy(), max_q.numpy(), lambda_)
    np.testing.assert_allclose(q_lambda_returns(rewards, discounts, max_q, lambda_), expected, atol=1e-5)


def test_gae_with_lambda_one_is_the_discounted_return_minus_the_value():
    rewards, discounts, values, bootstrap = random_rollout(7)
    advantages = generalized_advantages(rewards, discounts, values, bootstrap, 1.0)
    torch.testing.assert_close(advantages, discounted_returns(rewards, discounts, bootstrap) - values)


def test_gae_with_lambda_zero_is_the_temporal_difference():
    rewards, discounts, values, bootstrap = random_rollout(8)
    following = torch.cat([values[1:], bootstrap[None]])
    advantages = generalized_advantages(rewards, discounts, values, bootstrap, 0.0)
    torch.testing.assert_close(advantages, rewards + discounts * following - values)


def test_gae_worked_by_hand():
    # r = 1, 0; gamma 0.5, lambda 0.5; V = 2, 4; V(x_2) = 8. deltas: 1 + 0.5*4 - 2 = 1, 0 + 0.5*8 - 4 = 0.
    advantages = generalized_advantages(
        torch.tensor([[1.0], [0.0]]),
        torch.full((2, 1), 0.5),
        torch.tensor([[2.0], [4.0]]),
        torch.tensor([8.0]),
        0.5,
    )
    assert advantages.flatten().tolist() == [1.0, 0.0]


def test_nothing_flows_back_across_the_end_of_an_episode():
    rewards, discounts, values, bootstrap = random_rollout(9)
    discounts[4] = 0
    before = generalized_advantages(rewards, discounts, values, bootstrap, 0.95)
    rewards[5:] += 100
    after = generalized_advantages(rewards, discounts, values, bootstrap, 0.95)
    torch.testing.assert_close(before[:5], after[:5])
    assert (before[5:] != after[5:]).all()


def test_point_discounts_cut_at_every_reward():
    batch = empty_batch(4, 1, (1,), torch.float32)
    rewards = batch.rewards = torch.tensor([[0.0], [-1.0], [0.0], [1.0]])
    assert batch.discounts(0.5).flatten().tolist() == [0.5] * 4
    discounts = batch.discounts(0.5, reset_at_points=True)
    assert discounts.flatten().tolist() == [0.5, 0.0, 0.5, 0.0]
    returns = discounted_returns(rewards, discounts, torch.zeros(1))
    assert returns.flatten().tolist() == [-0.5, -1.0, 0.5, 1.0]
