"""PPO's updates against eq. 7 and 9 of the paper, one step at a time, and its advantages over ranks."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from parcade.algorithms.base import AlgorithmContext, normalized
from parcade.algorithms.ppo import PPO, PPOConfig
from parcade.exchange.base import LocalExchange
from parcade.experience.batch import empty_batch
from parcade.machine.timing import Timer
from parcade.model.policy import NetworkConfig, Policy
from parcade.model.precision import Precision

pytestmark = pytest.mark.quick
T, B, RATE, MAX_NORM = 5, 3, 0.05, 0.4
FEED_FORWARD = NetworkConfig(network="mlp", hidden=8, normalize_input=False)
RECURRENT = dataclasses.replace(FEED_FORWARD, lstm=6)


def make_ppo(network, **hyper):
    torch.manual_seed(0)
    config = PPOConfig(network=network, learning_rate=RATE, max_grad_norm=MAX_NORM, **hyper)
    policy = Policy((4,), np.float32, 3, network, "actor_critic")
    with torch.no_grad():
        policy.actor.weight.mul_(50)
    return PPO(AlgorithmContext(policy, Precision(), "cpu", torch.Generator().manual_seed(7)), config)


def random_batch(policy):
    """A rollout whose behaviour policy and values are others than those that learn."""
    generator = torch.Generator().manual_seed(1)
    batch = empty_batch(T, B, (4,), torch.float32)
    batch.observations.normal_(generator=generator)
    batch.bootstrap_observations.normal_(generator=generator)
    batch.actions.copy_(torch.randint(3, (T, B), generator=generator))
    batch.behaviour_log_prob.uniform_(-2.5, -0.2, generator=generator)
    for column in (batch.rewards, batch.behaviour_values):
        column.normal_(generator=generator)
    batch.terminated[1, 0] = batch.starts[2, 0] = True
    state = policy.initial_state(B)
    return dataclasses.replace(
        batch, initial_policy_state=None if state is None else state.normal_(generator=generator)
    )


def evaluated(policy, batch, b):
    """The policy's outputs for one environment, step by step."""
    state = batch.initial_policy_state
    state = None if state is None else state[:, b : b + 1]
    told = []
    for t in range(T):
        if batch.starts[t, b]:
            state = policy.initial_state(1)
        scores, value, state = policy(batch.observations[t : t + 1, b : b + 1], state)
        told.append((scores[0, 0].log_softmax(-1), value[0, 0]))
    return told


def slow_update(policy, batch, advantages, returns, config, generator):
    """Algorithm 1 of the paper, with plain gradient descent."""
    for _ in range(config.epochs):
        each = B if config.network.lstm else T * B
        for part in np.array_split(torch.randperm(each, generator=generator).numpy(), config.num_minibatches):
            steps = (
                [(t, b) for b in part for t in range(T)]
                if config.network.lstm
                else [divmod(i, B) for i in part]
            )
            told = {b: evaluated(policy, batch, b) for b in {b for _, b in steps}}
            loss = torch.zeros(())
            for t, b in steps:
                log_pi, value = told[b][t]
                ratio = (log_pi[batch.actions[t, b]] - batch.behaviour_log_prob[t, b]).exp()
                clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
                surrogate = torch.minimum(ratio * advantages[t, b], clipped * advantages[t, b])  # eq. 7
                entropy = -(log_pi.exp() * log_pi).sum()
                error = (value - returns[t, b]) ** 2
                loss = (
                    loss - surrogate + config.value_weight * error - config.entropy_weight * entropy
                )  # eq. 9
            gradients = torch.autograd.grad(loss / len(steps), list(policy.parameters()))
            norm = sum(gradient.square().sum() for gradient in gradients).sqrt()
            with torch.no_grad():
                for parameter, gradient in zip(policy.parameters(), gradients, strict=True):
                    parameter -= RATE * gradient * min(1.0, MAX_NORM / norm.item())


@pytest.mark.parametrize(("network", "num_minibatches"), [(FEED_FORWARD, 4), (RECURRENT, 2)])
def test_an_update_is_that_of_the_paper_with_minibatches_that_differ_by_one(network, num_minibatches):
    ppo = make_ppo(network, epochs=2, num_minibatches=num_minibatches)
    batch = random_batch(ppo.policy)
    slow = copy.deepcopy(ppo.policy)
    advantages, returns = ppo._targets(batch)
    standard = ((advantages - advantages.mean()) / advantages.std(correction=0)).numpy()
    slow_update(slow, batch, standard, returns, ppo.config, torch.Generator().manual_seed(7))
    exchange = LocalExchange(Timer())
    exchange.attach(ppo.policy, lambda parameters: torch.optim.SGD(parameters, 1.0), MAX_NORM)
    before = torch.cat([p.detach().flatten() for p in ppo.policy.parameters()])
    ppo.update(batch, exchange, 0.0)
    after, expected = (
        torch.cat([p.detach().flatten() for p in policy.parameters()]) for policy in (ppo.policy, slow)
    )
    assert exchange.updates == 2 * num_minibatches and (after - before).abs().max() > 0.01
    torch.testing.assert_close(after, expected, atol=2e-5, rtol=1e-4)


class Rank(LocalExchange):
    """A rank that computes alone; ``others`` are what the other ranks add to every sum."""

    def __init__(self, others):
        super().__init__(Timer())
        self.others = others

    def sum(self, x):
        return x.add_(self.others)


def test_advantages_are_normalised_over_the_steps_of_all_ranks():
    x = torch.randn(T, 2 * B, generator=torch.Generator().manual_seed(2)) * 3 + 5
    here, there = x[:, :B], x[:, B:].double()
    others = torch.stack([torch.tensor(float(T * B)), there.sum(), there.square().sum()])
    expected = normalized(x, LocalExchange(Timer()))
    assert abs(expected.mean()) < 1e-6 and expected.std(correction=0) == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(normalized(here, Rank(others)), expected[:, :B])


def test_the_advantage_of_a_single_step_is_not_normalised_away():
    """With one environment and unrolls of one step, nothing but the entropy bonus would move the policy."""
    alone = torch.full((1, 1), -0.25)
    assert normalized(alone, LocalExchange(Timer())).item() == pytest.approx(-0.25)
    others = torch.tensor([1.0, 0.75, 0.5625], dtype=torch.float64)
    assert normalized(alone, Rank(others)).item() == pytest.approx(-1.0)
