"""parcade's games in Gymnasium's registry: single and vector environments, rendering, ways to restart."""

import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import (
    ClipReward,
    DictInfoToList,
    DtypeObservation,
    FlattenObservation,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    RescaleObservation,
)

import parcade
from parcade.atari.games import load_games
from parcade.envs.settings import ENV_PRESETS, in_colour
from parcade.errors import UsageError
from parcade.integrations.gym import env_id, make_registered_vec, register

SMALL = {"image_height": 42, "image_width": 42}
SHORT = {"frame_limit": 60, "noop_max": 0, **SMALL}


@pytest.fixture(autouse=True)
def registered():
    register()


def test_every_game_is_registered():
    assert all(env_id(game) in gymnasium.registry for game in load_games())
    assert env_id("space_invaders") == env_id("ALE/SpaceInvaders-v5") == "parcade/SpaceInvaders-v0"
    assert env_id("tiny_catch") == "parcade/TinyCatch-v0"


@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")
@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_gymnasiums_checker_accepts_a_single_environment_and_its_render_modes(render_mode, monkeypatch):
    pytest.importorskip("pygame")  # the checker opens a window, too
    monkeypatch.setitem(os.environ, "SDL_VIDEODRIVER", "dummy")
    env = gymnasium.make("parcade/Breakout-v0", render_mode=render_mode, **SMALL)
    check_env(env.unwrapped)
    env.close()


@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "settings"),
    [("Breakout", {"observations": "ram"}), ("Breakout", {"backend": "ale", **SMALL}), ("TinyCatch", {})],
    ids=["ram", "ale", "tiny"],
)
def test_gymnasiums_checker_accepts_an_environment_that_cannot_render(name, settings):
    env = gymnasium.make(f"parcade/{name}-v0", **settings)
    assert env.metadata["render_modes"] == []
    check_env(env.unwrapped)
    env.close()


def test_a_single_environment_plays_what_the_vector_one_plays_and_waits_for_reset():
    env, envs = gymnasium.make("parcade/Pong-v0", **SHORT), parcade.make_vec("pong", 1, **SHORT)
    seen, _ = env.reset(seed=4)
    expected, _ = envs.reset(seed=4)
    assert np.array_equal(seen, expected[0])
    player, ends = np.random.default_rng(1), 0
    for _ in range(40):
        action = int(player.integers(env.action_space.n))
        observation, reward, terminated, truncated, info = env.step(action)
        want = envs.step(np.array([action]))
        assert (reward, terminated, truncated) == (want[1][0], want[2][0], want[3][0])
        if not (terminated or truncated):
            assert np.array_equal(observation, want[0][0]) and info["frames"] == 4
            continue
        ends += 1
        assert np.array_equal(observation, want[4]["final_obs"][0])
        with pytest.raises(UsageError, match="the episode is over; call reset first"):
            env.step(0)
        observation, info = env.reset()
        assert np.array_equal(observation, want[0][0]) and info["frames"] == 0
    assert ends >= 2


def test_a_reset_in_the_middle_of_an_episode_starts_another():
    env = parcade.make("breakout", **SMALL)
    first, _ = env.reset(seed=1)
    for _ in range(5):
        env.step(2)
    again, info = env.reset()
    assert info["lives"] == 5 and again.shape == first.shape
    assert np.array_equal(env.reset(seed=1)[0], first)


@pytest.mark.parametrize(
    ("seed", "says"),
    [
        (-1, "seed=-1 is below 0"),
        (1.5, "seed=1.5 is not an integer"),
        ("x", "seed='x' is not an integer"),
        (2**32, "seed=4,294,967,296 is above 4,294,967,295"),
    ],
)
def test_a_wrong_seed_of_one_environment_is_refused(seed, says):
    env = parcade.make("tiny_catch")
    with pytest.raises(UsageError, match=says):
        env.reset(seed=seed)
    assert np.array_equal(env.reset(seed=np.int64(3))[0], env.reset(seed=3)[0])


