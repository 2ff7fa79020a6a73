"""Environments on the host with the network on a device give the batches of a group on the host."""

import dataclasses

import numpy as np
import pytest
import torch
from test_sources import SMALL, assert_same_batches

from parcade.algorithms.table import ALGORITHMS
from parcade.build.groups import check_threads_serve, gives_stacks, make_group, make_playing_group
from parcade.build.learner import make_algorithm
from parcade.build.source import make_source
from parcade.capture import Capture
from parcade.capture.stand_in import StandInGraphs
from parcade.config import RunConfig, TrainConfig
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError
from parcade.exchange.base import LocalExchange
from parcade.experience.batch import STEP_FIELDS, Batch
from parcade.experience.hybrid_group import HybridEnvGroup
from parcade.experience.rollout import play_rollout
from parcade.machine.devices import STAND_IN, Download
from parcade.machine.timing import Timer
from parcade.model.policy import NetworkConfig

LSTM = NetworkConfig(network="mlp", hidden=16, lstm=8)
SMALL_PICTURES = EnvSettings(image_height=42, image_width=42, frame_limit=120)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setenv(STAND_IN, "1")


def config_of(
    game, algorithm="ppo", *, device="cuda", env=None, network=SMALL, engine="local", overlap=False, **hyper
):
    run = RunConfig(algorithm=algorithm, device=device, engine=engine, overlap=overlap)
    return TrainConfig(
        game, run, env or EnvSettings(), ALGORITHMS[algorithm].config(network=network, **hyper)
    )


def source_of(config):
    timer = Timer()
    exchange = LocalExchange(timer)
    algorithm = make_algorithm(config, exchange)
    return (
        algorithm,
        exchange,
        make_source(config, algorithm, exchange, timer=timer, learner_timer=timer, threads=1),
    )


def arrays_of(state):
    return {
        name: value.clone().numpy() if isinstance(value, torch.Tensor) else np.array(value)
        for name, value in state.items()
    }


def kept(batch):
    return Batch.from_tensors({name: tensor.clone() for name, tensor in batch.tensors().items()})


def on_host_and_device(config, count, capture=None):
    """Two host groups with half of the environments each, a hybrid group with all of them, and the policy."""
    algorithm, _, source = source_of(config)
    source.close()
    half = count // 2
    hosts = [make_group(config, first, half, num_threads=1, timer=Timer()) for first in (0, half)]
    halves = [make_group(config, first, half, num_threads=1, timer=Timer()) for first in (0, half)]
    hybrid = HybridEnvGroup(
        halves, torch.device("cpu"), is_stack=gives_stacks(config), capture=capture or Capture()
    )
    for group in (*hosts, hybrid):
        group.start(algorithm.policy)
    return hosts, hybrid, algorithm.policy.eval()


CASES = [
    ("tiny_catch", SMALL, None),
    ("tiny_forever", SMALL, None),
    ("tiny_memory", LSTM, None),
    ("tiny_aim", SMALL, None),
    ("breakout", NetworkConfig(hidden=16), SMALL_PICTURES),
    (
        "breakout",
        NetworkConfig(hidden=16),
        dataclasses.replace(SMALL_PICTURES, sticky_actions=0.25, start_states="cached"),
    ),
    ("pong", NetworkConfig(hidden=16), dataclasses.replace(SMALL_PICTURES, frame_stack=1)),
    ("breakout", NetworkConfig(hidden=16), EnvSettings(observations="ram", frame_limit=120)),
    ("breakout", NetworkConfig(hidden=16), EnvSettings(observations="ram", frame_limit=120, frame_stack=1)),
    (
        "breakout",
        NetworkConfig(hidden=16),
        dataclasses.replace(SMALL_PICTURES, observations="rgb", frame_stack=2),
    ),
]


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(("game", "network", "env"), CASES)
def test_a_hybrid_rollout_is_the_rollout_of_its_halves_on_the_host(game, network, env, captured):
    """Stacks assembled from newest frames equal the environments' own, also across ends of episodes."""
    config = config_of(game, network=network, env=env, num_envs=4, unroll_length=12)
    hosts, hybrid, policy = on_host_and_device(config, 4, StandInGraphs() if captured else None)
    truncations = 0
    for _ in range(5):
        parts = [play_rollout(host, policy, 12) for host in hosts]
        got = play_rollout(hybrid, policy, 12)
        expected = Batch.side_by_side(parts)
        order = np.lexsort((expected.truncated_at[:, 1], expected.truncated_at[:, 0]))
        expected.truncated_at = expected.truncated_at[order]
        expected.truncated_observations = expected.truncated_observations[order]
        if expected.truncated_states is not None:
            expected.truncated_states = expected.truncated_states[:, order]
        assert_same_batches(expected, got)
        truncations += len(got.truncated_at)
    assert game != "breakout" or truncations > 0  # the frame limit truncates episodes within these rollouts
    assert hybrid.steps == sum(host.steps for host in hosts) and hybrid.frames == sum(
        host.frames for host in hosts
    )
    rows = [
        np.concatenate([log.take_new() for log in logs])
        for logs in (hybrid.logs, [host.log for host in hosts])
    ]
    assert np.array_equal(*rows)


