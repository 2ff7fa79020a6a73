"""Parts lost at awkward moments, on the serial engine, where the test can choose the moment."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from systems import NORMALIZED, REPLAY, begun, checkpointer, config_for

from parcade.build.replay import make_replay
from parcade.errors import UsageError
from parcade.experience.env_group import EnvGroup
from parcade.experience.replay_source import ReplaySource
from parcade.files.run_directory import complete_checkpoints, newest_checkpoint
from parcade.machine.timing import Timer
from parcade.topology.driver import LOSSES_IN_A_ROW, RunLost
from parcade.topology.engine import InputLost, LocalPart, PartLost, SerialEngine
from parcade.topology.learner import Learner, ServerLearner
from parcade.topology.run import DriverExchange, make_driver
from parcade.train import run_training, start_run


def server_learner(driver, index):
    """Return learner ``index`` of a new process, which has not begun."""
    num_shards, plays = len(driver.of_role("shard")), driver.parts[f"learner-{index}"].thing.plays
    count = driver.config.num_learners
    return ServerLearner(driver.description, index, count, num_shards, driver.engine.fetch, plays)


def test_learners_that_differ_are_named_at_the_next_report(tmp_path):
    driver = begun(config_for(tmp_path, "impala", num_envs=4, topology={"num_learners": 3}))
    exchange = DriverExchange(Timer(), driver)
    exchange.check_parameters()
    learner = driver.parts["learner-1"].thing
    with torch.no_grad():
        learner.exchange.parameters.data[0] += 1e-6
    with pytest.raises(RuntimeError, match="parameters of learner 1 differ from learner 0's after update 5;"):
        exchange.check_parameters()
    learner.life = None  # a new process has other weights, and is restarted by the next update
    exchange.check_parameters()


@pytest.mark.parametrize("algorithm", ["impala", "apex", "ga3c"])
def test_a_learner_that_dies_right_after_a_resume_goes_on_from_the_checkpoint(tmp_path, algorithm):
    config = config_for(tmp_path, algorithm, num_envs=4, **(REPLAY if algorithm == "apex" else {}))
    run = start_run(config)
    driver = begun(config)
    checkpointer(config, run, driver).save()
    version, weights = driver.weights()
    resumed = make_driver(config, SerialEngine())
    checkpointer(config, run, resumed).restore()
    learner = resumed.parts["learner-0"]
    learner.thing = Learner(resumed.description)
    resumed.revive_learner(learner)
    restored, again = resumed.weights()
    assert restored == version > 0 and resumed.tally.rollbacks == 1
    assert all(np.array_equal(weights[name], again[name]) for name in weights)


@pytest.mark.parametrize("resume", [False, True])
def test_a_shard_lost_before_its_first_snapshot_ends_the_run_in_one_line(tmp_path, monkeypatch, resume):
    config = config_for(tmp_path, "gorila", num_envs=4, frames=1024, **REPLAY)
    run = start_run(config)
    if resume:
        run_training(config, run)
    started = LocalPart.start

    def start(part, method, *arguments):
        if part.name == "shard-0" and method == "get_state":
            raise PartLost(part.name, "ActorDiedError")
        return started(part, method, *arguments)

    monkeypatch.setattr(LocalPart, "start", start)
    longer = dataclasses.replace(config, run=dataclasses.replace(config.run, total_frames=2048))
    with pytest.raises(RunLost, match=r"^shard-0 is lost: ActorDiedError, while the parts were starting$"):
        run_training(longer, run, resume=resume)


@pytest.mark.parametrize("algorithm", ["impala", "apex", "ga3c", "es"])
def test_an_actor_lost_before_a_checkpoint_is_restarted_and_saved(tmp_path, algorithm):
    """The iterations after it need not call the actor, so a checkpoint that waits for them may never be."""
    config = config_for(tmp_path, algorithm, num_envs=4, **(REPLAY if algorithm == "apex" else {}))
    run = start_run(config)
    driver = begun(config)
    actor = driver.parts["actor-0"]
    actor.thing = type(actor.thing)(driver.host_description, 0, driver.envs_per_actor)
    assert checkpointer(config, run, driver).save() == ""
    assert driver.lives["actor-0"] == 2 and driver.tally.restarts == driver.tally.lost_turns == 1
    assert complete_checkpoints(run)
    updates = driver.updates
    for _ in range(5):
        driver.advance(0.0)
    assert driver.updates > updates and driver.tally.restarts == 1
    resumed = make_driver(config, SerialEngine())
    checkpointer(config, run, resumed).restore()
    resumed.advance(0.0)
    assert resumed.updates > updates and resumed.lives["actor-0"] == 2


@pytest.mark.parametrize("algorithm", ["impala", "a3c"])
def test_a_restarted_part_plays_other_games_and_a_resume_goes_on_with_them(tmp_path, algorithm):
    config = config_for(tmp_path, algorithm, num_envs=4)
    name = "actor-0" if algorithm == "impala" else "learner-0"

    def group(driver):
        part = driver.parts[name].thing
        return part.group if algorithm == "impala" else part.source.groups[0]

    def numbers(driver):
        return group(driver).console_seeds.tolist(), group(driver).noise().tolist()

    driver = begun(config, turns=0)
    first = numbers(driver)
    part = driver.parts[name]
    if algorithm == "impala":
        part.thing = type(part.thing)(driver.host_description, 0, driver.envs_per_actor)
        driver.begin_part(part)
    else:
        part.thing = server_learner(driver, 0)
        driver.begin_learner(part)
    second = numbers(driver)
    assert all(a != b for a, b in zip(first, second, strict=True))
    run = start_run(config)
    for _ in range(3):
        driver.advance(0.0)
    checkpointer(config, run, driver).save()
    resumed = make_driver(config, SerialEngine())
    checkpointer(config, run, resumed).restore()
    assert numbers(resumed) == numbers(driver)


@pytest.mark.parametrize("algorithm", ["impala", "apex"])
def test_a_checkpoint_on_a_cluster_keeps_the_unrolls_being_played(tmp_path, algorithm, monkeypatch):
    monkeypatch.setattr(SerialEngine, "is_remote", True)
    config = config_for(tmp_path, algorithm, num_envs=4, **(REPLAY if algorithm == "apex" else {}))
    run = start_run(config)
    driver = begun(config)
    assert driver.players.playing
    saver = checkpointer(config, run, driver)
    assert saver.save() == "" and not driver.players.playing
    played = sum(part.thing.group.steps for part in driver.of_role("actor"))
    assert driver.tally.steps == played
    if algorithm == "apex":
        assert sum(part.thing.steps for part in driver.of_role("replay")) == played
    resumed = make_driver(config, SerialEngine())
    checkpointer(config, run, resumed).restore()
    assert resumed.tally.steps == played
    for each in (driver, resumed):
        for _ in range(50):
            each.advance(0.0)
        assert each.tally.steps > played
        each.close()


@pytest.mark.parametrize("algorithm", ["impala", "apex", "a3c"])
def test_episodes_that_end_while_a_checkpoint_waits_are_counted_after_a_resume(
    tmp_path, algorithm, monkeypatch
):
    monkeypatch.setattr(SerialEngine, "is_remote", True)
    config = config_for(tmp_path, algorithm, num_envs=4, **(REPLAY if algorithm == "apex" else {}))
    run = start_run(config)
    driver = begun(config, turns=20)
    driver.tally.take_new()  # as the reporter does
    assert checkpointer(config, run, driver).save() == ""
    resumed = make_driver(config, SerialEngine())
    checkpointer(config, run, resumed).restore()
    ended = driver.tally.take_new()
    assert len(ended) and np.array_equal(resumed.tally.take_new(), ended)


def test_a_checkpoint_of_ga3c_on_a_cluster_counts_all_steps_and_keeps_the_unrolls(tmp_path, monkeypatch):
    start = LocalPart.start

    def start_at_once(part, *call):
        pending = start(part, *call)
        pending.note()
        return pending

    monkeypatch.setattr(LocalPart, "start", start_at_once)
    monkeypatch.setattr(SerialEngine, "is_remote", True)
    monkeypatch.setattr(SerialEngine, "all_done", lambda engine, calls: calls[:2])  # others take longer
    config = config_for(tmp_path, "ga3c", topology={"num_actors": 4}, num_envs=8, unroll_length=3)
    run, driver = start_run(config), begun(config, turns=1)
    assert any(each.note()["unroll"] for each in driver.stepping)
    assert checkpointer(config, run, driver).save() == ""
    resumed = make_driver(config, SerialEngine())
    checkpointer(config, run, resumed).restore()
    counted = sum(part.thing.counter.get_state()[2] for part in resumed.of_role("actor"))
    assert resumed.tally.steps == driver.tally.steps == counted
    assert len(resumed.training) == len(driver.training) > 0
    for each in (driver, resumed):
        for _ in range(5):
            each.advance(0.0)
        assert each.tally.steps > counted


def test_no_action_selected_before_a_resume_is_taken_in_the_episodes_that_it_starts(tmp_path):
    config = config_for(
        tmp_path, "ga3c", "CartPole-v1", num_envs=4, unroll_length=3
    )  # its state cannot be saved
    run, driver = start_run(config), begun(config)
    assert checkpointer(config, run, driver).save() == ""
    resumed = make_driver(config, SerialEngine())
    checkpointer(config, run, resumed).restore()
    assert resumed.tally.cut_games == 4
    groups = [part.thing.group for part in resumed.of_role("actor")]
    resumed.engine.all_done(resumed.stepping)
    assert all(group.starts.all() for group in groups)  # the actors have sent their first observations only
    steps = sum(group.steps for group in groups)
    for _ in range(5):
        resumed.advance(0.0)
    assert sum(group.steps for group in groups) > steps


def test_the_last_answer_to_a_removed_actor_of_ga3c_is_not_kept(tmp_path):
    driver = begun(config_for(tmp_path, "ga3c", num_envs=4))
    driver.scale_actors(1)
    assert driver.answers.keys() == {"actor-0"}


def test_a_replay_shard_lost_before_a_checkpoint_is_restarted_and_saved(tmp_path):
    config = config_for(tmp_path, "apex", topology={"num_replay_shards": 2}, num_envs=4, **REPLAY)
    run = start_run(config)
    driver = begun(config)
    shard = driver.parts["replay-1"]
    shard.thing = type(shard.thing)(driver.host_description, 1, 2, driver.envs_per_actor)
    assert checkpointer(config, run, driver).save() == ""
    assert driver.lives["replay-1"] == 2 and driver.replay.transitions["replay-1"] == 0
    driver.advance(0.0)


def test_unrolls_lost_with_their_node_do_not_prevent_a_checkpoint(tmp_path, monkeypatch):
    config = config_for(tmp_path, "impala", num_envs=4, topology={"num_actors": 2, "queue_unrolls": 6})
    run = start_run(config)
    driver = begun(config)
    while len(driver.queue.waiting) < 2:
        driver._play()
        driver._collect(driver.engine.first_done(driver.players.calls))
    gone, kept = driver.queue.waiting[0], list(driver.queue.waiting)[1:]
    under_way, fetch = driver.queue.under_way, driver.engine.fetch

    def without_one(data, *timeout):
        if data is gone.data:
            raise PartLost("data", "ObjectLostError")
        return fetch(data, *timeout)

    monkeypatch.setattr(driver.engine, "fetch", without_one)
    saver = checkpointer(config, run, driver)
    assert saver.save() == "" and complete_checkpoints(run)
    assert list(driver.queue.waiting) == kept and driver.queue.under_way == under_way - 1
    plan = json.loads((newest_checkpoint(run)[0] / "checkpoint.json").read_text())["plan"]
    assert len(plan["waiting"]) == len(kept)


def broken_shard(self, *arguments):
    raise PartLost("shard-0", "memory is full")


@pytest.mark.parametrize(
    ("algorithm", "part", "method", "answer", "reason"),
    [
        (
            "impala",
            "actor-0",
            "play",
            lambda self, weights: ({"life": None}, None),
            r"actor-\d restarted",
        ),
        ("a3c", "shard-0", "push", broken_shard, "parameter server: shard-0 is lost: memory is full"),
    ],
)
def test_a_run_that_only_loses_ends_with_the_reason(
    tmp_path, monkeypatch, algorithm, part, method, answer, reason
):
    driver = begun(config_for(tmp_path, algorithm, num_envs=4))
    monkeypatch.setattr(type(driver.parts[part].thing), method, answer)
    limit = LOSSES_IN_A_ROW + 2 * len(driver.parts)
    with pytest.raises(
        RunLost, match=f"{limit + 1} losses without an update; the last: {reason}; the run stops"
    ):
        for _ in range(40):
            driver.advance(0.0)


def test_losses_among_which_learning_goes_on_are_accidents(tmp_path, monkeypatch):
    driver = begun(config_for(tmp_path, "impala", num_envs=4, topology={"num_actors": 1}))
    kind, turns = type(driver.parts["actor-0"].thing), itertools.count()
    play = kind.play
    monkeypatch.setattr(
        kind, "play", lambda self, weights: ({"life": None}, None) if next(turns) % 2 else play(self, weights)
    )
    limit = LOSSES_IN_A_ROW + 2 * len(driver.parts)
    for _ in range(limit + 10):
        driver.advance(0.0)
    assert driver.tally.restarts > limit


def test_a_node_with_many_parts_may_be_lost(tmp_path):
    driver = begun(config_for(tmp_path, "impala", num_envs=64, topology={"num_actors": 64}), turns=0)
    for actor in driver.of_role("actor"):
        actor.thing.life = None
    assert driver.advance(0.0)
    assert driver.tally.restarts > LOSSES_IN_A_ROW


def test_a_learner_whose_replay_takes_long_to_fill_answers_meanwhile(tmp_path, monkeypatch):
    """On Ray a part that does not answer within five minutes is killed, and its next life fills no faster."""
    serial = config_for(tmp_path, "gorila", num_envs=4, unroll_length=2, **REPLAY)
    monkeypatch.setattr("parcade.topology.learner.FILL_SECONDS", 0.0)
    calls, fill, weights = [], ReplaySource.fill, []
    monkeypatch.setattr(
        ReplaySource, "fill", lambda self, *seconds: (calls.append(self), fill(self, *seconds))[1]
    )
    for engine in ("ray", "serial"):
        config = dataclasses.replace(serial, run=dataclasses.replace(serial.run, engine=engine))
        driver = begun(config, turns=0)
        calls.clear()
        assert driver.advance(0.0)["replay/size"] >= 150
        assert (len(calls) > 4) == (engine == "ray") and driver.tally.restarts == 0
        for _ in range(3):
            driver.advance(0.0)
        weights.append(driver.weights()[1])
        driver.close()
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_learner_that_begins_again_gets_the_statistics_of_its_inputs_first(tmp_path):
    config = config_for(tmp_path, "a3c", num_envs=4, network=NORMALIZED)
    driver = begun(config, turns=20)
    learner, others = driver.parts["learner-1"], driver.parts["learner-0"].thing
    learner.thing = server_learner(driver, 1)
    driver.begin_learner(learner)
    statistics, expected = (each.algorithm.policy.statistics for each in (learner.thing, others))
    assert statistics.count > 0 and torch.allclose(statistics.scale, expected.scale, rtol=0.2)


@pytest.mark.parametrize(
    ("algorithm", "hyper"), [("async-q", {}), ("gorila", REPLAY), ("gorila", {"bundled": False, **REPLAY})]
)
def test_a_learner_that_begins_again_explores_as_far_as_the_run_has_come(tmp_path, algorithm, hyper):
    driver = begun(config_for(tmp_path, algorithm, num_envs=4, **hyper), turns=20)
    driver.advance(0.9)
    learner = driver.parts["learner-0"]
    learner.thing = server_learner(driver, 0)
    before = learner.thing.algorithm.policy.epsilon.item()
    driver.begin_learner(learner)
    policy = learner.thing.algorithm.policy
    assert policy.epsilon.item() <= 0.5 < before == 1.0
    assert driver.weights()[1]["buffer.epsilon"] == policy.epsilon.item()
    if learner.thing.plays:
        assert learner.thing.source._policy.epsilon == policy.epsilon


def test_restarted_parts_start_their_games_with_seeds_of_the_new_life(tmp_path, monkeypatch):
    begins, start = [], EnvGroup.start

    def noted(self, policy, seeds=None):
        begins.append(self.console_seeds.tolist())
        start(self, policy, seeds)

    monkeypatch.setattr(EnvGroup, "start", noted)
    for algorithm, name in (("a3c", "learner-0"), ("es", "actor-0"), ("impala", "actor-0")):
        driver = begun(config_for(tmp_path, algorithm, num_envs=4), turns=0)
        part, first = driver.parts[name], [*begins]
        if algorithm == "a3c":
            part.thing = server_learner(driver, 0)
            driver.begin_learner(part)
        else:
            part.thing = type(part.thing)(driver.host_description, 0, driver.envs_per_actor)
            driver.begin_part(part)
        again = begins[len(first) :]
        assert again and not any(seeds in first for seeds in again)
        begins.clear()


def test_a_process_with_several_lives_counts_its_cpu_time_once(tmp_path):
    driver = begun(config_for(tmp_path, "impala", num_envs=4))
    driver.tally.is_remote = True
    for _ in range(5):
        driver.advance(0.0)
    parts = len(driver.tally._cpu_seconds)
    driver.begin_part(driver.parts["actor-0"])
    driver.advance(0.0)
    assert len(driver.tally._cpu_seconds) == parts


def test_an_update_whose_second_half_is_lost_with_every_learner_is_made_again(tmp_path, monkeypatch):
    driver = begun(config_for(tmp_path, "impala", num_envs=4, topology={"num_learners": 2}))
    calls, apply = [], Learner.apply

    def lost_at_first(self, *gradients):
        calls.append(self)
        return ({"life": None}, None) if len(calls) <= 2 else apply(self, *gradients)

    monkeypatch.setattr(Learner, "apply", lost_at_first)
    metrics = driver.advance(0.0)
    assert len(calls) == 4 and driver.tally.rollbacks == 1 and np.isfinite(list(metrics.values())).all()


def assert_equal_learners(driver):
    states = [learner.thing.get_state()[1] for learner in driver.of_role("learner")]
    for other in states[1:]:
        assert states[0].keys() == other.keys()
        assert all(np.array_equal(states[0][name], other[name]) for name in states[0])


@pytest.mark.parametrize("stage", ["gradient", "apply"])
def test_learners_stay_equal_when_the_one_asked_for_its_state_dies_as_well(tmp_path, monkeypatch, stage):
    driver = begun(config_for(tmp_path, "impala", num_envs=6, topology={"num_learners": 3, "num_actors": 3}))
    dying, method = [driver.parts["learner-0"], driver.parts["learner-1"]], getattr(Learner, stage)
    get_state = Learner.get_state

    def dies(part):
        part.thing = Learner(driver.description, driver.of_role("learner").index(part), 3)
        return {"life": None}, None

    def called(self, *arguments):
        return dies(dying[0]) if self is dying[0].thing and self.life == 1 else method(self, *arguments)

    def asked(self):
        return dies(dying[1]) if self is dying[1].thing and self.life == 1 else get_state(self)

    monkeypatch.setattr(Learner, stage, called)
    monkeypatch.setattr(Learner, "get_state", asked)
    updates = driver.updates
    driver.advance(0.0)
    assert driver.updates == updates + 1 and driver.tally.rollbacks == 0 and driver.tally.restarts == 2
    assert_equal_learners(driver)


def test_learners_that_are_all_lost_before_the_first_snapshot_return_to_the_start_together(tmp_path):
    driver = begun(config_for(tmp_path, "impala", num_envs=6, topology={"num_learners": 3, "num_actors": 3}))
    for index, learner in enumerate(driver.of_role("learner")):
        if index < 2:
            learner.thing = Learner(driver.description, index, 3)
        learner.thing.life = None  # the process of the last one has kept its weights and its optimiser
    driver.advance(0.0)
    assert driver.updates == 1 and driver.tally.rollbacks == 1
    assert_equal_learners(driver)


@pytest.mark.parametrize(("algorithm", "hyper"), [("apex", {}), ("gorila", {"bundled": False})])
def test_a_sample_of_a_shard_that_was_born_anew_holds_nobody_up(tmp_path, algorithm, hyper):
    topology = {"num_replay_shards": 2, "num_actors": 2}
    driver = begun(
        config_for(tmp_path, algorithm, num_envs=4, unroll_length=4, topology=topology, **REPLAY, **hyper)
    )
    shard = driver.parts["replay-1"]
    # it has not been initialised; it has been initialised and is empty
    for life in (None, driver.lives["replay-1"]):
        shard.thing = type(shard.thing)(driver.description, 1, 2, driver.envs_per_actor)
        shard.thing.life = life
        before = driver.learned
        for _ in range(30):
            driver.advance(0.0)
        assert driver.learned == before + 30 and len(shard.thing.replay) > 0


@pytest.mark.parametrize(
    "cause", ["resume without its replay", "loss of its only shard", "removal of an actor"]
)
def test_a_replay_that_fills_again_is_followed_by_updates_at_their_usual_rate(tmp_path, cause):
    rate = {"unroll_length": 2, "steps_per_update": 10, "save_replay": False}
    config = config_for(tmp_path, "apex", num_envs=4, topology={"num_actors": 2}, **REPLAY, **rate)
    driver = begun(config, turns=1 if cause.startswith("removal") else 30)
    held = 0
    if cause.startswith("removal"):
        driver.scale_actors(1)
        driver._store_all()
        held = driver.replay.num_transitions
        assert 0 < held < 300
    elif cause.startswith("resume"):
        checkpointer(config, start_run(config), driver).save()
        driver = make_driver(config, SerialEngine())
        checkpointer(config, tmp_path, driver).restore()
    else:
        shard = driver.parts["replay-0"]
        shard.thing = type(shard.thing)(driver.description, 0, 1, driver.envs_per_actor)
        driver.replace_lost("replay-0")
    steps, learned = driver.tally.steps, driver.learned
    for _ in range(25):
        driver.advance(0.0)
    played = driver.tally.steps - steps - (300 - held)
    assert played > 0 and 10 * (driver.learned - learned) == pytest.approx(played, abs=60)


def test_weights_are_handed_out_anew_after_the_server_went_back(tmp_path):
    topology = {"num_actors": 2, "publish_updates": 10**6}
    hyper = {"num_envs": 4, "bundled": False, "unroll_length": 4, **REPLAY}
    driver = begun(config_for(tmp_path, "gorila", topology=topology, **hyper), turns=20)
    driver.take_snapshot()
    snapshot = driver.weights()[0]
    for _ in range(20):
        driver.advance(0.0)
    driver.publish()
    assert driver.players.version > snapshot
    driver.recover_server()
    assert driver.players.version == snapshot


@pytest.mark.parametrize("bundled", [True, False])
def test_updates_that_a_rollback_of_the_server_undid_count_no_more(tmp_path, bundled):
    """Otherwise the weights would go to all actors after every update until the count is reached again."""
    topology = {} if bundled else {"publish_updates": 10}
    hyper = {"num_envs": 4, "bundled": bundled, "unroll_length": 4, **REPLAY}
    driver = begun(config_for(tmp_path, "gorila", topology=topology, **hyper), turns=20)
    driver.take_snapshot()
    snapshot = driver.of_role("shard")[0].thing.version
    for _ in range(20):
        driver.advance(0.0)
    assert driver.updates > snapshot
    driver.recover_server()
    assert driver.updates == snapshot
    driver.advance(0.0)
    assert driver.updates <= snapshot + 1
    if not bundled:
        published = driver.players.version
        for _ in range(5):
            driver.advance(0.0)
        assert driver.players.version == published


@pytest.mark.parametrize("cause", ["snapshot", "loss of a shard"])
def test_actors_play_on_while_the_learners_wait_for_the_server(tmp_path, monkeypatch, cause):
    monkeypatch.setattr(SerialEngine, "is_remote", True)
    topology = {"num_actors": 2, "num_learners": 2}
    hyper = {"num_envs": 4, "bundled": False, "unroll_length": 4, **REPLAY}
    driver = begun(config_for(tmp_path, "gorila", topology=topology, **hyper), turns=20)
    while not (driver.players.playing and driver.learning):
        driver.advance(0.0)
    playing, steps = driver.players.calls, [actor.thing.group.steps for actor in driver.of_role("actor")]
    if cause == "snapshot":
        driver.snapshots, driver._snapshot_at = [], -np.inf
        driver.snapshot_if_due()
        assert len(driver.snapshots) == len(driver.of_role("shard")) and driver.tally.rollbacks == 0
    else:
        driver.recover_server()
    assert driver.players.calls == playing and not driver.learning
    assert [actor.thing.group.steps for actor in driver.of_role("actor")] == steps
    for _ in range(20):
        driver.advance(0.0)
    driver.pause()
    assert not driver.players.calls and not driver.learning and not driver.storing


def test_an_actor_that_is_begun_again_counts_fresh_games(tmp_path):
    driver = begun(config_for(tmp_path, "impala", num_envs=4, unroll_length=3))
    assert driver.tally.reset_frames == 0  # tiny_catch plays none
    actor = driver.parts["actor-0"].thing
    assert actor.group.log.steps.max() > 0
    actor.begin(2)
    assert actor.group.log.steps.max() == 0


@pytest.mark.parametrize("algorithm", ["dqn", "apex"])
def test_a_replay_too_small_for_its_blocks_is_refused(tmp_path, algorithm):
    hyper = {"num_envs": 8, "replay_capacity": 160, "learning_starts": 60, "unroll_length": 16}
    config = config_for(tmp_path, algorithm, **hyper)
    with pytest.raises(
        UsageError,
        match="replay_capacity of 160 is too small for 8 environments that store 16 steps at once; use 256",
    ):
        make_replay(config, 1, 8, block=16, replays_here=1)


def test_a_refused_capacity_of_several_replays_is_that_of_all_together(tmp_path):
    """Following the advice helps: it does not name the capacity of a single replay."""
    settings = {"num_envs": 8, "learning_starts": 60, "unroll_length": 16}
    with pytest.raises(
        UsageError,
        match="replay_capacity of 240 is too small for 4 environments, in each of 2 replays, that store 16 "
        "steps at once; use 256 or more",
    ):
        small = config_for(tmp_path, "gorila", replay_capacity=240, **settings)
        make_replay(small, 2, 4, block=16, replays_here=2)
    enough = config_for(tmp_path, "gorila", replay_capacity=256, **settings)
    assert make_replay(enough, 2, 4, block=16, replays_here=2).length == 32
    long = config_for(tmp_path, "gorila", replay_capacity=256, n_step=20, **settings)
    with pytest.raises(UsageError, match="replay_capacity=256 for 2 replays: .* gives 32 entries"):
        make_replay(long, 2, 4, block=16, replays_here=2)


def lose_inputs(monkeypatch, lost):
    """Let the calls for which ``lost(part, method, count)`` is true find no input; return their names."""
    start, counts, found = LocalPart.start, {}, []

    class Gone:
        data = None

        def __init__(self, part):
            self.part = part

        def note(self, timeout=None):
            raise InputLost(self.part.name, "ObjectLostError")

        def _carry_out(self):
            return None, None

    def started(part, method, *arguments):
        count = counts[part.name, method] = counts.get((part.name, method), 0) + 1
        if lost(part.name, method, count):
            found.append((part.name, method))
            return Gone(part)
        return start(part, method, *arguments)

    monkeypatch.setattr(LocalPart, "start", started)
    # As on Ray, the errors of calls are raised by their notes only.
    monkeypatch.setattr(SerialEngine, "first_done", lambda engine, calls: calls[0])
    monkeypatch.setattr(SerialEngine, "all_done", lambda engine, calls: list(calls))
    return found


@pytest.mark.parametrize(
    ("algorithm", "part", "method"),
    [
        ("impala", "learner-0", "learn"),
        ("impala", "actor-0", "play"),
        ("ga3c", "learner-0", "learn"),
        ("ga3c", "learner-0", "predict"),
        ("ga3c", "actor-0", "step"),
        ("apex", "learner-0", "learn"),
        ("apex", "replay-0", "add"),
        ("apex", "replay-0", "update_priorities"),
        ("es", "actor-0", "evaluate"),
        ("es", "learner-0", "learn"),
    ],
)
def test_a_part_whose_input_is_lost_is_neither_restarted_nor_rolled_back(
    tmp_path, monkeypatch, algorithm, part, method
):
    config = config_for(tmp_path, algorithm, num_envs=4, **(REPLAY if algorithm == "apex" else {}))
    driver = begun(config)
    transitions = driver.replay.num_transitions if algorithm == "apex" else 0
    found = lose_inputs(monkeypatch, lambda *call: call == (part, method, 2))
    before, lives = driver.updates, dict(driver.lives)
    for _ in range(12):
        driver.advance(0.0)
    assert found == [(part, method)] and driver.tally.lost_turns == 1
    assert driver.tally.restarts == driver.tally.rollbacks == 0 and driver.lives == lives
    assert driver.updates == before + 12
    if algorithm == "apex":
        assert driver.replay.num_transitions >= transitions > 0


@pytest.mark.parametrize("method", ["gradient", "apply"])
@pytest.mark.parametrize("learners", [["learner-1"], ["learner-0", "learner-1", "learner-2"]])
def test_learners_whose_input_is_lost_stay_equal_without_a_rollback(tmp_path, monkeypatch, method, learners):
    topology = {"num_learners": 3, "num_actors": 3}
    driver = begun(config_for(tmp_path, "impala", num_envs=6, topology=topology))
    found = lose_inputs(monkeypatch, lambda name, called, n: name in learners and (called, n) == (method, 2))
    before = driver.updates
    for _ in range(4):
        driver.advance(0.0)
    assert len(found) == len(learners) == driver.tally.lost_turns
    assert driver.tally.restarts == driver.tally.rollbacks == 0 and driver.updates == before + 4
    states = [learner.thing.get_state()[1] for learner in driver.of_role("learner")]
    names = states[0].keys() - {"generator"}  # each learner draws minibatches of its own
    assert all(np.array_equal(states[0][name], other[name]) for other in states for name in names)
