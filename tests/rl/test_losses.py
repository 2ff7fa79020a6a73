"""Losses against hand-computed values and against automatic differentiation."""

import math

import pytest
import torch

from parcade.rl import losses
from parcade.rl.schedules import linear

pytestmark = pytest.mark.quick


def test_entropy_of_a_uniform_policy_is_log_of_the_number_of_actions():
    assert losses.entropy_of(torch.zeros(3, 6)).tolist() == pytest.approx([math.log(6)] * 3)


def test_log_prob_of_equals_the_log_of_the_softmax():
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    assert losses.log_prob_of(logits, torch.tensor([2])).item() == pytest.approx(
        math.log(logits.softmax(-1)[0, 2])
    )


def test_clipped_surrogate_by_hand():
    # ratios 1.5, 0.5, 1.5, 0.5 with clip 0.2; advantages 1, 1, -1, -1: min terms 1.2, 0.5, -1.5, -0.8
    log_ratio = torch.tensor([1.5, 0.5, 1.5, 0.5]).log()
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss = losses.clipped_surrogate_loss(log_ratio, torch.zeros(4), advantages, 0.2)
    assert loss.item() == pytest.approx(-(1.2 + 0.5 - 1.5 - 0.8) / 4)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_beyond_the_numbers_of_float32_has_finite_gradients(advantage):
    log_prob = torch.tensor([90.0, 0.1], requires_grad=True)
    behaviour, advantages = torch.zeros(2), torch.tensor([advantage, 1.0])
    loss = losses.clipped_surrogate_loss(log_prob, behaviour, advantages, 0.2)
    (gradient,) = torch.autograd.grad(loss, log_prob)
    assert loss.isfinite() and gradient.isfinite().all()
    assert gradient[1].item() == pytest.approx(-0.5 * math.exp(0.1))
    assert losses.approximate_kl(log_prob, behaviour).isfinite()


def test_clipped_surrogate_has_the_policy_gradient_where_the_policies_agree():
    logits = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    actions, advantages = torch.arange(8) % 3, torch.linspace(-1, 1, 8)
    log_prob = losses.log_prob_of(logits, actions)
    plain = torch.autograd.grad(losses.policy_gradient_loss(log_prob, advantages), logits, retain_graph=True)[
        0
    ]
    clipped = losses.clipped_surrogate_loss(log_prob, log_prob.detach(), advantages, 0.2)
    torch.testing.assert_close(torch.autograd.grad(clipped, logits)[0], plain)


def test_no_gradient_reaches_targets_and_advantages():
    predictions, targets = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    losses.squared_error_loss(predictions, targets).backward()
    assert targets.grad is None and predictions.grad.tolist() == pytest.approx([2 / 3] * 3)


def test_kl_estimate_is_zero_for_equal_policies_and_positive_otherwise():
    a, b = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
    assert losses.approximate_kl(a, a).item() == 0
    assert losses.approximate_kl(a, b).item() > 0


@pytest.mark.parametrize(("progress", "value"), [(0.0, 1.0), (0.25, 0.55), (0.5, 0.1), (0.9, 0.1)])
def test_linear_schedule_falls_and_then_stays(progress, value):
    assert linear(1.0, 0.1, progress, until=0.5) == pytest.approx(value)


def test_linear_schedule_refuses_an_empty_span():
    with pytest.raises(ValueError, match="until=0"):
        linear(1.0, 0.0, 0.5, until=0)


def test_explained_variance_is_one_for_perfect_values_zero_for_a_constant_and_for_equal_targets():
    targets = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert losses.explained_variance(targets, targets) == 1
    assert losses.explained_variance(torch.full_like(targets, 9.0), targets) == 0
    assert losses.explained_variance(targets, torch.ones_like(targets)) == 0
    assert losses.explained_variance(-targets, targets) == pytest.approx(-3)  # Var[2 x] / Var[x] = 4


@pytest.mark.parametrize("reward", [0.1, -16.3, 1.0])
def test_targets_that_are_equal_but_for_rounding_leave_nothing_to_explain(reward):
    values = 3 * torch.randn(1000, generator=torch.Generator().manual_seed(0))
    rewards = torch.full((1000,), reward)
    assert losses.explained_variance(values, rewards) == 0
    assert losses.explained_variance(values, (rewards - values) + values) == 0  # gamma 0
    hardly_varying = rewards * (1 + 1e-3 * torch.randn(1000, generator=torch.Generator().manual_seed(1)))
    assert losses.explained_variance(hardly_varying, hardly_varying) == 1
