"""Vectors of consoles with continuous actions, against ale-py's and in training."""

import contextlib

import numpy as np
import pytest

import parcade
from parcade.algorithms.a2c import A2CConfig
from parcade.algorithms.dqn import DQNConfig
from parcade.algorithms.ppo import PPOConfig
from parcade.atari.joystick import ACTION_BITS, ACTION_ID
from parcade.config import RunConfig, TrainConfig
from parcade.duels.observation import check_has_sides
from parcade.envs import make_vec
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError
from parcade.evaluate import evaluate, played_frames
from parcade.integrations.gym import make
from parcade.train import run_training, start_run
from parcade.web.stage import Stage

SMALL = {"image_height": 42, "image_width": 42, "continuous_actions": True}


@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("breakout", {"sticky_actions": 0.25}),
        ("pong", {"action_threshold": 0.2, "frame_limit": 300}),
        ("seaquest", {"frame_skip": 3}),
        ("kaboom", {"action_threshold": 0.7, "preset": "machado_2018"}),
    ],
)
def test_it_equals_ale_pys_vector_environment(game, settings):
    """Seeds and actions are random; a failure shows the seed."""
    seed = int(np.random.SeedSequence().generate_state(1)[0]) >> 1
    draw = np.random.default_rng(seed)
    ale, native = (make_vec(game, 2, backend, **SMALL, **settings) for backend in ("ale", "native"))
    assert ale.single_action_space == native.single_action_space
    low, high = native.action_space.low, native.action_space.high
    assert (ale.reset(seed=seed)[0] == native.reset(seed=seed)[0]).all()
    for step in range(250):
        actions = draw.uniform(low, high).astype(np.float32)
        one, other = ale.step(actions), native.step(actions)
        for a, b in zip(one[:4], other[:4], strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}, step {step}")
    ale.close(), native.close()


@pytest.mark.parametrize("game", ["skiing", "lost_luggage"])
def test_a_pressed_button_does_nothing_where_the_game_has_none(game):
    pressed, released = (make_vec(game, 1, **SMALL) for _ in range(2))
    pressed.reset(seed=1), released.reset(seed=1)
    for _ in range(20):
        a, b = pressed.step(np.array([[1, 0, 1]])), released.step(np.array([[0, 0, 0]]))
        assert (a[0] == b[0]).all()
    pressed.close(), released.close()
    with pytest.raises(UsageError, match=f"waits for ever when {game} is sent a pressed button"):
        make_vec(game, 1, "ale", **SMALL)


def test_asynchronous_environments_play_the_same():
    draw = np.random.default_rng(2)
    rounds, queued = make_vec("breakout", 2, **SMALL), make_vec("breakout", 2, **SMALL, batch_size=2)
    rounds.reset(seed=3), queued.reset(seed=3)
    for _ in range(30):
        actions = draw.uniform(rounds.action_space.low, rounds.action_space.high)
        expected = rounds.step(actions)[0]
        observations, *_, infos = queued.step(actions, np.arange(2))
        assert (observations == expected[infos["env_id"]]).all()
    with pytest.raises(UsageError, match=r"shape \(2,\); expected \[2, 3\]"):
        queued.send(np.array([0, 1]), np.arange(2))
    rounds.close(), queued.close()


def test_games_of_different_action_sets_take_the_same_continuous_actions():
    mixed, alone = make_vec(["pong", "skiing"], 2, **SMALL), make_vec("skiing", 1, **SMALL)
    assert mixed.single_action_space.shape == (3,)
    mixed.reset(seed=np.array([1, 2])), alone.reset(seed=np.array([2]))
    for _ in range(20):
        mixed.step(np.array([[1, 0, 0], [1, 3, 0]])), alone.step(np.array([[1, 3, 0]]))
    assert (mixed.step(np.zeros((2, 3)))[0][1] == alone.step(np.zeros((1, 3)))[0][0]).all()
    mixed.close(), alone.close()


def test_one_environment_has_continuous_actions_without_names():
    env = make("pong", continuous_actions=True)
    assert env.action_space.shape == (3,)
    assert env.get_action_meanings() == [] and env.get_keys_to_action() == {}
    env.reset(seed=0)
    with pytest.raises(UsageError, match=r"shape \(1,\); expected \[1, 3\]"):
        env.step(2)
    with pytest.raises(UsageError, match="finite"):
        env.step(np.array([np.nan, 0, 0]))
    assert env.step(np.array([1, 0, 0]))[4]["frames"] == 4
    env.close()


@pytest.mark.parametrize(
    ("run", "hyper", "says"),
    [
        (
            {"algorithm": "dqn"},
            DQNConfig(),
            "dqn needs Discrete actions; pong has continuous_actions; use one",
        ),
        ({"algorithm": "a2c", "device": "cuda", "env_device": "cuda"}, A2CConfig(), "or device 'cpu'"),
    ],
)
def test_runs_that_cannot_have_them_are_refused(run, hyper, says):
    with pytest.raises(UsageError, match=says):
        TrainConfig("pong", RunConfig(**run), EnvSettings(**SMALL), hyper)


def test_settings_that_contradict_them_are_refused():
    with pytest.raises(UsageError, match="continuous actions are no set"):
        make_vec("pong", 1, continuous_actions=True, action_subset=(1, 2))
    with pytest.raises(UsageError, match="for consoles on the CPU"):
        make_vec("pong", 1, device="cuda", continuous_actions=True)
    with pytest.raises(UsageError, match="tiny_aim is not an Atari game and has no continuous_actions"):
        make_vec("tiny_aim", 1, continuous_actions=True)
    with pytest.raises(UsageError, match="here it is continuous_actions"):
        make_vec("pong", 1, continuous=True)
    with pytest.raises(UsageError, match="action_threshold"):
        EnvSettings(action_threshold=1.5)
    with pytest.raises(UsageError, match="agents with a set of actions"):
        check_has_sides(EnvSettings(**SMALL))


def test_consoles_get_ids_and_strengths():
    env = make_vec("breakout", 2, **SMALL)
    env.reset(seed=0)
    env.step(np.array([[0.75, np.pi, 0], [1, 0, 1]]))
    actions = env._consoles._actions
    assert (actions & ACTION_ID).tolist() == [4, 11]
    assert (actions >> ACTION_BITS).tolist() == [23_000 - 17_250, 0]
    env.close()


def test_a_trained_agent_is_evaluated_and_filmed(tmp_path):
    env = EnvSettings(**SMALL, frame_limit=200, action_threshold=0.4)
    hyper = PPOConfig(num_envs=4, unroll_length=16, epochs=1, num_minibatches=2)
    run = RunConfig(total_frames=512, run_dir=str(tmp_path / "run"))
    config = TrainConfig("pong", run, env, hyper)
    run_training(config, start_run(config))
    agent = parcade.load(tmp_path / "run")
    assert agent.config.env == env
    with contextlib.closing(played_frames(agent, greedy=True)) as played:
        first, *_, last = (next(played) for _ in range(51))
    assert last[2] and not np.array_equal(first[0], last[0])
    assert last[1] == evaluate(agent, episodes=1, greedy=True)["scores"][0]
    with pytest.raises(UsageError, match="has continuous actions"):
        Stage(agent)
