"""The diagonal Gaussian against torch.distributions."""

import pytest
import torch
from torch.distributions import Independent, Normal

from parcade.rl.gaussian import gaussian_entropy, gaussian_log_prob, gaussian_sample

pytestmark = pytest.mark.quick


def scores_and_oracle(*shape, seed=0):
    mean, log_deviation = torch.randn(2, *shape, generator=torch.Generator().manual_seed(seed))
    return torch.cat([mean, log_deviation], -1), Independent(Normal(mean, log_deviation.exp()), 1)


@pytest.mark.parametrize("shape", [(1,), (4, 3), (2, 5, 6)])
def test_log_prob_and_entropy_equal_those_of_torch(shape):
    scores, oracle = scores_and_oracle(*shape)
    actions = 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(gaussian_log_prob(scores, actions), oracle.log_prob(actions))
    torch.testing.assert_close(gaussian_entropy(scores), oracle.entropy())


def test_gradients_equal_those_of_torch():
    scores = torch.randn(7, 4, generator=torch.Generator().manual_seed(2))
    actions = torch.randn(7, 2, generator=torch.Generator().manual_seed(3))
    ours, theirs = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    (gaussian_log_prob(ours, actions) + gaussian_entropy(ours)).sum().backward()
    oracle = Independent(Normal(theirs[:, :2], theirs[:, 2:].exp()), 1)
    (oracle.log_prob(actions) + oracle.entropy()).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_sample_is_the_quantile_that_torch_gives():
    scores, oracle = scores_and_oracle(50, 3)
    uniforms = torch.rand(50, 3, generator=torch.Generator().manual_seed(4)).clamp(0.01, 0.99)
    expected = oracle.base_dist.icdf(uniforms)
    torch.testing.assert_close(gaussian_sample(scores, uniforms), expected, rtol=1e-4, atol=1e-4)


def test_samples_of_the_smallest_and_largest_noise_are_finite():
    drawn = gaussian_sample(torch.zeros(2, 2), torch.tensor([[0.0], [1.0]]))
    assert drawn.flatten().tolist() == pytest.approx([-5.29, 5.29], abs=0.01)