def test_options_of_a_reset_after_the_end_of_an_episode_are_not_lost():
    pole, catch = parcade.make("CartPole-v1"), parcade.make("tiny_catch")
    for env in (pole, catch):
        env.reset(seed=0)
        while not env.step(0)[2]:
            pass
    assert np.allclose(pole.reset(options={"low": 0.2, "high": 0.2})[0], 0.2)
    with pytest.raises(UsageError, match="expected reset_mask alone"):
        catch.reset(options={"difficulty": 1})
    pole.close(), catch.close()


def test_rendered_frames_are_the_frames_of_an_environment_in_colour():
    env = gymnasium.make("parcade/Seaquest-v0", render_mode="rgb_array")
    coloured = parcade.make_vec("seaquest", 1, settings=in_colour(ENV_PRESETS["dqn_2015"]))
    env.reset(seed=2)
    coloured.reset(seed=2)
    for action in (1, 2, 5, 3, 1, 0, 4):
        env.step(action)
        expected = coloured.step(np.array([action]))[0]
        assert np.array_equal(env.render(), expected[0, 0])
    assert env.metadata["render_fps"] == 15


def test_a_window_shows_frames(monkeypatch):
    pygame = pytest.importorskip("pygame")
    monkeypatch.setitem(os.environ, "SDL_VIDEODRIVER", "dummy")
    env = parcade.make("pong", render_mode="human")
    env.reset(seed=0)
    env.step(0)
    shown = pygame.surfarray.array3d(pygame.display.get_surface())
    assert shown.shape == (640, 420, 3) and len(np.unique(shown.reshape(-1, 3), axis=0)) >= 3
    assert env.render() is None
    env.close()


def stepped(env, num_steps):
    """Play the same random actions in every environment that is given."""
    player = np.random.default_rng(3)
    for _ in range(num_steps):
        yield env.step(player.integers(0, env.single_action_space.n, env.num_envs))


def test_next_step_autoreset_shows_the_end_and_then_the_next_episode():
    same = gymnasium.make_vec("parcade/Breakout-v0", 3, **SHORT)
    later = gymnasium.make_vec("parcade/Breakout-v0", 3, autoreset_mode="NextStep", **SHORT)
    assert later.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    assert np.array_equal(same.reset(seed=1)[0], later.reset(seed=1)[0])
    for want, got in zip(stepped(same, 15), stepped(later, 15), strict=True):
        if want[3].any():
            break
        assert np.array_equal(want[0], got[0])
    assert got[3].all() and np.array_equal(got[0], want[4]["final_obs"]) and "final_obs" not in got[4]
    first, rewards, terminated, truncated, _ = later.step(np.full(3, 2))
    assert np.array_equal(first, want[0]) and not rewards.any() and not (terminated | truncated).any()
    assert np.array_equal(same.step(np.full(3, 2))[0], later.step(np.full(3, 2))[0])


def test_without_autoreset_a_mask_starts_the_next_episodes():
    same = gymnasium.make_vec("parcade/Breakout-v0", 3, **SHORT)
    envs = gymnasium.make_vec("parcade/Breakout-v0", 3, autoreset_mode="Disabled", **SHORT)
    same.reset(seed=1)
    envs.reset(seed=1)
    for want, got in zip(stepped(same, 15), stepped(envs, 15), strict=True):
        assert np.array_equal(want[3], got[3])
        if want[3].any():
            break
    with pytest.raises(UsageError, match=r"episodes of environments 0, 1, 2 are over; call reset"):
        envs.step(np.zeros(3, np.int64))
    observations, _ = envs.reset(options={"reset_mask": np.ones(3, bool)})
    assert np.array_equal(observations, want[0])
    for _ in range(3):
        assert np.array_equal(envs.step(np.ones(3, np.int64))[0], same.step(np.ones(3, np.int64))[0])
    before = envs.step(np.ones(3, np.int64))[0]
    observations, infos = envs.reset(options={"reset_mask": np.array([False, True, False])})
    assert np.array_equal(observations[[0, 2]], before[[0, 2]])
    assert not np.array_equal(observations[1], before[1]) and infos["reset_frames"].tolist()[::2] == [0, 0]


