"""Actors that are added and removed while a run trains, and by its resume."""

import numpy as np
import pytest
from systems import REPLAY, begun, checkpointer, config_for

from parcade.errors import UsageError
from parcade.files.run_directory import newest_checkpoint
from parcade.report.progress import Progress
from parcade.topology.driver_checkpoint import TopologyCheckpointer
from parcade.topology.engine import SerialEngine
from parcade.topology.run import SCALE_FILE, make_driver, scale
from parcade.train import run_training, start_run


def test_actors_can_be_added_and_removed(tmp_path):
    for algorithm in ("impala", "ga3c"):
        config = config_for(tmp_path, algorithm, num_envs=4, topology={"num_actors": 2}, unroll_length=4)
        driver = make_driver(config, SerialEngine())
        driver.begin()
        for count in (2, 4, 1, 3):
            driver.scale_actors(count)
            before = {part.name: part.thing.group.frames for part in driver.of_role("actor")}
            for _ in range(30):
                driver.advance(0.0)
            after = {part.name: part.thing.group.frames for part in driver.of_role("actor")}
            assert len(after) == count and all(after[name] > before[name] for name in after)
        driver.close()


def test_a_request_for_actors_at_the_end_of_a_run_waits_for_its_resume(tmp_path):
    config = config_for(tmp_path / "run", "impala", num_envs=4)
    run = start_run(config)
    (run / "stop").touch()
    (run / SCALE_FILE).write_text('{"actors": 5}')
    run_training(config, run)
    assert newest_checkpoint(run)[1]["plan"]["actors"] == 2 and (run / SCALE_FILE).exists()
    (run / "stop").unlink()
    run_training(config, run, resume=True)
    assert newest_checkpoint(run)[1]["plan"]["actors"] == 5 and not (run / SCALE_FILE).exists()


def test_a_replay_has_room_for_the_actors_of_the_start_and_forgets_removed_ones(tmp_path):
    config = config_for(
        tmp_path, "apex", num_envs=4, topology={"num_actors": 2}, **{**REPLAY, "learning_starts": 30}
    )
    driver = make_driver(config, SerialEngine())
    driver.begin()
    replay = driver.parts["replay-0"].thing.replay

    def priorities(actor):
        return replay.tree.leaves[: 4 * replay.length].reshape(2, -1)[actor].sum()

    for count in (2, 1, 2):
        driver.scale_actors(count)
        for _ in range(30):
            driver.advance(0.0)
        assert priorities(0) > 0 and (priorities(1) > 0) == (count == 2)
        assert len(replay) == (replay.tree.leaves > 0).sum()
    with pytest.raises(UsageError, match="actors=3 is more than the 2 for which this run's replay has room"):
        driver.scale_actors(3)
    assert len(driver.of_role("actor")) == 2
    driver.close()


def test_frames_of_an_unroll_in_the_making_are_counted_after_a_resume(tmp_path):
    config = config_for(tmp_path, "ga3c", num_envs=8, topology={"num_actors": 2}, unroll_length=8)
    run = start_run(config)
    driver = make_driver(config, SerialEngine())
    driver.begin()
    driver.scale_actors(3)  # from now on, actors are at different steps of their unrolls
    resumed = make_driver(config, SerialEngine())
    save, restore = (
        TopologyCheckpointer(config, run, each, Progress(config.run.total_frames, ()), say=print)
        for each in (driver, resumed)
    )
    for _ in range(5):
        driver.advance(0.0)
    save.save()
    restore.restore()
    for _ in range(20):
        driver.advance(0.0)
        resumed.advance(0.0)
    assert resumed.tally.frames == driver.tally.frames


@pytest.mark.parametrize("algorithm", ["impala", "ga3c"])
def test_a_resumed_run_with_added_actors_goes_on_bit_identical(tmp_path, algorithm):
    config = config_for(tmp_path, algorithm, num_envs=4, unroll_length=5, topology={"num_actors": 2})
    run, driver = start_run(config), make_driver(config, SerialEngine())
    driver.begin()

    def advance(driver):
        for _ in range(10):
            driver.advance(0.0)

    def checkpointer(driver):
        return TopologyCheckpointer(
            config, run, driver, Progress(config.run.total_frames, ()), say=lambda line: None
        )

    advance(driver)
    driver.scale_actors(3)
    advance(driver)
    assert checkpointer(driver).save() == ""
    resumed = make_driver(config, SerialEngine())
    checkpointer(resumed).restore()
    assert resumed.lives == driver.lives
    for each in (driver, resumed):
        advance(each)
    assert resumed.updates == driver.updates
    weights, again = driver.weights()[1], resumed.weights()[1]
    assert all(np.array_equal(weights[name], again[name]) for name in weights)


