"""The parameter server: shards against one optimiser, its guards, and a ledger of every push."""

import numpy as np
import pytest
import torch

from parcade.exchange.parameter_server import (
    APPLIED,
    LOSS_MEMORY,
    LOST,
    OUTCOMES,
    OUTLIER,
    STALE,
    ParameterServerExchange,
    ParameterShard,
    Push,
    ServerLost,
    slice_bounds,
)
from parcade.machine.timing import Timer
from parcade.model.networks import NetworkConfig
from parcade.model.policy import Policy
from parcade.topology.engine import PartLost

pytestmark = pytest.mark.quick
P = 103


def optimizers():
    return {
        "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, 1e-2, alpha=0.99, eps=1e-5),
        "adam": lambda parameters: torch.optim.Adam(parameters, 1e-2, eps=1e-5),
    }


def server(count, optimizer="adam", max_staleness=10, outlier_deviations=4.0):
    start = torch.linspace(-1, 1, P)
    bounds = slice_bounds(P, count)
    shards = [
        ParameterShard(
            start[bounds[k] : bounds[k + 1]],
            optimizers()[optimizer],
            max_staleness=max_staleness,
            outlier_deviations=outlier_deviations,
        )
        for k in range(count)
    ]
    for shard in shards:
        shard.begin(0)
    return shards


def push(shard, number, gradient=None, *, learner=0, life=1, version=None, loss=1.0, epoch=0):
    gradient = np.ones(len(shard.parameters), np.float32) if gradient is None else gradient
    version = shard.version if version is None else version
    return shard.push(Push(learner, life, number, epoch, version, 1e-2, loss), gradient)


def balances(shard):
    return shard.pushed == shard.ledger.sum()


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_shards_give_the_bits_of_one_local_optimizer(optimizer, count):
    shards, bounds = server(count, optimizer), slice_bounds(P, count)
    local = torch.nn.Parameter(torch.linspace(-1, 1, P))
    local.grad = torch.zeros(P)
    expected = optimizers()[optimizer]([local])
    generator = torch.Generator().manual_seed(0)
    for number in range(1, 30):
        gradient = torch.randn(P, generator=generator)
        local.grad.copy_(gradient)
        expected.step()
        parts = [
            push(s, number, gradient.numpy()[bounds[k] : bounds[k + 1]])[1] for k, s in enumerate(shards)
        ]
        assert np.array_equal(np.concatenate(parts), local.detach().numpy())