@pytest.mark.parametrize("mode", ["Disabled", "NextStep"])
def test_an_episode_that_is_over_keeps_its_last_observation_while_others_are_reset(mode):
    envs, again = (gymnasium.make_vec("parcade/TinyCatch-v0", 3, autoreset_mode=mode) for _ in range(2))
    envs.reset(seed=1)
    *_, (last, _, terminated, _, _) = stepped(envs, 5)
    last, state = last.copy(), envs.get_state()
    assert terminated.all()
    assert np.array_equal(again.set_state(state), last)
    mask = np.array([False, True, False])
    for each in (envs, again):
        some, _ = each.reset(options={"reset_mask": mask})
        assert np.array_equal(some[~mask], last[~mask]) and not np.array_equal(some[mask], last[mask])
        if mode == "NextStep":
            rest, *_ = each.step(np.ones(3, np.int64))
        else:
            rest, _ = each.reset(options={"reset_mask": ~mask})
            assert np.array_equal(rest[mask], some[mask])
        assert (rest[~mask] == 255).any(axis=3)[:, 0, 0].all(), "balls are in the first row"
    with pytest.raises(UsageError, match=r"saved state: last is \(\); expected \(3, 1, 6, 5\)"):
        again.set_state({name: array for name, array in state.items() if name != "last"})


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_tiny_task_has_an_id_and_every_way_to_restart(mode):
    envs = gymnasium.make_vec("parcade/TinyCatch-v0", 2, autoreset_mode=mode)
    assert envs.autoreset_mode == mode
    envs.reset(seed=1)
    *_, (last, rewards, terminated, _, _) = stepped(envs, 5)
    assert terminated.all() and (np.abs(rewards) == 1).all()
    lowest = {AutoresetMode.SAME_STEP: 0}.get(mode, 5)
    assert (last == 255).any(axis=3)[:, 0].argmax(axis=1).tolist() == [lowest, lowest]
    if mode == AutoresetMode.DISABLED:
        first, _ = envs.reset(options={"reset_mask": np.ones(2, bool)})
    elif mode == AutoresetMode.NEXT_STEP:
        first, *_ = envs.step(np.zeros(2, np.int64))
    else:
        first = last
    assert (first == 255).any(axis=3)[:, 0, 0].all() and (first[:, 0, 5, 2] == 128).all()


@pytest.mark.parametrize("games", [["pong"], ("pong", "breakout")])
def test_a_single_environment_has_one_game(games):
    with pytest.raises(UsageError, match="expected a name, e.g. 'pong'; for several games use make_vec"):
        parcade.make(games)


def test_ales_name_of_the_frame_skip_is_a_type_error_as_torchrl_expects():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'frameskip'; did you mean"):
        parcade.make("pong", frameskip=1)


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_a_restored_environment_knows_which_episodes_are_over(output):
    envs, again = (
        gymnasium.make_vec("parcade/Breakout-v0", 2, autoreset_mode="Disabled", output=output, **SHORT)
        for _ in range(2)
    )
    envs.reset(seed=1)
    last, is_over = None, False
    while not is_over:
        last, _, _, truncated, _ = envs.step(np.ones(2, np.int64))
        is_over = bool(truncated.any())
    assert np.array_equal(again.set_state(envs.get_state()), last)
    with pytest.raises(UsageError, match="episodes of environments 0, 1 are over"):
        again.step(np.ones(2, np.int64))
    mask = {"reset_mask": np.ones(2, bool)}
    assert np.array_equal(again.reset(options=mask)[0], envs.reset(options=mask)[0])