@pytest.mark.parametrize("algorithm", ["impala", "ga3c", "es"])
@pytest.mark.parametrize("room", [0, 1, 3])
def test_a_resume_takes_the_added_actors_for_which_there_is_room(tmp_path, capsys, algorithm, room):
    hyper = {"population": 8, "games_per_member": 1} if algorithm == "es" else {}
    config = config_for(tmp_path, algorithm, num_envs=4, **hyper)
    run = start_run(config)
    driver = begun(config)
    driver.scale_actors(5)
    for _ in range(5):
        driver.advance(0.0)
    assert checkpointer(config, run, driver).save() == ""
    engine = SerialEngine()
    engine.room_for = lambda role, count: min(room, count)
    resumed = make_driver(config, engine)
    checkpointer(config, run, resumed).restore()
    names = [f"actor-{index}" for index in range(2 + room)]
    assert [part.name for part in resumed.of_role("actor")] == names and resumed.lives == driver.lives
    says = f"warning: the cluster has room for {2 + room} of the 5 actors of the checkpoint"
    assert (says in capsys.readouterr().out) == (room < 3)
    assert resumed.tally.cut_games == driver.tally.cut_games + 2 * (3 - room)
    updates, frames = resumed.updates, resumed.tally.frames
    for _ in range(20):
        resumed.advance(0.0)
    assert resumed.updates > updates and resumed.tally.frames > frames
    if algorithm == "impala":  # the weights of an actor that is gone would be kept for ever
        assert resumed.pulled_at.keys() <= set(names)
    resumed.scale_actors(5)
    resumed.advance(0.0)
    assert resumed.lives["actor-4"] == driver.lives["actor-4"] + (room < 3)


def test_actors_that_came_on_top_are_asked_once_after_a_resume(tmp_path):
    config = config_for(tmp_path, "ga3c", num_envs=4)
    run = start_run(config)
    driver = begun(config)
    driver.scale_actors(4)
    driver.advance(0.0)
    checkpointer(config, run, driver).save()
    resumed = make_driver(config, SerialEngine())
    checkpointer(config, run, resumed).restore()
    names = [pending.part.name for pending in resumed.stepping]
    assert sorted(names) == ["actor-0", "actor-1", "actor-2", "actor-3"]


def test_a_resume_with_fewer_actors_counts_no_lost_shard(tmp_path):
    config = config_for(tmp_path, "apex", topology={"num_actors": 2}, num_envs=4, **REPLAY)
    run = start_run(config)
    driver = begun(config)
    driver.scale_actors(1)
    assert checkpointer(config, run, driver).save() == ""
    resumed = make_driver(config, SerialEngine())
    checkpointer(config, run, resumed).restore()
    assert not resumed.storing  # on Ray, calls to shards that have not begun count as losses
    for _ in range(5):
        resumed.advance(0.0)
    assert resumed.tally.restarts == 0 and len(resumed.of_role("actor")) == 1
    assert resumed.replay.num_transitions >= driver.replay.num_transitions > 0


def test_more_actors_than_there_is_room_for_leave_the_run_as_it_is(tmp_path, monkeypatch):
    driver = begun(config_for(tmp_path, "impala", num_envs=4))
    run = start_run(driver.config)
    (run / SCALE_FILE).write_text('{"actors": 9}')

    def full(role, count):
        raise UsageError(f"{count} more {role}(s) reserve too much")

    monkeypatch.setattr(driver.engine, "check_room", full)
    said = []
    scale(run, driver, said.append)
    assert said == ["warning: 7 more actor(s) reserve too much; the number of actors stays the same"]
    assert len(driver.of_role("actor")) == 2 and not (run / SCALE_FILE).exists()
    driver.advance(0.0)


BAD_REQUESTS = {
    "{}": "None",
    "[3]": "None",
    '{"actors": 3': "None",
    '{"actors": true}': "True",
    '{"actors": 2.5}': "2.5",
    '{"actors": "3"}': "'3'",
    '{"actors": 0}': "0",
    '{"actors": 10001}': "10001",
}


@pytest.mark.parametrize("request_text", BAD_REQUESTS)
def test_a_malformed_request_for_actors_is_reported_and_ignored(tmp_path, request_text):
    driver = begun(config_for(tmp_path, "impala", num_envs=4), turns=0)
    (tmp_path / SCALE_FILE).write_text(request_text)
    said = []
    scale(tmp_path, driver, said.append)
    assert said == [
        f"warning: actors.json: actors is {BAD_REQUESTS[request_text]}, expected a number from 1 to 10,000; "
        "the number of actors stays the same"
    ]
    assert len(driver.of_role("actor")) == 2 and not (tmp_path / SCALE_FILE).exists()


def test_a_request_for_actors_that_is_no_file_is_left(tmp_path):
    driver = begun(config_for(tmp_path, "impala", num_envs=4), turns=0)
    (tmp_path / SCALE_FILE).mkdir()
    scale(tmp_path, driver, pytest.fail)
    assert len(driver.of_role("actor")) == 2
