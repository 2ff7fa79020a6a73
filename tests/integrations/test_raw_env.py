"""Raw games equal ale-py's own environments, and other libraries' Atari wrappers run on them."""

import copy
import re

import ale_py
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.play import PlayableGame
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.env_util import make_atari_env

import parcade
from parcade.atari.games import load_games
from parcade.atari.held_keys import ACTION_NAMES
from parcade.errors import UsageError
from parcade.integrations.gym import raw_env_id, register
from parcade.integrations.raw import RawAtariEnv

gymnasium.register_envs(ale_py)


@pytest.fixture(autouse=True)
def registered():
    register()


def pair(title, **settings):
    """Return ale-py's environment and parcade's."""
    ids = f"ALE/{title}-v5", f"parcade/{title}NoFrameskip-v4"
    theirs = {"frameskip": 1, "repeat_action_probability": 0.0, **settings}
    return gymnasium.make(ids[0], **theirs), gymnasium.make(ids[1], **settings)


def play_both(theirs, ours, steps, seed=None):
    """Play random actions, over ends of episodes; compare everything; return the number of ends."""
    player = np.random.default_rng(3)
    (seen, infos), (expected, expected_infos) = ours.reset(seed=seed), theirs.reset(seed=seed)
    assert np.array_equal(seen, expected)
    if seed is not None:
        assert infos == expected_infos
    ends = 0
    for _ in range(steps):
        action = int(player.integers(theirs.action_space.n))
        (got, *results), (want, *wanted) = ours.step(action), theirs.step(action)
        assert np.array_equal(got, want)
        assert results == wanted
        if results[1] or results[2]:
            ends += 1
            if player.random() < 0.5:  # otherwise play on: nothing happens, but random numbers are drawn
                ours.reset(), theirs.reset()
    return ends


@pytest.mark.parametrize(
    ("title", "settings"),
    [
        ("Pong", {}),
        ("Breakout", {"obs_type": "grayscale", "mode": 20, "difficulty": 1}),
        ("Qbert", {"obs_type": "ram", "full_action_space": True}),
        ("Seaquest", {"frameskip": (2, 5), "repeat_action_probability": 0.25}),
        ("Boxing", {"max_num_frames_per_episode": 50, "frameskip": 4, "repeat_action_probability": 0.5}),
        ("LostLuggage", {"frameskip": 3}),
        ("JourneyEscape", {"frameskip": 4, "repeat_action_probability": 1.0}),
    ],
)
def test_a_raw_game_equals_ale_pys_environment(title, settings):
    theirs, ours = pair(title, **settings)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.unwrapped.get_action_meanings() == theirs.unwrapped.get_action_meanings()
    assert ours.unwrapped.get_keys_to_action() == theirs.unwrapped.get_keys_to_action()
    ends = play_both(theirs, ours, 150, seed=42) + play_both(theirs, ours, 60, seed=None)
    assert ends > 0 or "max_num_frames_per_episode" not in settings
    assert ours.unwrapped.np_random.integers(2**31) == theirs.unwrapped.np_random.integers(2**31)


@pytest.mark.parametrize(
    ("title", "settings"),
    [
        ("Breakout", {"frameskip": 4, "repeat_action_probability": 0.25}),
        ("Casino", {"continuous_action_threshold": 0.1, "obs_type": "ram"}),
        ("Skiing", {"full_action_space": True, "frameskip": (2, 5)}),
        ("Seaquest", {"continuous_action_threshold": 0.9}),
    ],
)
def test_a_raw_game_with_continuous_actions_equals_ale_pys_environment(title, settings):
    theirs, ours = pair(title, continuous=True, **settings)
    assert ours.action_space == theirs.action_space
    assert ours.unwrapped.get_action_meanings() == theirs.unwrapped.get_action_meanings()
    seed = int(np.random.SeedSequence().generate_state(1)[0]) >> 1
    player = np.random.default_rng(seed)
    (seen, infos), (expected, expected_infos) = ours.reset(seed=seed), theirs.reset(seed=seed)
    assert np.array_equal(seen, expected) and infos == expected_infos
    for step in range(200):
        action = player.uniform(ours.action_space.low, ours.action_space.high).astype(np.float32)
        (got, *results), (want, *wanted) = ours.step(action), theirs.step(action)
        assert np.array_equal(got, want), (seed, step)
        assert results == wanted, (seed, step)