def test_gymnasiums_vector_wrappers_work():
    env = RecordEpisodeStatistics(gymnasium.make_vec("parcade/Pong-v0", 2, **SHORT))
    env.reset(seed=0)
    infos = [infos for *_, infos in stepped(env, 20) if "episode" in infos]
    assert infos and (infos[0]["episode"]["l"] > 0).all()
    frames = gymnasium.make_vec("parcade/Pong-v0", 2, render_mode="rgb_array", **SMALL)
    frames.reset(seed=0)
    assert [frame.shape for frame in frames.render()] == [(210, 160, 3)] * 2


@pytest.mark.parametrize(
    ("wrap", "autoreset_mode"),
    [
        (NormalizeReward, "SameStep"),
        (DictInfoToList, "SameStep"),
        (lambda env: ClipReward(env, -1, 1), "SameStep"),
        (NormalizeObservation, "NextStep"),
        (FlattenObservation, "NextStep"),
        (lambda env: RescaleObservation(env, 0.0, 1.0), "NextStep"),
        (lambda env: DtypeObservation(env, np.float32), "Disabled"),
    ],
)
def test_each_vector_wrapper_plays_and_shows_its_spaces(wrap, autoreset_mode):
    """Gymnasium's observation wrappers refuse SameStep."""
    env = wrap(gymnasium.make_vec("parcade/Breakout-v0", 2, autoreset_mode=autoreset_mode, **SMALL))
    observations, infos = env.reset(seed=0)
    assert env.observation_space.contains(observations.astype(env.observation_space.dtype))
    for observations, rewards, *_, infos in stepped(env, 5):
        assert observations.shape == env.observation_space.shape and rewards.shape == (2,)
        lives = [info["lives"] for info in infos] if isinstance(infos, list) else infos["lives"]
        assert list(lives) == [5, 5]
    assert env.unwrapped.get_attr("spec")[0].id == "parcade/Breakout-v0" == env.spec.id
    env.close()


def test_attributes_of_the_environments_are_those_of_the_vector():
    """A view, here `action_subset`, and several games answer too."""
    envs = gymnasium.make_vec(
        "parcade/Pong-v0",
        3,
        render_mode="rgb_array",
        autoreset_mode="NextStep",
        action_subset=(2, 3),
        **SMALL,
    )
    envs.reset(seed=0)
    assert envs.unwrapped is envs and envs.num_envs == 3
    assert envs.get_attr("action_space") == (envs.single_action_space,) * 3
    assert envs.get_attr("render_mode") == ("rgb_array",) * 3
    assert [frame.shape for frame in envs.call("render")] == [(210, 160, 3)] * 3
    envs.set_attr("note", "mine")
    assert envs.get_attr("note") == ("mine",) * 3
    envs.set_attr("note", ["ours"] * 3)
    assert envs.get_attr("note") == ("ours",) * 3
    mixed = parcade.make_vec(["pong", "breakout"], 4, output="torch", **SMALL)
    assert mixed.get_attr("games") == ("pong", "pong", "breakout", "breakout")
    for env in (envs, mixed):
        env.close()


def test_a_single_environment_has_its_wrappers_attributes():
    env = gymnasium.make("parcade/Pong-v0", render_mode="rgb_array", **SMALL)
    assert env.spec.id == env.unwrapped.spec.id == "parcade/Pong-v0"
    assert env.has_wrapper_attr("render_mode") and env.get_wrapper_attr("action_space").n == 6
    env.set_wrapper_attr("note", 3)
    assert env.get_wrapper_attr("note") == 3
    again = gymnasium.make(env.spec)
    assert np.array_equal(again.reset(seed=1)[0], env.reset(seed=1)[0])
    env.close(), again.close()


def test_tensors_come_with_every_way_to_restart():
    for mode in ("SameStep", "NextStep", "Disabled"):
        envs = gymnasium.make_vec("parcade/Pong-v0", 2, autoreset_mode=mode, output="torch", **SMALL)
        envs.reset(seed=0)
        observations, *_ = envs.step(torch.tensor([2, 3]))
        assert isinstance(observations, torch.Tensor) and envs.metadata["autoreset_mode"].value == mode
        envs.close()


def make_pong(**settings):
    return make_registered_vec("pong", 2, **settings)


