"""The ale backend against ale-py itself: seeds, frames, lives, truncation, autoreset, views."""

import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from parcade import make_vec
from parcade.envs.settings import ENV_PRESETS, EnvSettings, in_colour
from parcade.envs.views import karpathy_difference
from parcade.errors import UsageError

SEEDS = np.array([11, 22], np.int32)


def actions_for(env, steps, seed=0):
    return np.random.default_rng(seed).integers(0, int(env.single_action_space.n), (steps, env.num_envs))


def play(env, steps, seed=0):
    """All outputs of an env over some steps of random play, starting with the reset."""
    observations, infos = env.reset(seed=SEEDS[: env.num_envs])
    told = [(observations, infos)]
    for actions in actions_for(env, steps, seed):
        told.append(env.step(actions))
    return told


@pytest.fixture(scope="module")
def short_pong():
    """Two environments of Pong with episodes of 400 frames, over several episodes."""
    env = make_vec("pong", 2, image_height=42, image_width=42, frame_limit=400)
    yield play(env, 230)
    env.close()


def test_observations_and_rewards_are_those_of_ale_py(short_pong):
    env = AtariVectorEnv(
        "pong",
        2,
        img_height=42,
        img_width=42,
        max_num_frames_per_episode=400,
        reward_clipping=False,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    expected = [env.reset(seed=SEEDS.astype(np.int64))]
    for actions in np.random.default_rng(0).integers(0, 6, (230, 2)):
        expected.append(env.step(actions))
    for ours, theirs in zip(short_pong, expected, strict=True):
        for a, b in zip(ours[:-1], theirs[:-1], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_frame_limit_truncates_and_does_not_terminate(short_pong):
    terminated = np.array([step[2] for step in short_pong[1:]])
    truncated = np.array([step[3] for step in short_pong[1:]])
    assert not terminated.any()
    assert np.flatnonzero(truncated[:, 0]).tolist() == [99, 199]


def test_the_final_observation_comes_with_the_end_of_a_game(short_pong):
    ending = short_pong[100]
    assert ending[4]["_final_obs"].tolist() == [True, True]
    assert ending[4]["final_obs"].shape == ending[0].shape
    assert (ending[4]["final_obs"] != ending[0]).any()
    assert all("final_obs" not in step[4] for step in short_pong[1:100])


def test_frames_are_counted_as_emulated_and_restarts_apart(short_pong):
    first_reset = short_pong[0][1]["reset_frames"]
    assert (first_reset >= 1).all() and (first_reset <= 30).all()
    for i, step in enumerate(short_pong[1:], 1):
        assert (step[4]["frames"] == 4).all()
        assert (step[4]["reset_frames"] > 0).tolist() == [i % 100 == 0] * 2


def test_the_same_seed_plays_the_same_game_alone_or_with_others(short_pong):
    alone = make_vec("pong", 1, image_height=42, image_width=42, frame_limit=400)
    observations, _ = alone.reset(seed=SEEDS[1:])
    np.testing.assert_array_equal(observations[0], short_pong[0][0][1])
    for actions, step in zip(np.random.default_rng(0).integers(0, 6, (230, 2)), short_pong[1:], strict=True):
        observations, *_ = alone.step(actions[1:])
        np.testing.assert_array_equal(observations[0], step[0][1])
    alone.close()


def test_a_life_is_lost_while_the_game_goes_on():
    env = make_vec("breakout", 1, image_height=42, image_width=42)
    lives = [int(env.reset(seed=SEEDS[:1])[1]["lives"][0])]
    ended = []
    for actions in actions_for(env, 300):
        _, _, terminated, truncated, infos = env.step(actions)
        lives.append(int(infos["lives"][0]))
        ended.append(bool(terminated[0] | truncated[0]))
    env.close()
    lost = [i for i in range(len(ended)) if lives[i + 1] < lives[i]]
    assert lives[0] == 5 and lost and any(not ended[i] for i in lost)


def test_the_colour_env_plays_the_same_games():
    settings = EnvSettings(image_height=42, image_width=42, frame_limit=120)
    grey, colour = (make_vec("pong", 1, settings=s) for s in (settings, in_colour(settings)))
    for a, b in zip(play(grey, 70), play(colour, 70), strict=True):
        if len(a) == 5:
            np.testing.assert_array_equal(a[1], b[1])
            np.testing.assert_array_equal(a[3], b[3])
    assert colour.single_observation_space.shape == (1, 210, 160, 3)
    grey.close(), colour.close()


def test_karpathys_view_is_his_arithmetic():
    frames = np.full((2, 2, 210, 160), 87, np.uint8)  # the court
    frames[:, :, 34] = 107
    frames[0, 0, 101, 40] = 236  # the ball in the previous frame; 101 - 35 and 40 are even, so it is sampled
    frames[0, 1, 103, 44] = 236  # the ball now
    frames[1, 0] = 0  # the first frame of an episode has no previous one
    difference = karpathy_difference(frames)
    assert difference.shape == (2, 80, 80)
    assert difference[0, (101 - 35) // 2, 20] == -1 and difference[0, (103 - 35) // 2, 22] == 1
    assert np.abs(difference[0]).sum() == 2 and not difference[1].any()


def test_karpathys_preset_moves_the_paddle_with_its_two_actions():
    env = make_vec("pong", 1, settings=ENV_PRESETS["karpathy_2016"])
    assert env.single_observation_space.shape == (80, 80) and env.single_action_space.n == 2
    env.reset(seed=SEEDS[:1])
    moved = [np.abs(env.step(np.array([t // 10 % 2]))[0]).sum() for t in range(60)]
    env.close()
    assert max(moved[5:]) > 0 and set(np.unique(moved)) != {0}


def test_an_action_subset_beyond_the_games_actions_is_refused():
    with pytest.raises(UsageError, match="expected actions of this game, 0 to 5"):
        make_vec("pong", 1, action_subset=(2, 6), image_height=42, image_width=42)


def test_machados_preset_has_all_actions():
    env = make_vec("pong", 1, preset="machado_2018", image_height=42, image_width=42)
    assert env.single_action_space.n == 18
    env.close()
