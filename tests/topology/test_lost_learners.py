"""Learners lost at awkward moments, on the serial engine, where the test can choose the moment."""

import dataclasses

import numpy as np
import pytest
import torch
from systems import NORMALIZED, REPLAY, begun, checkpointer, config_for, server_learner

from parcade.experience.replay_source import ReplaySource
from parcade.machine.timing import Timer
from parcade.topology.engine import SerialEngine
from parcade.topology.learner import Learner
from parcade.topology.run import DriverExchange, make_driver
from parcade.train import start_run


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
