"""RLlib steps parcade's environments, single and vector ones, and its PPO learns on them, on a local Ray."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import parcade
from parcade.errors import UsageError

ray = pytest.importorskip("ray")
pytest.importorskip("tree", reason="needs 'ray[rllib]'")
pytest.importorskip("lz4", reason="needs 'ray[rllib]'")

from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402

from parcade.integrations.rllib import make_env, register  # noqa: E402

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning", "ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "rllib_ppo.py"
SHORT = {"image_height": 42, "image_width": 42, "frame_limit": 200}


@pytest.fixture(scope="module", autouse=True)
def local_ray():
    ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=2)
    register()
    yield
    ray.shutdown()


def as_rllib_sees(observation):
    return np.moveaxis(observation, 0, -1) / np.float32(127.5) - 1


@pytest.mark.parametrize("mode", ["vector_entry_point", "sync"])
def test_rllibs_episodes_are_those_of_make_vec(mode):
    config = (
        PPOConfig()
        .environment("parcade/Breakout-v0", env_config=SHORT)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2, gym_env_vectorize_mode=mode)
        .debugging(seed=3)
    )
    algorithm = config.build_algo()
    runner = algorithm.env_runner
    episodes = runner.sample(num_episodes=6, random_actions=True)
    expected = parcade.make_vec("breakout", 2, **SHORT)
    first = expected.reset(seed=runner._seed)[0]
    for pair in zip(episodes[::2], episodes[1::2], strict=True):
        seen = [episode.get_observations() for episode in pair]
        assert all(len(observations) == 51 for observations in seen)
        assert all(np.allclose(seen[i][0], as_rllib_sees(first[i]), atol=1e-6) for i in (0, 1))
        for t in range(50):
            actions = np.array([episode.get_actions(t) for episode in pair])
            first, rewards, _, truncated, infos = expected.step(actions)
            after = infos.get("final_obs", first)
            for i, episode in enumerate(pair):
                assert np.allclose(seen[i][t + 1], as_rllib_sees(after[i]), atol=1e-6)
                assert episode.get_rewards(t) == rewards[i]
        assert truncated.all() and all(episode.is_truncated and not episode.is_terminated for episode in pair)
    algorithm.stop()


def test_rewards_are_clipped_where_asked_and_other_observations_are_vectors():
    env = make_env("space_invaders", {"num_envs": 2, "clip_rewards": True, "observations": "ram"})
    observations, _ = env.reset(seed=0)
    assert observations.shape == (2, 512) and env.single_observation_space.shape == (512,)
    assert env.observation_space.contains(observations) and observations.min() == -1 < observations.max()
    rewards = [env.step(np.ones(2, np.int64))[1] for _ in range(100)]
    assert set(np.unique(rewards)) == {0.0, 1.0}
    assert make_env("pong", {"preset": "karpathy_2016"}).observation_space.shape == (6400,)


@pytest.mark.parametrize("num_envs", [None, 2])
def test_frames_in_colour_are_images_whose_channels_are_colours_of_frames(num_envs):
    colour = {**SHORT, "observations": "rgb", "frame_stack": 2}
    env = make_env("pong", colour | ({"num_envs": num_envs} if num_envs else {}))
    expected = parcade.make_vec("pong", num_envs or 1, **colour).reset(seed=1)[0]
    observations, _ = env.reset(seed=1)
    observations = observations if num_envs else observations[None]
    assert observations.shape == (num_envs or 1, 42, 42, 6)
    for frame in range(2):
        seen, want = observations[..., 3 * frame : 3 * frame + 3], expected[:, frame]
        assert np.allclose(seen, want / np.float32(127.5) - 1, atol=1e-6)


def test_rllibs_cnn_takes_frames_in_colour():
    network = DefaultModelConfig(conv_filters=[[8, 8, 4], [8, 4, 2]], head_fcnet_hiddens=[16])
    config = (
        PPOConfig()
        .environment("parcade/Pong-v0", env_config={**SHORT, "observations": "rgb"})
        .env_runners(num_env_runners=0, rollout_fragment_length=8)
        .training(train_batch_size_per_learner=8, minibatch_size=8, num_epochs=1)
        .rl_module(model_config=network)
    )
    algorithm = config.build_algo()
    convolutions = [each for each in algorithm.get_module().modules() if isinstance(each, torch.nn.Conv2d)]
    assert convolutions[0].in_channels == 12
    algorithm.train()
    algorithm.stop()


def test_a_setting_that_does_not_exist_is_one_line():
    with pytest.raises(UsageError, match="unknown environment setting 'image_hight'; did you mean"):
        make_env("pong", {"image_hight": 42})


def test_environment_runners_in_other_processes_know_the_ids():
    config = (
        PPOConfig()
        .environment("parcade/TinyMemory-v0")
        .env_runners(num_env_runners=1, num_envs_per_env_runner=2, rollout_fragment_length=32)
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    )
    algorithm = config.build_algo()
    assert algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"] >= 64
    algorithm.stop()


def test_the_example_learns_a_tiny_task():
    example = runpy.run_path(str(EXAMPLE))
    scores = example["train"](example["make_config"]("tiny_catch", learning_rate=2.5e-3), 12_288)
    assert scores[-1] > 0.5 > -0.4 > scores[0]
