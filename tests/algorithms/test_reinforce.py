"""REINFORCE's advantages and gradient against Karpathy's own arithmetic in numpy."""

import numpy as np
import pytest
import torch

from parcade.algorithms.base import AlgorithmContext
from parcade.algorithms.reinforce import Reinforce, ReinforceConfig
from parcade.errors import UsageError
from parcade.exchange.base import LocalExchange
from parcade.experience.batch import empty_batch
from parcade.machine.timing import Timer
from parcade.model.policy import NetworkConfig, Policy
from parcade.model.precision import Precision

pytestmark = pytest.mark.quick


def make(**config):
    torch.manual_seed(0)
    policy = Policy(
        (3,), np.float32, 2, NetworkConfig(network="karpathy_mlp", normalize_input=False), "actor_critic"
    )
    config = ReinforceConfig(**config)
    algorithm = Reinforce(AlgorithmContext(policy, Precision(), "cpu", torch.Generator()), config)
    exchange = LocalExchange(Timer())
    return algorithm, exchange


def test_a_reward_at_every_step_cancels_and_is_refused_with_what_helps():
    batch = games_batch()
    batch.rewards[:] = 1.0
    algorithm, exchange = make()
    exchange.attach(algorithm.policy, algorithm.optimizer(), None)
    with pytest.raises(UsageError, match="use --no-reset-at-points --standardize-over batch"):
        algorithm.update(batch, exchange, 0.0)
    helped, exchange = make(reset_at_points=False, standardize_over="batch")
    exchange.attach(helped.policy, helped.optimizer(), None)
    assert float(helped.update(batch, exchange, 0.0)["loss/policy"]) != 0.0
    batch.rewards[:] = 0.0  # an honest batch without any point
    exchange.attach(algorithm.policy, algorithm.optimizer(), None)
    exchange.updates = 0
    algorithm.update(batch, exchange, 0.0)


def test_equal_returns_within_every_episode_are_refused_only_if_each_is_standardised_alone():
    batch = games_batch()
    batch.rewards[:4] = 0.0  # a single point at the end of each episode
    batch.rewards[2, 1] = -1.0
    for reset_at_points in (True, False):
        refused, exchange = make(gamma=1.0, reset_at_points=reset_at_points)
        exchange.attach(refused.policy, refused.optimizer(), None)
        with pytest.raises(UsageError, match="steps of every episode have equal returns.*use --standardize"):
            refused.update(batch, exchange, 0.0)
    # Every point was lost: another batch may hold a point that was won.
    by_chance, exchange = make(gamma=1.0, standardize_over="batch")
    exchange.attach(by_chance.policy, by_chance.optimizer(), None)
    assert float(by_chance.update(batch, exchange, 0.0)["loss/policy"]) == 0.0


@pytest.mark.parametrize("reward", [0.1, -16.3])
def test_equal_returns_that_are_no_sums_of_powers_of_two_cancel_too(reward):
    """Their mean in float32 is none of them; the difference, divided by no deviation, was a signal."""
    batch = empty_batch(1000, 2, (3,), torch.float32)
    batch.rewards[:] = reward
    batch.mask[700:, 1] = False
    algorithm, exchange = make()
    exchange.attach(algorithm.policy, algorithm.optimizer(), None)
    assert not algorithm._advantages(batch, exchange)[batch.mask].any()
    with pytest.raises(UsageError, match="use --no-reset-at-points --standardize-over batch"):
        algorithm.update(batch, exchange, 0.0)


def games_batch():
    """Two episodes of 5 and 3 steps with points in between, padded to 5."""
    batch = empty_batch(5, 2, (3,), torch.float32)
    batch.observations.normal_(generator=torch.Generator().manual_seed(1))
    batch.actions[:] = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0], [1, 0]])
    batch.rewards[:, 0] = torch.tensor([0.0, 1.0, 0.0, 0.0, -1.0])
    batch.rewards[:3, 1] = torch.tensor([0.0, 0.0, -1.0])
    batch.terminated[4, 0] = batch.terminated[2, 1] = True
    batch.mask[3:, 1] = False
    return batch


def karpathy_returns(rewards, gamma):
    """His loop: a running sum that is reset at every point."""
    out, running = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        if rewards[t] != 0:
            running = 0.0
        running = running * gamma + rewards[t]
        out[t] = running
    return (out - out.mean()) / out.std()


def test_advantages_equal_karpathys_for_every_game():
    algorithm, exchange = make()
    batch = games_batch()
    advantages = algorithm._advantages(batch, exchange)
    np.testing.assert_allclose(
        advantages[:, 0], karpathy_returns(batch.rewards[:, 0].numpy(), 0.99), atol=1e-5
    )
    np.testing.assert_allclose(
        advantages[:3, 1], karpathy_returns(batch.rewards[:3, 1].numpy(), 0.99), atol=1e-5
    )


def test_the_gradient_does_not_depend_on_the_chunks_or_the_padding():
    gradients = []
    for chunk in (2, 100):
        algorithm, exchange = make(chunk_steps=chunk)
        exchange.attach(algorithm.policy, lambda parameters: torch.optim.SGD(parameters, 1.0), None)
        before = exchange.parameters.data.detach().clone()
        batch = games_batch()
        if chunk == 2:
            batch.observations[3:, 1] = 1e6  # padding must not matter
        algorithm.update(batch, exchange, 0.0)
        gradients.append(before - exchange.parameters.data.detach())
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0].abs().sum() > 0
