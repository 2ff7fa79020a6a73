"""The device replay against a list of all steps and against the host replay, and without reading back."""

import numpy as np
import pytest
import torch
from test_replay import GAMMA, Player, assert_same_samples, assert_samples_are_of_the_list
from test_sources import build

from parcade.errors import UsageError
from parcade.experience.device_replay import DeviceReplay
from parcade.experience.replay import ReplaySettings
from parcade.experience.replay_source import ReplaySource
from parcade.testing import TensorEnv

pytestmark = pytest.mark.quick
LANES, CAPACITY = 3, 180


def filled(stack, n, *, alpha=0.0, blocks=60, device="cpu", **settings):
    player = Player(LANES, stack, seed=0)
    shape = (stack, 1, 1) if stack > 1 else (1,)
    settings = ReplaySettings(CAPACITY, n, GAMMA, stack, alpha, **settings)
    replay = DeviceReplay(settings, LANES, shape, torch.int32, device)
    for _ in range(blocks):
        replay.add(player.block(int(player.random.integers(1, 6))))
    return player, replay


def is_cut(steps, i, n):
    """Whether an episode is truncated within n steps from step i on, before it ends otherwise."""
    for _, _, _, end, _ in steps[i : i + n]:
        if end in ("cut", "over", "life"):
            return end == "cut"
    return False


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("blocks", [5, 60])
def test_every_transition_equals_that_of_a_list_of_all_steps(stack, n, blocks):
    player, replay = filled(stack, n, blocks=blocks)
    assert_samples_are_of_the_list(player, replay, n)


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("blocks", [5, 60])
def test_what_can_be_sampled_is_every_step_in_memory_that_leads_somewhere(stack, blocks):
    n = 3
    player, replay = filled(stack, n, blocks=blocks)
    played = len(player.history[0])
    first = max(0, played - replay.length) + stack - 1
    expected = {
        steps[i][0][-1]
        for steps in player.history
        for i in range(first, played - n)
        if not is_cut(steps, i, n)
    }
    lanes, slots = (replay.priorities > 0).nonzero(as_tuple=True)
    found = replay.frames[lanes, slots].flatten().tolist()
    assert len(found) == len(expected) and set(found) == expected
    assert len(replay) == LANES * (played - n - first)


def test_uniform_sampling_finds_every_transition_equally_often():
    _, replay = filled(4, 3)
    there = int((replay.priorities > 0).sum())
    batch = replay.sample(np.random.default_rng(0).random(200 * there))
    counts = batch.indices.unique(return_counts=True)[1]
    assert len(counts) == there and counts.min() > 120 and counts.max() < 290


def test_learned_priorities_change_what_is_sampled_and_stale_ones_do_not():
    player, replay = filled(1, 1, alpha=1.0)
    batch = replay.sample(np.random.default_rng(0).random(64))
    chosen = batch.indices[0]
    batch.priorities = torch.where(batch.indices == chosen, 1e9, 1e-3)
    replay.learned(batch)
    again = replay.sample(np.random.default_rng(1).random(64))
    assert (again.indices == chosen).all() and again.probabilities[0] == pytest.approx(1.0, abs=1e-3)
    for _ in range(60):
        replay.add(player.block(4))
    before = replay.priorities.clone()
    batch.priorities = torch.full((64,), 1e12)
    replay.learned(batch)
    assert torch.equal(replay.priorities, before)


def test_new_steps_take_the_largest_priority_where_errors_are_losses():
    player, replay = filled(1, 2, alpha=0.5, blocks=3, new_is_largest=True)
    assert set(replay.priorities.flatten().tolist()) == {0.0, 1.0}
    batch = replay.sample(np.random.default_rng(0).random(64))
    batch.priorities = torch.where(batch.indices == batch.indices[0], 9.0, 4.0)
    replay.learned(batch)
    assert replay.priorities.max().item() == pytest.approx(3, abs=1e-5)
    before = replay.priorities > 0
    replay.add(player.block(4))
    new = replay.priorities[(replay.priorities > 0) & ~before]
    assert len(new) and (new == replay.priorities.max()).all()


