"""Inputs of calls that are lost with a node: no part is restarted for them. On the serial engine."""

import numpy as np
import pytest
from systems import REPLAY, begun, config_for

from parcade.topology.engine import InputLost, LocalPart, SerialEngine


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
