"""Parts lost at awkward moments, on the serial engine, where the test can choose the moment."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from systems import REPLAY, begun, checkpointer, config_for, server_learner

from parcade.build.replay import make_replay
from parcade.errors import UsageError
from parcade.experience.env_group import EnvGroup
from parcade.files.run_directory import complete_checkpoints, newest_checkpoint
from parcade.topology.driver import LOSSES_IN_A_ROW, RunLost
from parcade.topology.engine import LocalPart, PartLost, SerialEngine
from parcade.topology.run import make_driver
from parcade.train import run_training, start_run


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


@pytest.mark.parametrize(("algorithm", "hyper"), [("apex", {}), ("gorila", {"bundled": False})])
def test_a_sample_of_a_restarted_shard_delays_no_learner(tmp_path, algorithm, hyper):
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


def test_weights_are_sent_again_after_the_server_went_back(tmp_path):
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


def test_an_actor_that_is_begun_again_counts_new_episodes(tmp_path):
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