def test_a_restored_replay_samples_the_same():
    player, replay = filled(4, 3, alpha=0.6)
    other = DeviceReplay(replay.settings, LANES, (4, 1, 1), torch.int32, "cpu")
    other.set_state({name: value.numpy() for name, value in replay.get_state().items()})
    block = player.block(3)
    for each in (replay, other):
        each.add(block)
    assert_same_samples(replay, other)


def test_the_stated_bytes_are_what_a_replay_takes():
    replay = DeviceReplay(ReplaySettings(4096, 3, GAMMA, 4), 4, (4, 42, 42), torch.uint8, "cpu")
    held = sum(getattr(replay, name).nbytes for name in replay.NAMES)
    assert held + 8 * 4096 == 4096 * DeviceReplay.bytes_per_transition((4, 42, 42), np.uint8, 4)


@pytest.mark.parametrize("new_is_largest", [False, True])
def test_nothing_is_read_back(new_is_largest):
    """Tensors on torch's meta device have no values, so any read by the host would raise."""
    player = Player(LANES, 4, seed=0)
    settings = ReplaySettings(CAPACITY, 3, GAMMA, 4, 0.6, new_is_largest)
    replay = DeviceReplay(settings, LANES, (4, 1, 1), torch.int32, "meta")
    for _ in range(20):
        block = player.block(4)
        for name, tensor in block.tensors().items():
            setattr(block, name, tensor.to("meta"))
        replay.add(block)
    batch = replay.sample(np.zeros(8))
    batch.priorities = torch.ones(8, device="meta")
    replay.learned(batch)
    assert batch.observations.device.type == "meta" and batch.observations.shape == (8, 4, 1, 1)


def on_device(source, policy, **settings):
    """A source like ``source``, with its replay on a device."""
    group = TensorEnv.group_like(source.group)
    shape = group.env.env.single_observation_space.shape
    frames = torch.from_numpy(source.replay.frames[:0])
    return ReplaySource(
        group,
        DeviceReplay(source.replay.settings, len(group), shape, frames.dtype, "cpu"),
        policy,
        sample_key=int(source._sample_key[0]),
        saves_replay=True,
        **settings,
    )


def test_a_replay_whose_every_step_leads_into_a_truncation_is_refused():
    """Episodes of 10 steps, all truncated, hold no step that 10 steps follow."""
    hyper = {"num_envs": 4, "replay_capacity": 600, "learning_starts": 100}
    refused, _, source = build("tiny_forever", "dqn", **hyper, n_step=10)
    settings = {"unroll_length": 2, "batch_size": 16, "learning_starts": 100}
    with pytest.raises(UsageError, match="the replay holds 0 complete transitions .* smaller .* --n-step"):
        on_device(source, refused.policy, **settings).next_batch()
    learning, _, source = build("tiny_forever", "dqn", **hyper, n_step=9)
    assert on_device(source, learning.policy, **settings).next_batch().size >= 100


@pytest.mark.parametrize("game", ["tiny_catch", "tiny_memory"])
def test_dqn_on_a_device_learns_the_same_as_on_the_host(game):
    """Same episodes, same draws, same samples: after 60 updates the parameters are equal bit for bit."""
    hyper = {
        "num_envs": 4,
        "unroll_length": 2,
        "batch_size": 16,
        "learning_starts": 100,
        "replay_capacity": 600,
        "n_step": 2,
    }
    made, exchange, source = build(game, "dqn", **hyper)
    twin, twin_exchange, _ = build(game, "dqn", **hyper)
    its_twin = on_device(source, twin.policy, unroll_length=2, batch_size=16, learning_starts=100)
    for _ in range(60):
        for algorithm, its_exchange, its_source in (
            (made, exchange, source),
            (twin, twin_exchange, its_twin),
        ):
            batch = its_source.next_batch()
            algorithm.update(batch, its_exchange, 0.5)
            its_source.publish(algorithm.policy)
    assert exchange.updates == twin_exchange.updates == 60
    assert torch.equal(exchange.parameters.data, twin_exchange.parameters.data)