def test_stacks_of_the_ale_backend_are_put_together_too():
    """Frames before an episode's first one are zeros in ale-py's environment as in the native one."""
    config = config_of(
        "pong", network=NetworkConfig(hidden=16), env=SMALL_PICTURES, num_envs=2, unroll_length=10
    )
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, backend="ale"))
    hosts, hybrid, policy = on_host_and_device(config, 2)
    for _ in range(4):
        expected = Batch.side_by_side([play_rollout(host, policy, 10) for host in hosts])
        got = play_rollout(hybrid, policy, 10)
        assert torch.equal(expected.observations, got.observations) and torch.equal(
            expected.starts, got.starts
        )
    assert got.observations.any()


@pytest.mark.parametrize(
    ("algorithm", "overlap", "hyper"),
    [
        ("ppo", False, {"num_envs": 4, "unroll_length": 8}),
        ("ppo", True, {"num_envs": 8, "unroll_length": 8}),
        ("ppo", True, {"num_envs": 6, "unroll_length": 8}),  # groups of an odd size are not split
        ("a2c", True, {"num_envs": 4, "network": LSTM}),
        ("pqn", True, {"num_envs": 4, "unroll_length": 8}),
        ("vtrace", False, {"num_envs": 6, "num_groups": 3, "unroll_length": 6}),
        ("dqn", False, {"num_envs": 2, "learning_starts": 100, "replay_capacity": 1000}),
        ("reinforce", False, {"num_envs": 2, "games_per_update": 2}),
        ("es", False, {"num_envs": 2, "population": 4}),
    ],
)
def test_threads_and_overlap_give_the_bits_of_the_serial_engine(algorithm, overlap, hyper):
    def learn(engine):
        made, exchange, source = source_of(
            config_of("tiny_catch", algorithm, engine=engine, overlap=overlap, **hyper)
        )
        for i in range(8):
            made.update(source.next_batch(), exchange, i / 8)
            source.publish(made.policy)
        state = source.get_state()
        source.close()
        return exchange.parameters.data.detach().clone(), arrays_of(state)

    (threaded, its_state), (serial, other_state) = learn("local"), learn("serial")
    assert torch.equal(threaded, serial)
    assert its_state.keys() == other_state.keys()
    assert all(np.array_equal(its_state[name], other_state[name]) for name in its_state)


def test_with_overlap_a_batch_is_not_overwritten_while_it_is_learned_from():
    _, _, source = source_of(config_of("tiny_catch", overlap=True, num_envs=4, unroll_length=5))
    for _ in range(4):
        batch = source.next_batch()
        before = kept(batch)
        source._settle()  # the other group's rollout is complete
        assert_same_batches(before, batch)
    source.close()


@pytest.mark.parametrize("algorithm", ["ppo", "vtrace"])
def test_a_source_goes_on_from_its_state_with_the_same_batches(algorithm):
    hyper = {"num_envs": 6, "unroll_length": 6} | ({"num_groups": 3} if algorithm == "vtrace" else {})
    config = config_of("tiny_forever", algorithm, network=SMALL, **hyper)
    (made, _, source), (_, _, other) = source_of(config), source_of(config)
    for _ in range(4):
        source.next_batch()
    state = arrays_of(source.get_state())
    other.publish(made.policy)
    other.set_state(state)
    for _ in range(4):
        assert_same_batches(kept(source.next_batch()), other.next_batch())