def test_the_slices_cover_the_vector():
    for size, count in ((10, 3), (7, 7), (1_000_003, 16)):
        bounds = slice_bounds(size, count)
        assert bounds[0] == 0 and bounds[-1] == size and (np.diff(bounds) >= size // count).all()


def test_a_gradient_too_old_is_dropped_and_counted():
    (shard,) = server(1, max_staleness=2)
    for number in range(1, 4):
        push(shard, number)
    before = shard.parameters.detach().clone()
    push(shard, 1, learner=1, version=0)
    assert torch.equal(shard.parameters, before) and shard.version == 3
    push(shard, 2, learner=1, version=1)
    assert not torch.equal(shard.parameters, before)
    assert shard.ledger.tolist() == [4, 1, 0, 0] and balances(shard)


def test_a_gradient_of_outlying_loss_is_dropped_once_there_is_a_mean():
    (shard,) = server(1)
    random = np.random.default_rng(0)
    push(shard, 1, loss=50.0)  # the first losses of a run cannot be judged
    for number in range(2, 2 * LOSS_MEMORY):
        push(shard, number, loss=float(1 + 0.1 * random.normal()))
    before = shard.parameters.detach().clone()
    applied = shard.ledger[APPLIED]
    push(shard, 2 * LOSS_MEMORY, loss=1000.0)
    push(shard, 2 * LOSS_MEMORY + 1, loss=float("nan"))
    assert (
        torch.equal(shard.parameters, before)
        and shard.ledger[OUTLIER] == 2
        and shard.ledger[APPLIED] == applied
    )
    push(shard, 2 * LOSS_MEMORY + 2, loss=1.1)
    assert shard.ledger[APPLIED] == applied + 1 and balances(shard)


def test_a_loss_that_stays_high_becomes_the_mean():
    (shard,) = server(1)
    for number in range(1, 201):
        push(shard, number, loss=1 + number % 2 * 0.1)
    for number in range(201, 601):
        push(shard, number, loss=30 + number % 2 * 0.1)
    push(shard, 601, loss=30.0)
    assert shard.ledger[OUTLIER] < 60 and shard.ledger[APPLIED] > 540 and balances(shard)


def test_equal_losses_have_no_outlier_and_the_moments_of_the_first_ones_are_their_means():
    (shard,) = server(1)
    for number in range(1, 2 * LOSS_MEMORY):
        push(shard, number, loss=2.0)
    push(shard, 2 * LOSS_MEMORY, loss=3.0)  # there is no deviation to compare it with
    assert shard.ledger[OUTLIER] == 0
    (shard,) = server(1)
    for number, loss in enumerate([1.0, -2.0, 6.0], start=1):
        push(shard, number, loss=loss)
    assert shard.loss_moments == pytest.approx([3, (1 + 2 + 6) / 3, (1 + 4 + 36) / 3])


def test_the_moments_of_learners_are_added():
    (shard,) = server(1)
    assert shard.merge_moments(None)[1] is None
    first, second = np.array([4.0, 1.0, 2.0]), np.array([6.0, 3.0, 5.0])
    assert shard.merge_moments(first)[1].tolist() == [4.0, 1.0, 2.0]
    assert shard.merge_moments(second)[1].tolist() == [10.0, 4.0, 7.0]
    assert shard.merge_moments(None)[1].tolist() == [10.0, 4.0, 7.0]
    assert first.tolist() == [4.0, 1.0, 2.0]  # the caller's array stays


def test_parameters_are_pulled_in_the_shards_epoch_only():
    (shard,) = server(1)
    push(shard, 1)
    note, pulled = shard.pull(0)
    assert np.array_equal(pulled, shard.parameters.detach().numpy()) and note["version"] == 1
    shard.begin(1)
    note, pulled = shard.pull(0)
    assert pulled is None and note == {"epoch": 1, "version": 1}


def test_pushes_lost_on_the_way_are_seen_from_the_numbers():
    (shard,) = server(1)
    for number in (1, 2, 5):
        push(shard, number)
    push(shard, 1, learner=0, life=2)
    shard.settle(0, 2, 4)
    shard.settle(0, 1, 5)
    assert shard.ledger[LOST] == 2 + 3 and shard.pushed == 9 and balances(shard)


def test_what_going_back_to_a_snapshot_undoes_is_lost():
    shards = server(2)
    for number in range(1, 4):
        for shard in shards:
            push(shard, number)
    snapshots = [shard.get_state()[1] for shard in shards]
    kept = [shard.parameters.detach().clone() for shard in shards]
    for number in range(4, 9):
        for shard in shards:
            push(shard, number)
    for shard, snapshot in zip(shards, snapshots, strict=True):
        shard.begin(1, snapshot)
    for shard, parameters in zip(shards, kept, strict=True):
        assert shard.version == 3 and torch.equal(shard.parameters, parameters)
        note, data = push(shard, 9, epoch=0)
        # pushed before it heard of the new epoch
        assert data is None and note["epoch"] == 1 and shard.version == 3
        push(shard, 10, epoch=1)
        assert shard.ledger.tolist() == [4, 0, 0, 6] and shard.pushed == 10 and balances(shard)


def test_a_restarted_shard_refuses_requests_until_it_is_begun():
    (other,) = server(1)
    shard = ParameterShard(torch.zeros(P), optimizers()["adam"], max_staleness=1, outlier_deviations=1)
    note, data = push(shard, 1)
    assert data is None and note["epoch"] == -1
    for number in range(1, 6):
        push(other, number)
    shard.begin(0, other.get_state()[1])
    a, b = push(shard, 6)[1], push(other, 6)[1]
    assert np.array_equal(a, b), "the snapshot includes the optimiser's state"


def test_stale_outlier_and_lost_together_balance():
    (shard,) = server(1, max_staleness=1)
    random = np.random.default_rng(3)
    numbers = dict.fromkeys(range(4), 0)
    for _ in range(2000):
        learner = int(random.integers(4))
        numbers[learner] += int(random.integers(1, 3))
        loss = 1e6 if random.random() < 0.02 else float(random.random())
        push(
            shard,
            numbers[learner],
            learner=learner,
            version=max(0, shard.version - int(random.integers(4))),
            loss=loss,
        )
    assert shard.pushed == sum(numbers.values()) and balances(shard)
    assert (shard.ledger[[APPLIED, STALE, OUTLIER, LOST]] > 0).all()


def test_parameters_that_die_with_their_node_after_the_note_are_a_lost_server():
    class Call:
        data = object()

        def note(self):
            return {"epoch": 0, "version": 0, "pushed": 0, "ledger": [0] * len(OUTCOMES)}

    class Shard:
        def start(self, method, *arguments):
            return Call()

    def fetch(data):
        raise PartLost("shard 0", "ObjectLostError")

    policy = Policy((4,), np.float32, 2, NetworkConfig(network="mlp", hidden=8), "actor_critic")
    exchange = ParameterServerExchange(Timer(), num_shards=1, fetch=fetch, index=0, count=1)
    exchange.attach(policy, lambda parameters: torch.optim.Adam(parameters), None)
    exchange.shards = [Shard()]
    with pytest.raises(ServerLost, match="ObjectLostError"):
        exchange.begin(1, 0, 0)
