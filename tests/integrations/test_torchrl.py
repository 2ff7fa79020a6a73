"""TorchRL's own wrappers take parcade's environments as they are, and its PPO learns on them."""

import runpy
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import parcade
from parcade.integrations.gym import register

pytest.importorskip("torchrl")

with warnings.catch_warnings():  # torchrl warns of its own deprecated classes while it is imported
    warnings.simplefilter("ignore")
    from torchrl.envs import GymEnv, GymWrapper
    from torchrl.envs.utils import check_env_specs

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning"),
]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torchrl_ppo.py"
SMALL = {"image_height": 42, "image_width": 42}


@pytest.fixture(autouse=True)
def registered():
    register()


def vector(mode, **settings):
    envs = gymnasium.make_vec("parcade/Breakout-v0", 3, autoreset_mode=mode, **SMALL, **settings)
    return GymWrapper(envs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GymWrapper(parcade.make("pong", **SMALL)),
        lambda: GymWrapper(gymnasium.make("parcade/Pong-v0", observations="ram")),
        lambda: GymEnv("parcade/Pong-v0", **SMALL),
        lambda: GymEnv("parcade/Pong-v0", from_pixels=True, **SMALL),
        lambda: GymWrapper(parcade.make_vec("pong", 2, **SMALL)),
        lambda: GymWrapper(parcade.make_vec("pong", 2, "ale", **SMALL)),
        lambda: GymWrapper(parcade.make_vec(["pong", "breakout"], 2, **SMALL)),
        lambda: GymWrapper(parcade.make_vec("pong", 2, preset="karpathy_2016")),
        lambda: GymWrapper(parcade.make_vec("CartPole-v1", 2)),
        lambda: GymWrapper(parcade.make_vec("tiny_catch", 2)),
        lambda: vector("SameStep"),
        lambda: vector("Disabled"),
    ],
    ids=["make", "ram", "GymEnv", "pixels", "native", "ale", "mixed", "view", "gym", "tiny", "same", "off"],
)
def test_torchrls_checker_accepts(make):
    env = make()
    check_env_specs(env)
    env.close()


def test_gym_env_keeps_parcades_frame_skip():
    env = GymEnv("parcade/Pong-v0", **SMALL)
    env.reset()
    *_, info = env._env.step(0)
    assert info["frames"] == 4


@pytest.mark.parametrize(
    ("mode", "settings"), [("SameStep", {}), ("Disabled", {}), ("Disabled", {"frame_limit": 400})]
)
def test_transitions_are_those_of_make_vec_across_ends_of_episodes(mode, settings):
    env, expected = vector(mode, **settings), parcade.make_vec("breakout", 3, **SMALL, **settings)
    env.set_seed(7)  # resets; the reset after it continues the random streams
    expected.reset(seed=7)
    now = env.reset()
    want = expected.reset()[0]
    player, ends = np.random.default_rng(0), 0
    for _ in range(500):
        actions = player.integers(0, 4, 3)
        now["action"] = torch.nn.functional.one_hot(torch.from_numpy(actions), 4)
        assert np.array_equal(now["observation"].numpy(), want)
        played, now = env.step_and_maybe_reset(now)
        want, rewards, terminated, truncated, infos = expected.step(actions)
        seen, done = played["next"], terminated | truncated
        assert np.array_equal(seen["reward"].numpy()[:, 0], rewards)
        assert np.array_equal(seen["terminated"].numpy()[:, 0], terminated)
        assert np.array_equal(seen["truncated"].numpy()[:, 0], truncated)
        after = want.copy()
        after[done] = infos["final_obs"][done] if done.any() else 0
        assert np.array_equal(seen["observation"].numpy(), after)
        ends += done.sum()
        assert mode == "Disabled" or not done.all(), "TorchRL would reset all a second time"
    assert ends >= 6
    env.close()


def test_the_example_learns_a_tiny_task():
    example = runpy.run_path(str(EXAMPLE))
    scores = example["train"](example["make_env"]("tiny_catch"), 20_480, learning_rate=2.5e-3)
    assert scores[-1] > 0.6 > -0.4 > scores[0]


def test_the_example_plays_images():
    example = runpy.run_path(str(EXAMPLE))
    scores = example["train"](example["make_env"]("pong", frame_limit=200), 1024)
    assert scores and -4 < scores[0] <= 0
