"""The value of the observation after an unroll, with memory: from the state that the unroll ends with."""

import dataclasses

import pytest
import torch

from parcade.algorithms.a2c import A2C, A2CConfig
from parcade.algorithms.base import AlgorithmContext
from parcade.algorithms.vtrace import VTraceConfig, VTraceLearner
from parcade.experience.batch import Batch
from parcade.model.policy import NetworkConfig, Policy
from parcade.model.precision import Precision
from parcade.testing import slow_generalized_advantages, slow_vtrace_targets

pytestmark = pytest.mark.quick
T, B = 5, 3
NETWORK = NetworkConfig(network="mlp", hidden=8, lstm=6, normalize_input=False)


@pytest.fixture
def context():
    torch.manual_seed(0)
    policy = Policy((4,), "float32", 2, NETWORK, "actor_critic")
    return AlgorithmContext(policy, Precision(), "cpu", torch.Generator())


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    fields = dict.fromkeys(field.name for field in dataclasses.fields(Batch))
    return Batch(
        **fields
        | {
            "observations": torch.randn(T, B, 4, generator=generator),
            "starts": torch.rand(T, B, generator=generator) < 0.3,
            "actions": torch.randint(2, (T, B), generator=generator),
            "behaviour_log_prob": torch.full((T, B), 0.5).log(),
            "rewards": torch.randn(T, B, generator=generator),
            "initial_policy_state": torch.randn(2, B, 6, generator=generator),
            "bootstrap_observations": torch.randn(B, 4, generator=generator),
            "bootstrap_starts": torch.tensor([True, False, False]),
            "truncated_at": torch.zeros(0, 2, dtype=torch.int64),
        }
    )


@torch.no_grad()
def values_one_by_one(policy, batch):
    """V of T + 1 observations ``[T + 1, B]``, one step of one environment at a time."""
    observations = torch.cat([batch.observations, batch.bootstrap_observations[None]])
    starts = torch.cat([batch.starts, batch.bootstrap_starts[None]])
    values = torch.zeros(T + 1, B)
    for b in range(B):
        state = batch.initial_policy_state[:, b : b + 1]
        for t in range(T + 1):
            state = torch.zeros_like(state) if starts[t, b] else state
            _, value, state = policy(observations[t : t + 1, b : b + 1], state)
            values[t, b] = value
    return values


class LossOnly:
    """An exchange that computes the loss of an update and changes nothing."""

    def __init__(self, policy):
        self.optimizer = torch.optim.SGD(policy.parameters(), 0.1)

    def minimize(self, loss, *arguments):
        return loss(*arguments)[1]


def value_loss(learner, batch, monkeypatch):
    monkeypatch.setattr(Batch, "discounts", lambda self, *_: torch.full((T, B), 0.9))
    return learner.update(batch, LossOnly(learner.policy), 0.0)["loss/value"]


def test_bootstrap_and_next_values_equal_one_step_at_a_time(context, batch):
    learner = A2C(context, A2CConfig(network=NETWORK))
    expected = values_one_by_one(context.policy, batch)[-1]
    torch.testing.assert_close(learner.bootstrap(batch)[1], expected)
    state = context.policy(batch.observations, batch.initial_policy_state, batch.starts).state
    next_values = learner.next_values(state, batch.bootstrap_observations, batch.bootstrap_starts)
    torch.testing.assert_close(next_values, expected)
    assert not next_values.requires_grad


def test_a2c_with_memory_learns_from_the_value_after_the_rollout(context, batch, monkeypatch):
    learner = A2C(context, A2CConfig(network=NETWORK, gae_lambda=0.8))
    *values, v_T = values_one_by_one(context.policy, batch)
    values, discounts = torch.stack(values), torch.full((T, B), 0.9)
    advantages = torch.as_tensor(slow_generalized_advantages(batch.rewards, discounts, values, v_T, 0.8))
    loss = value_loss(learner, batch, monkeypatch)
    torch.testing.assert_close(loss, (advantages**2).mean().to(loss.dtype))


def test_vtrace_with_memory_learns_from_the_value_after_the_unroll(context, batch, monkeypatch):
    learner = VTraceLearner(context, VTraceConfig(network=NETWORK))
    *values, v_T = values_one_by_one(context.policy, batch)
    values, discounts = torch.stack(values), torch.full((T, B), 0.9)
    scores = context.policy(batch.observations, batch.initial_policy_state, batch.starts).scores.detach()
    log_prob = scores.log_softmax(-1).gather(-1, batch.actions[..., None]).squeeze(-1)
    log_ratios = log_prob - batch.behaviour_log_prob
    targets = slow_vtrace_targets(
        *(each.numpy() for each in (log_ratios, batch.rewards, discounts, values, v_T)), 1.0, 1.0, 1.0
    )
    loss = value_loss(learner, batch, monkeypatch)
    torch.testing.assert_close(loss, ((torch.as_tensor(targets) - values) ** 2).mean().to(loss.dtype))