@pytest.mark.parametrize(
    ("game", "network"), [("tiny_catch", SMALL), ("tiny_memory", LSTM), ("pong", NetworkConfig(hidden=16))]
)
def test_states_of_host_and_hybrid_groups_are_interchangeable(game, network):
    env = SMALL_PICTURES if game == "pong" else None
    config = config_of(game, network=network, env=env, num_envs=4, unroll_length=6)
    _, hybrid, policy = on_host_and_device(config, 4)
    host = make_group(config, 0, 4, num_threads=1, timer=Timer())
    host.start(policy)
    play_rollout(hybrid, policy, 6)
    state = arrays_of(hybrid.get_state())
    assert host.set_state(state, policy) == 0
    again = arrays_of(host.get_state())
    assert state.keys() == again.keys() and all(np.array_equal(state[name], again[name]) for name in state)
    _, other, _ = on_host_and_device(config, 4)
    other.set_state(again, policy)
    assert_same_batches(kept(play_rollout(hybrid, policy, 6)), play_rollout(other, policy, 6))


def test_the_host_reads_nothing_but_actions_within_a_rollout(monkeypatch):
    """Tensors on torch's meta device have no values, so any read by the host would raise."""
    config = config_of("tiny_catch", num_envs=4, unroll_length=8)
    algorithm, _, source = source_of(config)
    source.close()
    halves = [make_group(config, first, 2, num_threads=1, timer=Timer()) for first in (0, 2)]
    group = HybridEnvGroup(halves, torch.device("meta"), is_stack=False, capture=Capture())
    policy = algorithm.policy.to("meta")
    monkeypatch.setattr(Download, "receive", lambda self, tensor: None)  # every environment plays action 0
    group.start(policy)
    batch = play_rollout(group, policy, 8)
    assert {tensor.device.type for tensor in batch.tensors().values()} == {"meta"}


def test_frames_cross_alone_and_stacks_stay_on_the_device():
    _, hybrid, _ = on_host_and_device(
        config_of("pong", network=NetworkConfig(hidden=16), env=EnvSettings(), num_envs=4), 4
    )
    side = hybrid.sides[0]
    assert side.frames.host.shape == (2, 84, 84) and side.observations.shape == (2, 4, 84, 84)


def test_a_run_says_which_environments_threads_cannot_serve():
    config = config_of("tiny_catch", num_envs=200_000, unroll_length=8)
    with pytest.raises(
        UsageError,
        match=r"200,000 environments on 1 thread\(s\) may take 200 s per step.*use 120,000 or fewer",
    ):
        check_threads_serve(config, 200_000, 1)
    check_threads_serve(config, 100_000, 1)
    overlapped = config_of("tiny_catch", overlap=True, num_envs=20_000, unroll_length=128)
    with pytest.raises(UsageError, match="more than the 5 s"):
        check_threads_serve(overlapped, 20_000, 1)


def test_which_group_plays_is_decided_by_the_two_settings():
    timer = Timer()
    on_device = make_playing_group(config_of("tiny_catch"), 0, 4, num_threads=1, timer=timer)
    assert isinstance(on_device, HybridEnvGroup) and [len(half) for half in on_device.halves] == [2, 2]
    assert len(make_playing_group(config_of("tiny_catch"), 0, 3, num_threads=1, timer=timer).halves) == 1
    on_host = make_playing_group(config_of("tiny_catch", device="cpu"), 0, 4, num_threads=1, timer=timer)
    assert not isinstance(on_host, HybridEnvGroup)


def test_every_column_of_a_hybrid_batch_is_on_its_device_and_complete():
    _, _, source = source_of(config_of("tiny_catch", num_envs=4, unroll_length=5))
    batch = source.next_batch()
    assert all(getattr(batch, name).shape[:2] == (5, 4) for name in STEP_FIELDS)
    assert batch.mask.all() and batch.terminated.any()


def test_the_device_work_between_two_steps_of_a_half_is_one_recorded_call():
    """The host's thread limits the rate of two halves, so a decision must not be split into more launches."""

    class Counted(Capture):
        calls = 0

        def run(self, function, *arguments):
            self.calls += 1
            return super().run(function, *arguments)

    counted = Counted()
    config = config_of("tiny_catch", num_envs=4, unroll_length=8)
    _, hybrid, policy = on_host_and_device(config, 4, counted)
    for _ in range(2):
        before = counted.calls
        play_rollout(hybrid, policy, 8)
        assert counted.calls - before == 2 * (8 + 1)  # 8 decisions of each half; its last observations