def test_continuous_actions_that_are_none_are_refused():
    env = RawAtariEnv("breakout", continuous=True)
    env.reset(seed=0)
    for action, says in (
        (3, "expected"),
        ([1, 2], "expected"),
        ([np.inf, 0, 0], "finite"),
        ("abc", "expected"),
    ):
        with pytest.raises(UsageError, match=says):
            env.step(action)
    with pytest.raises(UsageError, match="finite"):
        env.step(np.array([1e300, 0, 0]))
    with pytest.raises(AttributeError, match="no keys"):
        env.get_keys_to_action()
    assert env.ale.getEpisodeFrameNumber() == 0
    with pytest.raises(UsageError, match=r"continuous_action_threshold=2 is not in \[0, 1\]"):
        RawAtariEnv("breakout", continuous=True, continuous_action_threshold=2)


@pytest.mark.parametrize(
    ("title", "settings"),
    [
        ("Berzerk", {"mode": 1, "max_num_frames_per_episode": 1}),
        ("Berzerk", {"mode": 5, "max_num_frames_per_episode": 3, "repeat_action_probability": 0.25}),
        ("Adventure", {"mode": 1, "max_num_frames_per_episode": 1}),
    ],
)
def test_a_limit_of_frames_that_a_reset_reaches_ends_its_choice_of_the_mode_as_in_ale_py(title, settings):
    theirs, ours = pair(title, **settings)
    for seed in (7, None, 8):
        play_both(theirs, ours, 5, seed=seed)
    theirs.reset(), ours.reset()
    state = ours.unwrapped.clone_state()
    copied = copy.deepcopy(ours)
    ours.unwrapped.restore_state(state)
    assert copied.step(0)[3] and ours.step(0)[3]  # truncated: the limit is kept
    assert ours.unwrapped.ale.getFrameNumber() == theirs.unwrapped.ale.getFrameNumber()


def test_actions_have_ale_pys_names_and_raw_ids_its_titles():
    assert list(ACTION_NAMES) == [ale_py.Action(each).name for each in range(18)]
    titles = {spec.name for spec in gymnasium.registry.values() if spec.namespace == "ALE"}
    assert {raw_env_id(game) for game in load_games()} == {f"parcade/{name}NoFrameskip-v4" for name in titles}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: FrameStackObservation(AtariPreprocessing(env, terminal_on_life_loss=True), 4),
        lambda env: AtariPreprocessing(env, grayscale_obs=False, noop_max=10),
        AtariWrapper,
    ],
    ids=["gymnasium", "gymnasium in colour", "stable-baselines3"],
)
def test_wrappers_of_other_libraries_play_the_same_on_both(wrap):
    theirs, ours = (wrap(env) for env in pair("Breakout"))
    assert play_both(theirs, ours, 250, seed=5) > 0


def test_sb3_makes_its_vector_environment_of_raw_games():
    theirs, ours = (
        make_atari_env(name, n_envs=2, seed=1) for name in ("PongNoFrameskip-v4", raw_env_id("pong"))
    )
    assert np.array_equal(ours.reset(), theirs.reset())
    for _ in range(20):
        for got, want in zip(ours.step([2, 3])[:3], theirs.step([2, 3])[:3], strict=True):
            assert np.array_equal(got, want)


def test_an_action_may_be_an_array_or_a_tensor_without_axes_as_for_ale_py():
    """SB3's ``predict`` returns such an array for a single observation."""
    theirs, ours = pair("Pong")
    for env in (theirs, ours):
        env.reset(seed=0)
    for action in (np.array(2), torch.tensor(3), np.uint8(1)):
        assert np.array_equal(ours.step(action)[0], theirs.step(action)[0])


@pytest.mark.parametrize(("frameskip", "rate"), [(1, 60), (4, 15), ((2, 5), 20), ((1, 2), 60)])
def test_a_video_of_a_raw_game_plays_in_real_time(frameskip, rate):
    env = RawAtariEnv("pong", frameskip=frameskip)
    assert env.metadata["render_fps"] == rate and isinstance(env.metadata["render_fps"], float)


def test_gymnasiums_checker_accepts_a_raw_game():
    env = gymnasium.make(raw_env_id("space_invaders"), render_mode="rgb_array")
    check_env(env.unwrapped)
    env.reset(seed=0)
    assert np.array_equal(env.render(), env.unwrapped.ale.getScreenRGB())


@pytest.mark.parametrize("name", [raw_env_id("seaquest"), "parcade/Seaquest-v0"])
def test_gymnasium_finds_the_keys_of_a_game_that_a_person_plays(name):
    env = gymnasium.make(name, render_mode="rgb_array")
    env.reset(seed=0)
    assert PlayableGame(env).relevant_keys == set("wasde ")
    keys = env.unwrapped.get_keys_to_action()
    assert env.unwrapped.get_action_meanings()[keys["w", " "]] == "UPFIRE"


