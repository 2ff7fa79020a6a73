"""Environments that continue on another number of ranks: their states, their episodes, every counter once."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_sources import build

from parcade.algorithms.table import ALGORITHMS
from parcade.build.learner import make_algorithm
from parcade.build.source import make_source
from parcade.config import RunConfig, TrainConfig
from parcade.exchange.base import LocalExchange
from parcade.experience.batch import STEP_FIELDS
from parcade.experience.episodes import ENV, FINISHED_AT_STEP
from parcade.experience.group_states import joined
from parcade.experience.redistribution import Saved, state_for
from parcade.files.state import part_of
from parcade.machine.timing import Timer
from parcade.model.policy import NetworkConfig

pytestmark = pytest.mark.quick
SMALL = NetworkConfig(network="mlp", hidden=16)
REMEMBERING = NetworkConfig(network="mlp", hidden=16, lstm=8)
NUM_ENVS = 12
KINDS = {
    "rollouts": ("ppo", "tiny_catch", {"unroll_length": 7}, {}),
    "rollouts with memory": ("a2c", "tiny_memory", {"unroll_length": 7, "network": REMEMBERING}, {}),
    "rollouts that overlap": ("ppo", "tiny_forever", {"unroll_length": 7}, {"overlap": True}),
    "episodes": ("reinforce", "tiny_catch", {"games_per_update": 24}, {}),
    "staggered unrolls": ("vtrace", "tiny_forever", {"num_groups": 1, "unroll_length": 6}, {}),
    "a replay": (
        "dqn",
        "tiny_forever",
        {"learning_starts": 24, "replay_capacity": 480, "batch_size": 12},
        {},
    ),
    "a population": ("es", "tiny_catch", {"population": 24}, {}),
}


def sources(kind, world_size):
    """The sources of all ranks of a run."""
    algorithm, game, hyper, options = KINDS[kind]
    run = RunConfig(algorithm=algorithm, engine="serial", **options)
    settings = ALGORITHMS[algorithm].config(**{"num_envs": NUM_ENVS, "network": SMALL, **hyper})
    config = TrainConfig(game, run, hyper=settings)
    made = make_algorithm(config, LocalExchange(Timer()))
    found = []
    for rank in range(world_size):
        exchange = SimpleNamespace(rank=rank, world_size=world_size, local_size=world_size)
        timer = Timer()
        found.append(make_source(config, made, exchange, timer=timer, learner_timer=timer, threads=1))
        found[-1].publish(made.policy)
    return found


def state_of(source):
    return {
        name: value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        for name, value in source.get_state().items()
    }


def environments(ranks):
    """The state of all environments of a run, in their order."""
    groups = [
        part_of(state, f"{name}.")
        for state, source in ((state_of(source), source) for source in ranks)
        for name in source.group_names
    ]
    whole = joined(groups)
    rows = whole["log.new"]
    return {**whole, "log.new": rows[np.lexsort((rows[:, FINISHED_AT_STEP], rows[:, ENV]))]}


def move(kind, ranks, world_size):
    """The sources of another number of ranks, which continue from these."""
    states = [state_of(source) for source in ranks]

    def read(rank, wanted):
        return {name: value for name, value in states[rank].items() if wanted(name)}

    moved = sources(kind, world_size)
    saved = Saved(len(ranks), NUM_ENVS, read)
    for rank, source in enumerate(moved):
        source.set_state(state_for(source, rank, world_size, saved))
    return moved


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 2), (2, 6), (6, 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_environment_and_every_counter_arrives_once(kind, before, after):
    if kind == "rollouts that overlap":
        before, after = min(before, 3), min(after, 3)  # two groups per rank
    ranks = sources(kind, before)
    for source in ranks:
        source.next_batch()
        source.next_batch()
        source.cut_games = 5
    moved = move(kind, ranks, after)
    expected, found = environments(ranks), environments(moved)
    assert expected.keys() == found.keys() and {"env_steps", "starts", "lives"} <= found.keys()
    for name in expected:
        assert np.array_equal(expected[name], found[name]), name
    for counter in ("frames", "reset_frames", "steps", "cut_games"):
        assert sum(getattr(s, counter) for s in moved) == sum(getattr(s, counter) for s in ranks), counter
    assert [source.cut_games for source in moved[1:]] == [0] * (after - 1)
    for source in moved:
        source.next_batch()


def test_environments_without_states_begin_episodes_that_count_as_cut(monkeypatch):
    monkeypatch.setitem(KINDS, "without", ("a2c", "CartPole-v1", {"unroll_length": 4}, {}))
    ranks = sources("without", 3)
    for source in ranks:
        source.next_batch()
    moved = move("without", ranks, 2)
    assert [source.cut_games for source in moved] == [6, 6]
    assert sum(source.steps for source in moved) == sum(source.frames for source in moved) == 4 * NUM_ENVS
    seen = np.concatenate([source.groups[0].observations.numpy() for source in moved])
    assert len(np.unique(seen, axis=0)) == NUM_ENVS  # each begins with a seed of its own


@pytest.mark.parametrize("kind", ["rollouts", "rollouts with memory", "episodes"])
def test_the_batches_are_those_of_the_undivided_run(kind):
    (whole,), ranks = sources(kind, 1), sources(kind, 2)
    for source in (whole, *ranks):
        source.next_batch()
    ranks = move(kind, ranks, 3)
    for _ in range(3):
        expected = whole.next_batch()
        parts = [source.next_batch() for source in ranks]
        for name in STEP_FIELDS:
            rows = min(len(getattr(part, name)) for part in parts)  # episodes are padded to the longest
            columns = torch.cat([getattr(part, name)[:rows] for part in parts], 1)
            assert torch.allclose(columns.float(), getattr(expected, name)[:rows].float(), atol=1e-6), name
        assert torch.equal(torch.cat([part.mask.sum(0) for part in parts]), expected.mask.sum(0))


def test_rows_of_episodes_that_no_report_has_go_to_the_rank_of_their_environment():
    ranks = sources("rollouts", 2)
    for source in ranks:
        source.next_batch()
    expected = np.concatenate([log.take_new() for source in ranks for log in source.episode_logs])
    ranks = sources("rollouts", 2)
    for source in ranks:
        source.next_batch()
    moved = move("rollouts", ranks, 4)
    rows = [np.concatenate([log.take_new() for log in source.episode_logs]) for source in moved]
    assert len(expected) == NUM_ENVS and np.array_equal(np.concatenate(rows), expected)
    for rank, mine in enumerate(rows):
        assert sorted(mine[:, ENV]) == list(range(3 * rank, 3 * rank + 3))


def test_consoles_continue_too():
    """The same frames as those of one rank, which native consoles save completely."""
    hyper = {"num_envs": 4, "unroll_length": 5, "network": NetworkConfig(hidden=16)}
    _, _, whole = build("pong", "a2c", **hyper)
    whole.next_batch()
    state = state_of(whole)
    run = RunConfig(algorithm="a2c", engine="serial")
    config = TrainConfig("pong", run, hyper=ALGORITHMS["a2c"].config(**hyper))
    made = make_algorithm(config, LocalExchange(Timer()))
    saved = Saved(1, 4, lambda rank, wanted: {name: value for name, value in state.items() if wanted(name)})
    parts = []
    for rank in range(2):
        exchange, timer = SimpleNamespace(rank=rank, world_size=2, local_size=2), Timer()
        source = make_source(config, made, exchange, timer=timer, learner_timer=timer, threads=1)
        source.publish(made.policy)
        source.set_state(state_for(source, rank, 2, saved))
        parts.append(source.next_batch())
    observations = torch.cat([part.observations for part in parts], 1)
    assert torch.equal(observations, whole.next_batch().observations)
