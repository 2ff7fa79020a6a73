"""Staggered unrolls: each has the right steps of the right environments and the right policies."""

import pytest
import torch
from test_sources import assert_same_batches, build

from parcade.experience.batch import STEP_FIELDS
from parcade.experience.device_group import DeviceRollout
from parcade.experience.rollout import play_rollout
from parcade.model.policy import NetworkConfig
from parcade.testing import TensorEnv

pytestmark = pytest.mark.quick


def staggered(game="tiny_catch", num_groups=3, unroll_length=6, **hyper):
    """Return an algorithm, exchange and source with two environments in each group."""
    sizes = {"num_envs": 2 * num_groups, "num_groups": num_groups, "unroll_length": unroll_length}
    return build(game, "vtrace", **sizes, **hyper)


@pytest.mark.parametrize(("groups", "apart"), [(3, 2), (2, 4), (4, 1)])
def test_unrolls_are_windows_of_one_long_rollout(groups, apart):
    """With a constant policy, the staggered batches are slices of the rollout that plain A2C plays."""
    length, turns = groups * apart, groups + 2  # the first groups end two unrolls
    policy, _, source = staggered(num_groups=groups, unroll_length=length)
    _, _, plain = build("tiny_catch", "a2c", num_envs=2 * groups, unroll_length=length + apart * (turns - 1))
    plain.publish(policy.policy)
    whole = plain.next_batch()
    for turn in range(turns):
        batch = source.next_batch()
        group = turn % groups
        columns = slice(2 * group, 2 * group + 2)
        for name in STEP_FIELDS:
            expected = getattr(whole, name)[apart * turn : apart * turn + length, columns]
            assert torch.equal(getattr(batch, name), expected), (turn, name)
    assert torch.equal(batch.bootstrap_observations, whole.bootstrap_observations[columns])


def test_truncated_steps_are_found_where_they_are_in_the_unroll():
    _, _, source = staggered("tiny_forever")
    for turn in range(6):
        batch = source.next_batch()
        first = 2 * turn  # the unroll is steps first .. first + 5, and every tenth step is truncated
        expected = [[9 - first, 0], [9 - first, 1]] if first <= 9 < first + 6 else []
        assert batch.truncated_at.tolist() == expected
        assert batch.truncated.nonzero().tolist() == expected
        assert len(batch.truncated_observations) == len(expected)


def test_an_unroll_says_how_old_each_of_its_steps_is():
    algorithm, exchange, source = staggered(learning_rate=1e-3)
    for _ in range(5):
        batch = source.next_batch()
        algorithm.update(batch, exchange, 0.0)
        source.publish(algorithm.policy)
    # The fifth unroll is steps 8-13, two by each of the policies 2, 3 and 4.
    assert batch.policy_version[:, 0].tolist() == [2, 2, 3, 3, 4, 4]


def test_a_source_goes_on_from_its_state_with_the_same_batches():
    made, _, source = staggered("tiny_forever")
    _, _, other = staggered("tiny_forever")
    for _ in range(4):
        source.next_batch()
    state = source.get_state()
    other.publish(made.policy)
    other.set_state(
        {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
    )
    for _ in range(4):
        assert_same_batches(source.next_batch(), other.next_batch())


@pytest.mark.parametrize("game", ["tiny_catch", "tiny_forever", "tiny_memory"])
def test_a_rollout_on_the_device_is_the_rollout_on_the_host(game):
    network = NetworkConfig(network="mlp", hidden=16, lstm=8)
    made, _, source = build(game, "a2c", num_envs=4, unroll_length=8, network=network)
    group = TensorEnv.group_like(source.groups[0])
    group.start(made.policy)
    for _ in range(3):
        expected, got = source.next_batch(), play_rollout(group, made.policy, 8)
        assert_same_batches(expected, got)
    host = source.groups[0]
    assert (host.frames, host.reset_frames, host.steps) == (group.frames, group.reset_frames, group.steps)
    first, second = (log.take_new() for log in (host.log, group.log))
    assert (first == second).all() and first.shape == second.shape


def test_nothing_is_read_back_within_a_rollout_on_the_device():
    """Tensors on torch's meta device have no values, so any read by the host would raise."""
    made, _, source = build("tiny_catch", "a2c", num_envs=4, unroll_length=8)
    group = TensorEnv.group_like(source.groups[0], device="meta")
    policy = made.policy.to("meta")
    group.start(policy)
    rollout = DeviceRollout(group, 8)
    rollout.play_rows(range(8), group, policy)
    assert rollout.batch.actions.device.type == "meta"
    with pytest.raises((NotImplementedError, RuntimeError)):
        rollout.finish(group)  # the only place that reads


@pytest.mark.parametrize("algorithm", ["a2c", "ppo", "pqn", "vtrace"])
def test_an_update_reads_nothing_back_and_stays_on_its_device(algorithm):
    made, exchange, source = build("tiny_catch", algorithm, num_envs=20, unroll_length=10)
    batch = source.next_batch()
    for name, tensor in batch.tensors().items():
        setattr(batch, name, tensor.to("meta"))
    made.policy.to("meta")
    exchange.attach(made.policy, made.optimizer(), made.config.max_grad_norm)
    metrics = made.update(batch, exchange, 0.0)
    assert {value.device.type for name, value in metrics.items() if name.startswith("loss/")} == {"meta"}


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (
            "reinforce",
            {"num_envs": 4, "games_per_update": 8, "network": NetworkConfig(network="mlp", hidden=16)},
        ),
        ("es", {"population": 4}),
    ],
)
def test_games_played_on_the_host_are_learned_from_on_the_device(algorithm, settings):
    made, exchange, source = build("tiny_catch", algorithm, **settings)
    batch = source.next_batch()
    made.policy.to("meta")
    made.device = "meta"
    exchange.attach(made.policy, made.optimizer(), None)
    made.update(batch, exchange, 0.0)
    assert {parameter.device.type for parameter in made.policy.parameters()} == {"meta"}
    assert exchange.optimizer.state  # a step was taken
    assert len(source.next_batch().policy_version) > 0  # the playing copy stayed on the host
