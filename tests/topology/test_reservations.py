"""What the parts of a run reserve, and which nodes have room for them."""

import itertools
import math
from types import SimpleNamespace

import pytest

from parcade.algorithms.impala import ImpalaConfig
from parcade.config import RunConfig, TopologyConfig, TrainConfig
from parcade.errors import UsageError
from parcade.topology import ray_engine
from parcade.topology.ray_engine import RayEngine
from parcade.topology.reservations import (
    Reservation,
    cpus_of_a_node,
    gpus_of_a_node,
    reservations,
    total_of,
    without_room,
)

pytestmark = pytest.mark.quick


def parts(*counts_and_cpus):
    """Return one role per pair: its number of parts, and the CPUs of each."""
    return [
        Reservation(f"role{i}", count, {"CPU": cpus, "GPU": 0.0})
        for i, (count, cpus) in enumerate(counts_and_cpus)
    ]


@pytest.mark.parametrize(
    ("wanted", "nodes", "lacks"),
    [
        (parts((4, 1.0)), [2, 2], None),
        (parts((3, 2.0)), [3, 3], "role0"),  # enough in total, and for the largest
        (parts((3, 2.0)), [3, 4], None),
        (parts((4, 0.5), (2, 2.0)), [3, 3], None),
        (parts((10, 0.1)), [1], None),  # ten times 0.1 is not 1.0
        (parts((1, 0.0)), [0], None),
        (parts((2, 1.0), (1, 3.0)), [3, 1], "role0"),
    ],
)
def test_parts_are_placed_whole(wanted, nodes, lacks):
    assert without_room(wanted, [{"CPU": float(cpus)} for cpus in nodes]) == lacks


def test_a_part_needs_its_cpus_and_its_gpu_on_one_node():
    learner = [Reservation("learner", 1, {"CPU": 2.0, "GPU": 1.0})]
    assert without_room(learner, [{"CPU": 8.0}, {"CPU": 1.0, "GPU": 4.0}]) == "learner"
    assert without_room(learner, [{"CPU": 8.0}, {"CPU": 2.0, "GPU": 1.0}]) is None


@pytest.mark.parametrize(
    ("gpus", "nodes", "lacks"),
    [
        ([0.6] * 3, [2], "part2"),  # 1.8 in total, but the third would take 0.2 of each
        ([0.6] * 3, [2, 1], None),
        ([0.5] * 4, [2], None),
        ([0.4, 0.6, 0.6, 0.4], [2], None),  # each share goes to the fullest GPU with room
        ([1.0, 0.5, 0.5], [2], None),
        ([2.0, 0.5], [2], "part1"),
        ([2.0, 2.0], [3, 1], "part1"),
        ([0.1] * 10, [1], None),
        ([0.0], [0], None),
    ],
)
def test_less_than_a_gpu_is_a_share_of_one(gpus, nodes, lacks):
    wanted = [Reservation(f"part{i}", 1, {"CPU": 0.0, "GPU": each}) for i, each in enumerate(gpus)]
    assert without_room(wanted, [{"GPU": float(count)} for count in nodes]) == lacks


@pytest.mark.parametrize(
    ("num_learners", "each", "nodes", "gpus"),
    [(3, 0.6, 1, 3), (3, 0.6, 2, 2), (3, 0.5, 1, 2), (4, 1.0, 3, 2), (2, 4.0, 1, 8), (3, 0.25, 1, 1)],
)
def test_the_gpus_of_a_node_are_the_fewest_with_room(num_learners, each, nodes, gpus):
    topology = TopologyConfig(num_learners=num_learners, learner_gpus=each)
    config = TrainConfig(
        "tiny_catch",
        RunConfig(algorithm="impala", engine="ray"),
        hyper=ImpalaConfig(num_envs=12),
        topology=topology,
    )
    assert gpus_of_a_node(config, nodes) == gpus


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_the_cpus_of_a_node_are_the_fewest_with_room(nodes):
    topology = TopologyConfig(num_actors=3, actor_cpus=2.0, num_learners=2, learner_cpus=1.5)
    config = TrainConfig(
        "tiny_catch",
        RunConfig(algorithm="impala", engine="ray"),
        hyper=ImpalaConfig(num_envs=12),
        topology=topology,
    )
    assert [part.role for part in reservations(config)] == ["actor", "learner"]
    amounts = [2.0] * 3 + [1.5] * 2
    fullest = min(
        max(sum(a for a, node in zip(amounts, places, strict=True) if node == each) for each in range(nodes))
        for places in itertools.product(range(nodes), repeat=len(amounts))
    )
    assert total_of(reservations(config), "CPU") == 9 and cpus_of_a_node(config, nodes) == math.ceil(fullest)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (parts((2, 4.0)), "one part reserves 4 CPUs, the largest node has 3; lower --actor-cpus"),
        (parts((3, 2.0)), "the cluster has enough in total, but no node has room for the last role0"),
    ],
)
def test_a_cluster_without_room_is_left_at_once(wanted, says, monkeypatch):
    alive = {"Alive": True, "Resources": {"CPU": 3.0}}
    engine, closed = RayEngine.__new__(RayEngine), []
    engine._ray = SimpleNamespace(nodes=lambda: [alive, alive, {"Alive": False, "Resources": {"CPU": 99.0}}])
    monkeypatch.setattr(engine, "close", lambda: closed.append(True), raising=False)
    engine.check_places(parts((2, 2.5)))
    assert not closed
    with pytest.raises(UsageError, match=says):
        engine.check_places(wanted)
    assert closed == [True]


