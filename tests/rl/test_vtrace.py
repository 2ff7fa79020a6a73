"""V-trace against its sum (equation 1 of the paper), against hand-computed values and special cases."""

import numpy as np
import pytest
import torch

from parcade.rl.returns import discounted_returns, generalized_advantages
from parcade.rl.vtrace import vtrace_returns
from parcade.testing import slow_vtrace_targets

pytestmark = pytest.mark.quick


def random_unroll(seed, T=9, B=4):
    g = torch.Generator().manual_seed(seed)
    log_ratios = torch.randn(T, B, generator=g)
    rewards = torch.randn(T, B, generator=g)
    discounts = 0.97 * (torch.rand(T, B, generator=g) > 0.2).float()
    values = torch.randn(T, B, generator=g)
    return log_ratios, rewards, discounts, values, torch.randn(B, generator=g)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("lambda_", "rho_clip", "c_clip"), [(1.0, 1.0, 1.0), (0.9, 2.0, 1.0), (0.5, 1.0, 0.7), (0.0, 3.0, 2.0)]
)
def test_vtrace_targets_equal_the_sum_of_the_paper(seed, lambda_, rho_clip, c_clip):
    unroll = random_unroll(seed)
    expected = slow_vtrace_targets(*(x.double().numpy() for x in unroll), lambda_, rho_clip, c_clip)
    fast = vtrace_returns(*unroll, lambda_=lambda_, rho_clip=rho_clip, c_clip=c_clip).targets
    np.testing.assert_allclose(fast, expected, atol=1e-4)


def test_vtrace_of_equal_policies_is_the_discounted_return():
    _, rewards, discounts, values, bootstrap = random_unroll(3)
    result = vtrace_returns(torch.zeros_like(rewards), rewards, discounts, values, bootstrap)
    returns = discounted_returns(rewards, discounts, bootstrap)
    torch.testing.assert_close(result.targets, returns)
    torch.testing.assert_close(result.advantages, returns - values)


@pytest.mark.parametrize("lambda_", [0.0, 0.95])
def test_vtrace_targets_of_equal_policies_are_those_of_gae(lambda_):
    _, rewards, discounts, values, bootstrap = random_unroll(4)
    result = vtrace_returns(torch.zeros_like(rewards), rewards, discounts, values, bootstrap, lambda_=lambda_)
    gae = generalized_advantages(rewards, discounts, values, bootstrap, lambda_)
    torch.testing.assert_close(result.targets, values + gae)


def test_vtrace_by_hand_on_two_steps():
    """Ratios 2 (clipped to 1) and 0.5; gamma 0.9; v_1 = 1 + 0.5 * (2 + 0.9 * 3 - 1), and v_0 follows."""
    columns = ([2.0, 0.5], [1.0, 2.0], [0.9, 0.9], [0.5, 1.0])
    ratios, rewards, discounts, values = (torch.tensor(column)[:, None] for column in columns)
    result = vtrace_returns(ratios.log(), rewards, discounts, values, torch.tensor([3.0]))
    v_1 = 1 + 0.5 * (2 + 0.9 * 3 - 1)
    v_0 = 0.5 + 1.0 * (1 + 0.9 * 1 - 0.5) + 0.9 * 1.0 * (v_1 - 1)
    np.testing.assert_allclose(result.targets[:, 0], [v_0, v_1], rtol=1e-6)
    np.testing.assert_allclose(
        result.advantages[:, 0], [1 + 0.9 * v_1 - 0.5, 0.5 * (2 + 0.9 * 3 - 1)], rtol=1e-6
    )


def test_an_action_the_target_policy_never_takes_stops_the_trace():
    log_ratios, rewards, discounts, values, bootstrap = random_unroll(6)
    log_ratios[4] = -1e9
    changed = rewards.clone()
    changed[5:] += 100.0
    first = vtrace_returns(log_ratios, rewards, discounts, values, bootstrap).targets[:5]
    second = vtrace_returns(log_ratios, changed, discounts, values, bootstrap).targets[:5]
    torch.testing.assert_close(first, second)