def test_actions_of_a_subset_and_of_a_task_without_consoles_have_their_names():
    made = parcade.make("pong", preset="karpathy_2016")
    assert made.get_action_meanings() == ["RIGHT", "LEFT"]
    assert parcade.make("ALE/Pong-v5", full_action_set=True).get_action_meanings()[17] == "DOWNLEFTFIRE"
    assert parcade.make("tiny_catch").get_action_meanings() == []


def test_a_restored_state_continues_exactly_and_its_random_numbers_on_request():
    env = RawAtariEnv("breakout", frameskip=4, repeat_action_probability=0.5)
    env.reset(seed=1)
    player = np.random.default_rng(0)
    actions = player.integers(4, size=60).tolist()
    saved = env.clone_state(include_rng=True)
    first = [env.step(action)[0] for action in actions]
    env.restore_state(saved)
    assert all(np.array_equal(env.step(action)[0], seen) for action, seen in zip(actions, first, strict=True))
    env.restore_state({**saved, "include_rng": False})
    again = [env.step(action)[0] for action in actions]
    assert not all(np.array_equal(*each) for each in zip(again, first, strict=True))
    other = RawAtariEnv("pong")
    for state, says in (
        (saved, "ROM"),
        (None, "state=None: expected the dict of cloneState"),
        ({"include_rng": False}, "expected the dict of get_state"),
    ):
        with pytest.raises(ValueError, match=says):
            other.restore_state(state)


@pytest.mark.parametrize(("probability", "of_the_other"), [(0.0, 0.25), (0.5, 0.0)])
def test_a_state_of_another_probability_of_sticky_actions_leaves_it_as_it_is(probability, of_the_other):
    """A planner tries actions in a deterministic copy of a game with sticky actions."""

    def rams(kind):
        played, plans = (
            kind("pong", frameskip=1, repeat_action_probability=p) for p in (of_the_other, probability)
        )
        played.reset(seed=3)
        plans.reset(seed=5)
        for step in range(50):
            played.step(step % 3)
        plans.restore_state(played.clone_state())
        seen = []
        for action in np.random.default_rng(0).integers(6, size=150).tolist():
            plans.step(action)
            seen.append(plans.unwrapped.ale.getRAM().tolist())
        return seen

    assert rams(RawAtariEnv) == rams(ale_py.AtariEnv)


def test_a_copy_of_an_environment_plays_on_by_itself():
    env = RawAtariEnv("pong", repeat_action_probability=0.0)
    env.reset(seed=2)
    twin = copy.deepcopy(env)
    for _ in range(10):
        assert np.array_equal(env.step(2)[0], twin.step(2)[0])


def test_the_interface_reads_into_given_arrays_and_writes_ram():
    ale = RawAtariEnv("pong").ale
    grey, ram = np.zeros(ale.getScreenDims(), np.uint8), np.zeros(ale.getRAMSize(), np.uint8)
    assert ale.getScreenGrayscale(grey) is grey
    assert grey.any()
    ale.setRAM(3, 77)
    assert ale.getRAM(ram)[3] == ram[3] == 77
    with pytest.raises((TypeError, ValueError)):
        ale.getScreenGrayscale(np.zeros((210, 160), np.float32))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": 77}, "mode=77: pong has modes"),
        ({"difficulty": 9}, "difficulty=9: pong has difficulties"),
        ({"frameskip": 0}, "frameskip=0"),
        ({"frameskip": (5, 2)}, "expected low < high"),
        ({"frameskip": (1, 2, 3)}, "or (low, high)"),
        ({"obs_type": "grey"}, "obs_type='grey': expected rgb"),
        ({"repeat_action_probability": 2}, "not in [0, 1]"),
        ({"repeat_action_probability": "0.25"}, "repeat_action_probability='0.25' is not in [0, 1]"),
        ({"render_mode": "ansi"}, "render_mode='ansi'"),
        ({"max_num_frames_per_episode": -1}, "max_num_frames_per_episode=-1"),
    ],
)
def test_bad_arguments_are_one_line(settings, message):
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        RawAtariEnv("pong", **settings)
    assert "\n" not in str(caught.value)


def test_an_unknown_game_or_action_is_one_line():
    with pytest.raises(UsageError, match="did you mean 'pong'"):
        RawAtariEnv("pogn")
    env = RawAtariEnv("pong")
    with pytest.raises(UsageError, match="seed=-1"):
        env.reset(seed=-1)
    env.reset(seed=0)
    for action in (6, -1, 1.0, "FIRE"):
        with pytest.raises(UsageError, match="expected an integer from 0 to 5"):
            env.step(action)
