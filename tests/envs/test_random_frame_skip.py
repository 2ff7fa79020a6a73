"""Steps of a random number of frames, as in Gym's Pong-v0."""

import contextlib

import numpy as np
import pytest

import parcade
from parcade.algorithms.ppo import PPOConfig
from parcade.atari.settings import VectorSettings
from parcade.atari.vector import VectorConsoles
from parcade.config import RunConfig, TrainConfig
from parcade.duels.observation import check_has_sides
from parcade.envs import make_vec
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError
from parcade.evaluate import played_frames
from parcade.integrations.gym import make
from parcade.suite.protocols import PROTOCOLS, check_agent
from parcade.train import run_training, start_run
from parcade.web.stage import Stage

SKIPS = {"image_height": 42, "image_width": 42, "frame_skip": 2, "frame_skip_to": 4}


def test_a_step_has_each_number_of_frames_as_often():
    env = make_vec("pong", 8, **SKIPS)
    env.reset(seed=1)
    frames = np.array([env.step(np.zeros(8, np.int64))[4]["frames"] for _ in range(200)])
    counts = np.bincount(frames.ravel(), minlength=5)
    assert counts[:2].sum() == 0 and counts.sum() == 1600 and len(counts) == 5
    assert (np.abs(counts[2:] - 1600 / 3) < 90).all()  # five deviations
    assert (frames[:, 0] != frames[:, 1]).any()
    env.close()


def clocks_and_frames(consoles):
    return consoles.observations, consoles.captured, consoles.elapsed, consoles.counted


@pytest.mark.parametrize("game", ["breakout", "seaquest"])
def test_a_step_is_that_of_a_fixed_number_of_frames(game):
    """The same consoles with steps of 2, 3 and 4 frames show the same, from every state."""
    draw = np.random.default_rng(4)
    settings = {"img_height": 42, "img_width": 42, "repeat_action_probability": 0.25}
    random = VectorConsoles(game, 1, frameskip=2, frameskip_to=4, **settings)
    fixed = {frames: VectorConsoles(game, 1, frameskip=frames, **settings) for frames in (2, 3, 4)}
    random.reset(3)
    for each in fixed.values():
        each.reset(3)
    seen = set()
    for _ in range(150):
        saved = {name: array.copy() for name, array in random.arrays.items()}
        rest = [array.copy() for array in clocks_and_frames(random)]
        actions = draw.integers(0, len(random.action_set), 1)
        result = random.step(actions)
        frames = int(result.frames[0])
        other = fixed[frames]
        for name, array in other.arrays.items():
            array[:] = saved[name]
        for array, values in zip(clocks_and_frames(other), rest, strict=True):
            array[:] = values
        expected = other.step(actions)
        assert np.array_equal(result.observations, expected.observations)
        assert result.rewards == expected.rewards and result.frames == expected.frames
        seen.add(frames)
    assert seen == {2, 3, 4}
    for each in (random, *fixed.values()):
        each.close()


def test_a_saved_state_goes_on_with_the_same_numbers_of_frames():
    env, other = make_vec("pong", 3, **SKIPS), make_vec("pong", 3, **SKIPS)
    env.reset(seed=5), other.reset(seed=6)
    for _ in range(20):
        env.step(np.array([0, 2, 3]))
    other.set_state(env.get_state())
    for _ in range(20):
        (a, *_, infos), (b, *_, others) = env.step(np.array([3, 2, 0])), other.step(np.array([3, 2, 0]))
        assert np.array_equal(a, b) and np.array_equal(infos["frames"], others["frames"])
    env.close(), other.close()


def test_an_episode_that_is_cut_ends_within_its_limit():
    env = make_vec("pong", 4, **SKIPS, frame_limit=31, noop_max=0, fire_reset=False)
    env.reset(seed=0)
    played = np.zeros(4, int)
    for _ in range(60):
        *_, terminated, truncated, infos = env.step(np.zeros(4, np.int64))
        played += infos["frames"]
        assert not terminated.any() and (played[truncated] == 31).all() and (played[~truncated] < 31).all()
        played[truncated] = 0
    env.close()


def test_a_trained_agent_is_shown_frame_by_frame(tmp_path):
    env = EnvSettings(**SKIPS, frame_limit=200)
    hyper = PPOConfig(num_envs=4, unroll_length=16, epochs=1, num_minibatches=2)
    config = TrainConfig("pong", RunConfig(total_frames=400, run_dir=str(tmp_path / "run")), env, hyper)
    run_training(config, start_run(config))
    agent = parcade.load(tmp_path / "run")
    with contextlib.closing(Stage(agent)) as stage:
        counts = []
        for _ in range(1000):
            moment = stage.step()
            if moment.ended:
                break
            counts.append(len(moment.pictures))
            assert moment.observation.shape == (4, 42, 42)
        assert set(counts) == {2, 3, 4} and 190 < sum(counts) < 200
    with contextlib.closing(played_frames(agent)) as played:
        pictures = [next(played)[0] for _ in range(50)]
    assert len({picture.tobytes() for picture in pictures}) > 25
    with pytest.raises(UsageError, match="frame_skip=4, but the agent learned with 2 to 4"):
        check_agent(agent.config.env, "pong", PROTOCOLS["null-op-30min"])
    with pytest.raises(UsageError, match="random numbers of frames"):
        check_has_sides(env)


def test_the_consoles_settings_are_checked_too():
    for wrong in ({"frameskip": 2, "frameskip_to": 3.5}, {"continuous_action_threshold": 1.5}):
        with pytest.raises(ValueError, match=list(wrong)[-1]):
            VectorSettings(**wrong)


@pytest.mark.parametrize("skips", [(4, 4), (4, 3), (1, 4), (2, 2)])
def test_bounds_that_are_none_are_refused(skips):
    with pytest.raises(UsageError, match="frame_skip_to"):
        EnvSettings(frame_skip=skips[0], frame_skip_to=skips[1])
    with pytest.raises(ValueError, match="frameskip_to"):
        VectorSettings(frameskip=skips[0], frameskip_to=skips[1])


def test_consoles_on_a_gpu_have_fixed_steps():
    with pytest.raises(UsageError, match="frame_skip_to is for consoles on the CPU"):
        make_vec("pong", 1, device="cuda", **SKIPS)


def test_pictures_are_shown_at_the_mean_speed():
    for game, settings in (("Pong-v0", {}), ("pong", {"frame_skip": 2, "frame_skip_to": 4})):
        env = make(game, **settings)
        assert env.metadata["render_fps"] == 20
        env.close()
