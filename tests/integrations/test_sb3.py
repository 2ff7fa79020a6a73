"""Stable-Baselines3 learns on parcade's environments."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import parcade

pytest.importorskip("stable_baselines3")

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from parcade.envs.tiny import TinyCatch
from parcade.errors import UsageError
from parcade.integrations.sb3 import ParcadeVecEnv, make_vec

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sb3_ppo.py"
SMALL = {"image_height": 42, "image_width": 42, "frame_limit": 60, "noop_max": 0}


@pytest.mark.parametrize(
    ("game", "settings"),
    [("CartPole-v1", {}), ("pong", {"backend": "ale", "action_subset": (2, 3)}), ("tiny_catch", {})],
)
def test_every_seed_that_sb3_draws_is_accepted(game, settings):
    env = make_vec(game, 2, **settings)
    env.seed(2**32 - 2)
    env.reset()
    env.close()


def test_consoles_on_a_gpu_are_refused():
    with pytest.raises(UsageError, match="device 'cuda' is not for Stable-Baselines3"):
        make_vec("pong", 2, device="cuda")


def test_options_reach_the_next_reset_and_are_refused_where_they_mean_nothing():
    env = make_vec("CartPole-v1", 2)
    env.set_options({"low": 0.2, "high": 0.2})
    assert np.allclose(env.reset(), 0.2) and not np.allclose(env.reset(), 0.2)
    with pytest.raises(UsageError, match="differ"):
        env.set_options([{"low": 0.1}, {}])
    env.close()
    env = make_vec("tiny_catch", 2)
    env.set_options({"difficulty": 3})
    with pytest.raises(UsageError, match="difficulty"):
        env.reset()
    env.close()


def test_a_masked_reset_keeps_the_scores_of_games_that_continue():
    env = make_vec("breakout", 2, **{**SMALL, "frame_limit": 40})
    env.seed(0)
    env.reset()
    assert env.reset_infos == [{"lives": 5}] * 2
    for _ in range(2):
        env.step(np.array([2, 3]))
    env.set_options({"reset_mask": np.array([True, False])})
    env.reset()
    lengths = {}
    while len(lengths) < 2:
        _, _, dones, infos = env.step(np.array([2, 3]))
        lengths |= {i: infos[i]["episode"]["l"] for i in np.flatnonzero(dones) if i not in lengths}
    assert lengths[1] == lengths[0] == 10, "each its own ten steps"
    env.close()


def test_an_attribute_of_some_environments_is_refused():
    env = make_vec("tiny_catch", 2)
    env.set_attr("note", 5, indices=[0, 1])
    assert env.get_attr("note") == [5, 5]
    with pytest.raises(UsageError, match="all environments share it; leave out indices"):
        env.set_attr("note", 6, indices=[0])
    assert env.get_attr("note") == [5, 5]
    env.close()


def test_a_restored_state_with_fewer_lives_is_no_end():
    env = make_vec("breakout", 1, terminal_on_life_loss=True, **{**SMALL, "frame_limit": 4000})
    env.seed(3)
    env.reset()
    while env.step(np.array([1]))[3][0]["lives"] == 5:
        pass
    fewer = env.env_method("get_state")[0]
    env.reset()
    env.env_method("set_state", fewer)
    _, _, dones, infos = env.step(np.array([0]))
    assert infos[0]["lives"] == 4 and not dones[0]
    env.close()


def test_a_vec_env_plays_what_make_vec_plays_with_sb3s_infos():
    env, expected = make_vec("breakout", 3, **SMALL), parcade.make_vec("breakout", 3, **SMALL)
    assert isinstance(env, VecEnv) and env.num_envs == 3
    env.seed(7)
    assert np.array_equal(env.reset(), expected.reset(seed=7)[0])
    player, ends = np.random.default_rng(0), 0
    for _ in range(40):
        actions = player.integers(0, 4, 3)
        observations, rewards, dones, infos = env.step(actions)
        want = expected.step(actions)
        assert np.array_equal(observations, want[0]) and np.array_equal(rewards, want[1])
        for i in np.flatnonzero(dones):
            ends += 1
            assert np.array_equal(infos[i]["terminal_observation"], want[4]["final_obs"][i])
            assert infos[i]["TimeLimit.truncated"] and 0 < infos[i]["episode"]["l"] <= 15
    assert ends >= 6
    assert env.env_is_wrapped(Monitor) == [True] * 3 and env.get_attr("num_envs", [0, 2]) == [3, 3]
    assert [image.shape for image in env.get_images()] == [(210, 160, 3)] * 3
    assert env.render_mode == "rgb_array" and env.render("rgb_array").shape[-1] == 3
    assert env.env_method("render", indices=[1])[0].shape == (210, 160, 3)
    assert env.get_attr("action_space") == [env.action_space] * 3
    assert not env.has_attr("no_such_thing")
    assert env.metadata["render_fps"] == 15  # VecVideoRecorder reads it here
    env.close()


def test_frames_in_colour_are_images_whose_channels_are_colours_of_frames():
    colour = {**SMALL, "observations": "rgb", "frame_stack": 2}
    env, expected = make_vec("breakout", 2, **colour), parcade.make_vec("breakout", 2, **colour)
    env.seed(7)

    def as_expected(seen, want):
        return all(np.array_equal(seen[:, i], want[:, i // 3, ..., i % 3]) for i in range(6))

    want, _ = expected.reset(seed=7)
    assert as_expected(env.reset(), want) and env.observation_space.shape == (6, 42, 42)
    dones = np.zeros(2, bool)
    while not dones.any():
        observations, _, dones, infos = env.step(np.array([1, 2]))
        want, *_, raw = expected.step(np.array([1, 2]))
        assert as_expected(observations, want)
    assert as_expected(np.stack([info["terminal_observation"] for info in infos]), raw["final_obs"])
    state = env.env_method("get_state")[0]
    assert env.env_method("set_state", state)[0].shape == (2, 6, 42, 42)
    env.close()


@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")
def test_sb3s_cnn_takes_frames_in_colour():
    env = make_vec("pong", 2, observations="rgb", **SMALL)
    learner = PPO("CnnPolicy", env, n_steps=4, batch_size=8, n_epochs=1).learn(8)
    assert learner.policy.features_extractor.cnn[0].in_channels == 12
    env.close()


def test_a_lost_life_is_an_end_for_the_learner_where_asked_and_the_game_continues_as_in_sb3():
    ours = make_vec("breakout", 1, terminal_on_life_loss=True, noop_max=0, fire_reset=False)
    theirs = make_atari_env("BreakoutNoFrameskip-v4", 1, seed=0)
    for env, frames in ((ours, "ours"), (theirs, "theirs")):
        env.reset()
        lives, games = [], []
        while len(lives) < 7:
            observations, _, dones, infos = env.step([1])  # FIRE only: the ball is lost again and again
            if dones[0]:
                lives.append(infos[0]["lives"])
                games += [infos[0]["episode"]["l"]] if "episode" in infos[0] else []
                assert infos[0]["terminal_observation"].shape == observations[0].shape, frames
                assert not infos[0].get("TimeLimit.truncated")
        env.close()
        assert lives[:4] == [4, 3, 2, 1] and lives[5:] == [4, 3], frames
        assert len(games) == 1, frames  # scores are of complete games
    with pytest.raises(UsageError, match="leave one out"):
        make_vec("breakout", 1, terminal_on_life_loss=True, ale_compat=True)


def test_a_last_life_that_is_counted_as_none_is_no_end_as_in_sb3():
    class Counting(TinyCatch):
        """Lives go from 2 to 0, and the episode continues, as in Bank Heist."""

        def _infos(self, frames):
            return super()._infos(frames) | {"lives": np.maximum(2 - self.clock, 0)}

    env = ParcadeVecEnv(Counting(1), terminal_on_life_loss=True)
    env.reset()
    assert [bool(env.step([1])[2][0]) for _ in range(5)] == [True, False, False, False, True]
    env.close()


def test_rewards_are_clipped_where_asked_and_scores_stay_raw():
    settings = {**SMALL, "frame_limit": 4000}
    raw = make_vec("space_invaders", 4, **settings)
    clipped = make_vec("space_invaders", 4, clip_rewards=True, **settings)
    points, signs = 0.0, 0.0
    for env in (raw, clipped):
        env.seed(0)
        env.reset()
    for _ in range(200):
        points += raw.step(np.ones(4, np.int64))[1].sum()
        signs += clipped.step(np.ones(4, np.int64))[1].sum()
    assert points >= 5 * signs > 0


@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")
def test_the_example_solves_a_tiny_task():
    learner = runpy.run_path(str(EXAMPLE))["make_learner"]("tiny_catch", learning_rate=2.5e-3)
    before, _ = evaluate_policy(learner, make_vec("tiny_catch", 8), 50)
    learner.learn(20_000)
    after, _ = evaluate_policy(learner, make_vec("tiny_catch", 8), 50)
    assert after > 0.8 > before
    assert len(learner.ep_info_buffer) == 100
