"""Mistakes in calls of a vector environment give one clear line, never a hang or an out-of-bounds read."""

import numpy as np
import pytest

from parcade import make_vec
from parcade.errors import UsageError

SMALL = {"image_height": 42, "image_width": 42}


@pytest.fixture(params=["native", "ale"])
def env(request):
    env = make_vec("pong", 4, request.param, **SMALL)
    yield env
    env.close()


def test_a_step_before_the_first_reset_is_refused(env):
    with pytest.raises(UsageError, match="step before the first reset; call reset first"):
        env.step(np.zeros(4, np.int64))


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        (np.zeros(3, np.int64), r"actions have shape \(3,\); expected \[4\]"),
        (np.zeros(5, np.int64), r"actions have shape \(5,\)"),
        (np.zeros(0, np.int64), r"actions have shape \(0,\)"),
        (np.zeros((4, 1), np.int64), r"actions have shape \(4, 1\)"),
        (0, r"actions have shape \(\)"),
        (np.zeros(4), "actions are float64; expected integers, 0 to 5"),
        (np.zeros(4, bool), "actions are bool"),
        ([0, 1, 2, 6], "actions contain 6; expected 0 to 5"),
        ([0, -1, 2, 5], "actions contain -1; expected 0 to 5"),
    ],
)
def test_actions_that_do_not_fit_are_refused_and_the_environment_plays_on(env, actions, says):
    env.reset(seed=0)
    with pytest.raises(UsageError, match=says):
        env.step(actions)
    assert env.step([0, 1, 2, 5])[4]["frames"].tolist() == [4] * 4


def test_seeds_options_and_calls_after_close_are_refused(env):
    with pytest.raises(UsageError, match=r"seed has shape \(2,\); expected \[4\]"):
        env.reset(seed=np.array([1, 2]))
    with pytest.raises(
        UsageError, match=r"options=\{'difficulty': 1\}: (reset takes no options|expected reset_mask alone)"
    ):
        env.reset(options={"difficulty": 1})
    env.reset(seed=0)
    env.close()
    with pytest.raises(UsageError, match="step after close"):
        env.step(np.zeros(4, np.int64))
    with pytest.raises(UsageError, match="reset after close"):
        env.reset()


def test_infos_have_one_type_in_reset_and_step(env):
    started, stepped = env.reset(seed=0)[1], env.step(np.zeros(4, np.int64))[4]
    assert {name: value.dtype for name, value in started.items()} == {
        name: value.dtype for name, value in stepped.items()
    }


def test_who_plays_is_checked_where_environments_can_rest():
    env = make_vec("pong", 4, "native", **SMALL)
    env.reset(seed=0)
    with pytest.raises(UsageError, match=r"playing has shape \(3,\)"):
        env.step(np.zeros(4, np.int64), np.ones(3, bool))
    env.close()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"num_envs": "8"}, "num_envs='8' is not an integer"),
        ({"num_envs": 2.5}, "num_envs=2.5 is not"),
        ({"num_envs": 2, "num_threads": -3}, "num_threads=-3 is below 0"),
    ],
)
def test_numbers_of_environments_and_threads_are_checked(words, says):
    with pytest.raises(UsageError, match=says):
        make_vec("pong", words.pop("num_envs"), "native", **words)
