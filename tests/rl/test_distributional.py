"""Distributions of returns against slow references, cases worked by hand and their special cases."""

import numpy as np
import pytest
import torch

from parcade.rl.distributional import (
    atoms,
    cross_entropy,
    project,
    quantile_huber_loss,
    quantile_levels,
)

pytestmark = pytest.mark.quick


@pytest.fixture
def random(seed):
    return torch.Generator().manual_seed(seed)


def slow_projection(returns, discounts, probabilities, support):
    """Bellemare 2017, algorithm 1, one atom at a time: split each atom's mass between its two neighbours."""
    low, high, K = float(support[0]), float(support[-1]), len(support)
    spacing = (high - low) / (K - 1)
    projected = np.zeros((len(returns), K))
    for n in range(len(returns)):
        for j in range(K):
            moved = min(max(float(returns[n]) + float(discounts[n]) * float(support[j]), low), high)
            b = (moved - low) / spacing
            lower, upper = int(np.floor(b)), int(np.ceil(b))
            if lower == upper:
                projected[n, lower] += float(probabilities[n, j])
            else:
                projected[n, lower] += float(probabilities[n, j]) * (upper - b)
                projected[n, upper] += float(probabilities[n, j]) * (b - lower)
    return projected


def test_the_projection_equals_the_algorithm_of_the_paper(random):
    support = atoms(-2.0, 3.0, 11).double()
    returns = torch.randn(40, generator=random).double() * 2
    discounts = torch.rand(40, generator=random).double()
    probabilities = torch.randn(40, 11, generator=random).double().softmax(-1)
    fast = project(returns, discounts, probabilities, support)
    slow = slow_projection(returns, discounts, probabilities, support)
    np.testing.assert_allclose(fast.numpy(), slow, atol=1e-6)


def test_a_projection_keeps_the_mass_and_inside_the_support_the_mean(random):
    support = atoms(-10.0, 10.0, 21).double()
    returns = 10 * torch.rand(30, generator=random).double() - 5  # half of the support and these lie inside
    discounts = torch.full((30,), 0.5).double()
    probabilities = torch.randn(30, 21, generator=random).double().softmax(-1)
    projected = project(returns, discounts, probabilities, support)
    torch.testing.assert_close(projected.sum(-1), torch.ones(30).double())
    torch.testing.assert_close(projected @ support, returns + 0.5 * (probabilities @ support))


def test_after_the_end_of_an_episode_only_the_return_counts():
    support = atoms(0.0, 4.0, 5)
    projected = project(torch.tensor([1.25]), torch.tensor([0.0]), torch.full((1, 5), 0.2), support)
    torch.testing.assert_close(projected, torch.tensor([[0.0, 0.75, 0.25, 0.0, 0.0]]))


def test_the_cross_entropy_is_least_for_the_target_itself(random):
    target = torch.randn(8, 6, generator=random).softmax(-1)
    other = torch.randn(8, 6, generator=random)
    entropy = -(target * target.log()).sum(-1)
    torch.testing.assert_close(cross_entropy(target.log(), target), entropy)
    assert (cross_entropy(other, target) >= entropy).all()


def slow_quantile_loss(quantiles, targets, kappa):
    """Dabney 2018, eq. 9 and 10, one pair at a time."""
    total = 0.0
    K = len(quantiles)
    for i in range(K):
        level = (2 * (i + 1) - 1) / (2 * K)
        for target in targets:
            u = target - quantiles[i]
            huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
            total += abs(level - (u < 0)) * huber / kappa / len(targets)
    return total


def test_the_quantile_loss_equals_the_equations_of_the_paper(random):
    quantiles, targets = torch.randn(5, 7, generator=random) * 2, torch.randn(5, 4, generator=random) * 2
    for kappa in (0.5, 1.0):
        slow = [
            slow_quantile_loss(q.tolist(), t.tolist(), kappa) for q, t in zip(quantiles, targets, strict=True)
        ]
        torch.testing.assert_close(quantile_huber_loss(quantiles, targets, kappa), torch.tensor(slow))


def test_minimising_the_quantile_loss_finds_the_quantiles():
    samples = (torch.arange(4000)[None] + 0.5) / 4000
    quantiles = torch.zeros(1, 4, requires_grad=True)
    optimizer = torch.optim.Adam([quantiles], 0.02)
    for _ in range(400):
        optimizer.zero_grad()
        quantile_huber_loss(quantiles, samples, kappa=0.01).sum().backward()
        optimizer.step()
    torch.testing.assert_close(quantiles.detach()[0], quantile_levels(4), atol=0.01, rtol=0)


def test_quantile_levels_are_midpoints():
    assert quantile_levels(4).tolist() == [0.125, 0.375, 0.625, 0.875]