@pytest.fixture
def busy(monkeypatch):
    """An engine, and lists of the CPUs free at its next questions, and of what it said and closed."""
    engine, free, said, closed = RayEngine.__new__(RayEngine), [], [], []
    engine._directory, engine.settings = None, TopologyConfig(actor_cpus=1.0, learner_cpus=1.0)
    engine._ray = SimpleNamespace(available_resources=lambda: {"CPU": free.pop(0)} if free else {})
    monkeypatch.setattr(engine, "close", lambda: closed.append(True), raising=False)
    monkeypatch.setattr(ray_engine, "ROOM_POLL_SECONDS", 0.0)
    return SimpleNamespace(engine=engine, free=free, said=said, closed=closed)


def test_a_run_waits_until_other_work_leaves_room_and_says_so_once(busy):
    wanted = [Reservation("actor", 2, {"CPU": 1.0, "GPU": 0.0})]
    busy.free += [0.0, 1.0, 1.5, 2.0, 0.0]
    busy.engine.wait_for_room(wanted, busy.said.append)
    expected = "the parts reserve 2 CPUs, and other work on the cluster leaves 0"
    assert busy.said == [f"waiting for at most 5 minutes: {expected}"]
    assert busy.free == [0.0] and not busy.closed


def test_a_run_gives_up_when_other_work_does_not_end(busy, monkeypatch):
    monkeypatch.setattr(ray_engine, "ROOM_SECONDS", -1.0)
    wanted = [Reservation("actor", 2, {"CPU": 1.0, "GPU": 0.0})]
    with pytest.raises(UsageError, match="leaves 0; try again when it has ended, use fewer parts, or add"):
        busy.engine.wait_for_room(wanted, busy.said.append)
    assert busy.closed == [True] and not busy.said


def test_the_parts_of_the_runs_own_cluster_reserve_no_cpus_and_never_wait(busy):
    busy.engine._directory = "its own"
    busy.engine.wait_for_room([Reservation("actor", 9, {"CPU": 1.0, "GPU": 0.0})], busy.said.append)
    assert not busy.said and not busy.closed


@pytest.mark.parametrize(
    ("own", "free", "wanted", "room"),
    [
        ([], 6.0, 4, 2),  # two nodes of three CPUs: enough for three actors in total
        ([], 6.0, 1, 1),
        (["learner-0", "actor-0"], 3.0, 4, 1),
        (["learner-0", "learner-1"], 1.5, 4, 0),  # another program takes the others
        ([], 0.0, 4, 0),
    ],
)
def test_added_parts_have_room_on_one_node_each(own, free, wanted, room):
    engine = RayEngine.__new__(RayEngine)
    engine._directory, engine.settings = None, TopologyConfig(actor_cpus=2.0, learner_cpus=1.0)
    engine._parts = [SimpleNamespace(name=name) for name in own]
    engine._ray = SimpleNamespace(
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 3.0}}] * 2,
        available_resources=lambda: {"CPU": free} if free else {},
    )
    assert engine.room_for("actor", wanted) == room
    if room < wanted:
        says = rf"{wanted} more actor\(s\) reserve 2 CPUs each, the cluster has room for {room}; add nodes"
        with pytest.raises(UsageError, match=says):
            engine.check_room("actor", wanted)
    engine.check_room("actor", room)
