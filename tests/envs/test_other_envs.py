"""Gymnasium ids and the built-in tasks follow the conventions of the Atari backends."""

import gymnasium
import numpy as np
import pytest

from parcade import make_vec
from parcade.envs.tiny import TINY_TASKS
from parcade.errors import UsageError

pytestmark = pytest.mark.quick


def test_cartpole_ends_in_the_same_step_and_shows_its_final_observation():
    env = make_vec("CartPole-v1", 3)
    env.reset(seed=np.array([1, 2, 3]))
    for _ in range(60):
        observations, rewards, terminated, _, infos = env.step(np.ones(3, np.int64))
        assert (infos["frames"] == 1).all() and (rewards == 1).all()
        if terminated.any():
            i = int(np.flatnonzero(terminated)[0])
            assert abs(infos["final_obs"][i][2]) > 0.2 > abs(observations[i][2])
            break
    else:
        raise AssertionError("the pole never fell")
    env.close()


def test_a_box_of_actions_is_accepted_and_other_spaces_are_refused():
    env = make_vec("MountainCarContinuous-v0", 2)
    env.reset(seed=0)
    assert env.step(np.ones((2, 1), np.float32))[0].shape == (2, 2)
    gymnasium.register("Pairs-v0", lambda: PairsEnv())
    with pytest.raises(
        UsageError, match="Pairs-v0 has actions MultiDiscrete.*: expected Discrete actions from 0"
    ):
        make_vec("Pairs-v0", 1)
    del gymnasium.registry["Pairs-v0"]


class PairsEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.MultiDiscrete([2, 2])


@pytest.mark.parametrize("task", TINY_TASKS)
def test_a_tiny_task_goes_on_exactly_from_its_state(task):
    env, other = make_vec(task, 4), make_vec(task, 4)
    env.reset(seed=7), other.reset(seed=99)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(40)]
    for row in actions[:13]:
        env.step(row)
    other.set_state(env.get_state())
    for row in actions[13:]:
        for a, b in zip(env.step(row)[:4], other.step(row)[:4], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("task", TINY_TASKS)
def test_environments_of_a_tiny_task_rest_and_restart_one_by_one(task):
    env, other = make_vec(task, 2), make_vec(task, 2)
    before, _ = env.reset(seed=7)
    other.reset(seed=7)
    actions = np.ones(env.action_space.shape, env.action_space.dtype)
    for _ in range(12):
        observations, rewards, terminated, truncated, infos = env.step(actions, [True, False])
        want = other.step(actions)
        assert np.array_equal(observations[1], before[1]) and infos["frames"].tolist() == [1, 0]
        assert not (rewards[1] or terminated[1] or truncated[1])
        for mine, theirs in zip((observations, rewards, terminated, truncated), want[:4], strict=True):
            assert np.array_equal(mine[0], theirs[0])
    clock = env.clock.tolist()
    env.step(actions)
    env.reset(options={"reset_mask": np.array([True, False])})
    assert env.clock.tolist() == [0, clock[1] + 1]


def test_catch_is_won_by_walking_under_the_ball_and_lost_by_walking_away():
    env = make_vec("tiny_catch", 8)
    for sign, score in ((1, 1.0), (-1, -1.0)):
        env.reset(seed=0)
        for _ in range(5):
            actions = 1 + sign * np.sign(env.ball - env.paddle)
            _, rewards, terminated, _, _ = env.step(
                np.where(env.ball == env.paddle, 1 if sign > 0 else 2, actions)
            )
        assert terminated.all()
        if sign > 0:
            assert (rewards == score).all()
        else:
            assert (rewards == score).any()


def test_memory_is_won_by_the_cue_alone():
    env = make_vec("tiny_memory", 8)
    observations, _ = env.reset(seed=0)
    cue = (observations[:, 1] > 0).astype(np.int64)
    for _ in range(4):
        _, rewards, terminated, _, infos = env.step(cue)
    assert terminated.all() and (rewards == 1).all() and infos["_final_obs"].all()
    assert 0 < cue.sum() < 8
