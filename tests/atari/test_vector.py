"""Preprocessed consoles equal ale-py's AtariVectorEnv byte for byte."""

import secrets

import numpy as np
import pytest

from parcade.atari import VectorConsoles, preprocess

gymnasium = pytest.importorskip("gymnasium")
vector_env = pytest.importorskip("ale_py.vector_env")


@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("pong", {}),
        ("breakout", {"img_height": 42, "img_width": 42, "repeat_action_probability": 0.25}),
        ("breakout", {"img_height": 105, "img_width": 80, "max_num_frames_per_episode": 300}),
        ("seaquest", {"frameskip": 2, "stack_num": 2, "reward_clipping": False}),
        ("space_invaders", {"episodic_life": True}),
        ("ms_pacman", {"frameskip": 1, "stack_num": 1}),
        ("beam_rider", {"maxpool": False, "img_height": 42, "img_width": 42}),
        ("qbert", {"full_action_space": True, "noop_max": 7, "use_fire_reset": False}),
    ],
)
def test_observations_rewards_and_flags_equal_atari_vector_env(game, settings):
    seed = secrets.randbits(20)
    print(f"seed {seed}")
    n = 3
    expected = vector_env.AtariVectorEnv(game, n, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP, num_threads=1, **settings)
    consoles = VectorConsoles(game, n, num_threads=2, **settings)
    assert np.array_equal(expected.reset(seed=seed)[0], consoles.reset(seed=seed)[0])
    player = np.random.default_rng(seed)
    for _ in range(150):
        actions = player.integers(0, len(consoles.action_set), n)
        observations, rewards, terminated, truncated, infos = expected.step(actions)
        result = consoles.step(actions)
        assert np.array_equal(observations, result.observations)
        assert np.array_equal(rewards, result.rewards)
        assert np.array_equal(terminated, result.terminated)
        assert np.array_equal(truncated, result.truncated)
        assert np.array_equal(infos["lives"], result.lives)
        assert np.array_equal(infos["frame_number"], result.frame_number)
        ended = terminated | truncated
        if ended.any():
            assert np.array_equal(infos["final_obs"][ended], result.final_observations[ended])


def test_cached_starts_are_starts_that_ale_py_reached():
    settings = {"img_height": 42, "img_width": 42, "max_num_frames_per_episode": 120}
    expected = vector_env.AtariVectorEnv("breakout", 4, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP, num_threads=1, **settings)
    reached = {observation.tobytes() for observation in expected.reset(seed=0)[0]}
    assert len(reached) > 1  # the no-ops differ
    consoles = VectorConsoles("breakout", 6, start_states="cached", num_starts=4, **settings)
    seen = {observation.tobytes() for observation in consoles.reset(seed=11)[0]}
    assert len(seen) > 1
    ended = 0
    for step in range(70):
        result = consoles.step(np.full(6, step % 4))
        done = result.terminated | result.truncated
        seen |= {observation.tobytes() for observation in result.observations[done]}
        ended += done.sum()
    assert ended >= 6
    assert seen <= reached


def test_cached_starts_go_on_as_exact_ones_do():
    settings = {"img_height": 42, "img_width": 42}
    exact = VectorConsoles("pong", 1, **settings)
    cached = VectorConsoles("pong", 1, start_states="cached", num_starts=1, **settings)
    assert np.array_equal(exact.reset(seed=0)[0], cached.reset(seed=0)[0])
    for step in range(60):
        one, other = exact.step(np.array([step % 6])), cached.step(np.array([step % 6]))
        assert np.array_equal(one.observations, other.observations)
        assert np.array_equal(one.episode_frame_number, other.episode_frame_number)


@pytest.mark.parametrize("pal", [False, True])
def test_an_empty_picture_is_black(pal):
    """So a first observation, of one picture, is what its picture and an empty one would give, and rows of it may stay."""
    assert preprocess.grey_table(pal)[0] == 0


def test_an_unknown_way_to_start_is_refused():
    with pytest.raises(ValueError, match="expected 'exact' or 'cached'"):
        VectorConsoles("pong", 1, start_states="fast")