def disabled():
    return make_pong(autoreset_mode="Disabled")


MASK = np.array([True, False])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: make_pong(autoreset_mode="Never"), "autoreset_mode='Never': expected one of"),
        (lambda: make_pong(autoreset_mode="NextStep", backend="ale"), "needs backend 'native'"),
        (lambda: make_pong(render_mode="human"), "a vector environment renders 'rgb_array'"),
        (lambda: parcade.make("pong", render_mode="ansi"), "expected rgb_array, human or None"),
        (lambda: parcade.make("pong", render_mode="rgb_array", backend="ale"), "on backend 'native'"),
        (lambda: parcade.make("pong", render_mode="rgb_array", observations="ram"), "observations of frames"),
        (lambda: make_pong(render_mode="rgb_array", backend="ale"), "on backend 'native'"),
        (
            lambda: make_pong(autoreset_mode="NextStep", batch_size=1),
            "needs backend 'native' without batch_size",
        ),
        (lambda: make_pong(autoreset_mode="NextStep", output="jax"), "unknown output 'jax'"),
        (lambda: make_pong().get_attr("ale"), "NativeVectorEnv has no attribute 'ale'"),
        (lambda: make_pong(action_subset=(1,)).call("ale"), "NativeVectorEnv has no attribute 'ale'"),
        (lambda: make_pong().call("step", 0), "environments step together; use the method step itself"),
        (lambda: make_pong().set_attr("note", [1, 2]), "expected one value or 2 equal ones"),
        (lambda: make_pong(observations="ram").render(), "obs_type='ram' draws nothing"),
        (
            lambda: parcade.make("pong", device="cuda"),
            "device 'cuda' is for vector environments; use make_vec",
        ),
        (lambda: parcade.make("pongg"), "did you mean 'pong'"),
        (lambda: env_id("pongg"), "unknown game 'pongg'; did you mean 'pong'"),
        (lambda: env_id("CartPole-v1"), "unknown game 'CartPole-v1'"),
        (lambda: parcade.make("pong", frameskip=1), "did you mean 'frame_skip'"),
        (lambda: make_pong().reset(options={"mask": 1}), "expected reset_mask alone"),
        (lambda: make_pong().reset(options={"reset_mask": MASK}), "before the first reset of all"),
        (lambda: make_pong().reset(options={"reset_mask": np.ones(3)}), r"expected bool \[2\]"),
        (lambda: disabled().reset(options={"reset_mask": [1, 0]}), r"reset_mask is int64"),
    ],
)
def test_mistakes_are_one_line(make, says):
    with pytest.raises(UsageError, match=says) as refused:
        make()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("import gymnasium, parcade", "parcade/Pong-v0"),
        ("import gymnasium", "parcade:parcade/Pong-v0"),
        ("import parcade, gymnasium", "parcade.integrations.gym:parcade/Pong-v0"),
        ("import parcade, gymnasium; parcade.make_vec", "parcade/Pong-v0"),
    ],
)
def test_the_id_works_in_a_new_process(imports, name):
    program = f"{imports}; e = gymnasium.make({name!r}); print(e.reset(seed=0)[0].shape, e.spec.id)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["(4,", "84,", "84)", "parcade/Pong-v0"], done.stderr


def test_importing_parcade_alone_imports_no_gymnasium():
    program = "import sys, parcade; print('gymnasium' in sys.modules, 'numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_reading_the_generator_does_not_fix_the_episodes():
    started = set()
    for _ in range(4):
        env = parcade.make("pong", image_height=12, image_width=10)
        env.np_random.integers(5)
        started.add(env.reset()[1]["reset_frames"])
        env.close()
    assert started != {16}, "each has seed 0"


def test_vector_environments_name_their_frame_rate():
    env = gymnasium.make_vec("parcade/Pong-v0", 1, render_mode="rgb_array", frame_skip=2)
    assert env.metadata["render_fps"] == 30 and env.metadata["render_modes"] == ["rgb_array"]
    env.close()
