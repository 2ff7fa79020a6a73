"""DQN: its target network, importance weights over ranks, and C51 in bfloat16."""

import dataclasses

import numpy as np
import pytest
import torch

from parcade.algorithms.base import AlgorithmContext, TargetNetwork
from parcade.algorithms.dqn import DQN, DQNConfig
from parcade.algorithms.table import ALGORITHMS
from parcade.build.learner import make_algorithm
from parcade.config import RunConfig, TrainConfig
from parcade.exchange.base import LocalExchange
from parcade.experience.replay import TransitionBatch
from parcade.machine.timing import Timer
from parcade.model.policy import NetworkConfig, Policy
from parcade.model.precision import Precision
from parcade.rl.q_learning import distribution_of

pytestmark = pytest.mark.quick
SIZES = {"network": "mlp", "hidden": 16, "normalize_input": False}


def make_dqn(precision="float32", network=SIZES, **hyper):
    """A DQN whose weights are always the same."""
    torch.manual_seed(0)
    config = DQNConfig(network=NetworkConfig(**network), max_grad_norm=None, **hyper)
    policy = Policy((4,), np.float32, 3, config.network, "q")
    return DQN(AlgorithmContext(policy, Precision(precision), "cpu", torch.Generator()), config)


def transitions(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(n, generator=generator, dtype=torch.float64) + 0.01
    return TransitionBatch(
        observations=torch.randn(n, 4, generator=generator),
        next_observations=torch.randn(n, 4, generator=generator),
        actions=torch.randint(3, (n,), generator=generator),
        returns=torch.randn(n, generator=generator),
        discounts=torch.full((n,), 0.97),
        probabilities=probabilities / probabilities.sum(),
        size=1000,
        indices=None,
        stamps=None,
        policy_version=torch.zeros(n, dtype=torch.int64),
    )


def part(batch, rows):
    return TransitionBatch(
        **{name: v[rows] if isinstance(v, torch.Tensor) else v for name, v in vars(batch).items()}
    )


class Rank(LocalExchange):
    """Rank ``rank`` of two that computes alone: ``sums`` are what all ranks would sum, call by call."""

    world_size = 2

    def __init__(self, rank, sums=()):
        super().__init__(Timer())
        self.rank, self.sums, self.given = rank, list(sums), []

    def sum(self, x):
        self.given.append(x.clone())
        return self.sums.pop(0) if self.sums else x


def learned(exchange, batch):
    """The parameters after an update of plain gradient descent."""
    dqn = make_dqn(priority_exponent=0.6, importance_exponent=0.8, learning_rate=1.0)
    exchange.attach(dqn.policy, lambda parameters: torch.optim.SGD(parameters, 1.0), None)
    dqn.update(batch, exchange, 0.0)
    return exchange.parameters.data.detach()


def test_ranks_that_share_a_prioritised_batch_learn_what_one_process_learns():
    whole = transitions(32)
    halves = [part(whole, slice(16)), part(whole, slice(16, None))]
    given = []
    for rank, half in enumerate(halves):
        learned(exchange := Rank(rank), half)
        given.append(exchange.given)
    sums = [sum(each) for each in zip(*given, strict=True)]
    ranks = [learned(Rank(rank, sums), half) for rank, half in enumerate(halves)]
    torch.testing.assert_close((ranks[0] + ranks[1]) / 2, learned(LocalExchange(Timer()), whole))


def test_the_largest_weight_may_be_that_of_another_shard():
    batch = transitions(16)
    lowest = batch.probabilities.min()
    here, elsewhere = (
        learned(LocalExchange(Timer()), dataclasses.replace(batch, lowest_probability=p))
        for p in (lowest, lowest / 2)
    )
    before = torch.cat([p.detach().flatten() for p in make_dqn().policy.parameters()])
    torch.testing.assert_close(here, learned(LocalExchange(Timer()), batch))
    # Half the probability gives a weight 2^0.8 times as large, by which all others are divided.
    torch.testing.assert_close((elsewhere - before) * 2**0.8, here - before)


@pytest.mark.parametrize("algorithm", ["dqn", "async-q"])
def test_every_rank_begins_with_the_target_network_of_rank_0(algorithm):
    """The initial weights of another CPU may differ in their last bits."""

    class Receiving(LocalExchange):
        def broadcast(self, x):
            return x.fill_(0.5)

    hyper = ALGORITHMS[algorithm].config()
    config = TrainConfig("tiny_catch", RunConfig(algorithm=algorithm, engine="serial"), hyper=hyper)
    made = make_algorithm(config, Receiving(Timer()))
    made.target.follow(made.policy, 0)
    assert all((parameter == 0.5).all() for parameter in made.target.network.parameters())


def test_the_target_network_follows_a_server_that_rolled_back():
    policy = make_dqn().policy
    target = TargetNetwork(policy, 10)

    def copied(version):
        policy.version.fill_(version)
        target.follow(policy, version)
        return int(target.network.version)

    assert [copied(version) for version in (0, 9, 10, 19, 20, 21)] == [0, 0, 10, 10, 20, 20]
    assert [copied(version) for version in (4, 5, 13, 14)] == [4, 4, 4, 14]


def test_the_target_network_of_a_learner_that_joins_late_is_a_copy_of_what_it_received():
    policy = make_dqn().policy
    target = TargetNetwork(policy, 10)
    policy.version.fill_(7)  # and the weights, from the server
    target.follow(policy, 7)
    assert int(target.network.version) == 7


def test_c51_in_bfloat16_selects_the_actions_of_its_float32_values():
    network = SIZES | {"value_head": "c51"}
    dqn = make_dqn("bfloat16", network, double=False)
    batch = transitions(2000)
    following, head = batch.next_observations[None], dqn.policy.value_head
    with torch.no_grad():
        with dqn.precision.autocast():
            z = dqn.target.network.distributions(following)[0]
        best = (z.double().softmax(-1) @ head.support.double()).argmax(-1)
        expected = head.targets(batch.returns, batch.discounts, distribution_of(z, best))
    torch.testing.assert_close(dqn._targets(following, batch.returns, batch.discounts), expected)
