"""Saved states at the edges: before the first reset, in new environments and processes, of several games."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import parcade
from parcade.errors import UsageError
from parcade.integrations.gym import make_registered_vec

SMALL = {"image_height": 12, "image_width": 10}


def played(env, steps=5):
    for _ in range(steps):
        observations = env.step(np.zeros(env.num_envs, np.int64))[0]
    return observations


def test_a_tiny_tasks_state_outside_its_board_is_refused_and_changes_nothing():
    env = parcade.make_vec("tiny_catch", 2)
    env.reset(seed=0)
    before = env.get_state()
    with pytest.raises(UsageError, match="outside the board"):
        env.set_state({**before, "ball": np.array([99, 0])})
    assert all(np.array_equal(array, before[name]) for name, array in env.get_state().items())


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_what_is_no_state_is_refused_in_every_autoreset_mode(mode):
    env = make_registered_vec("tiny_catch", 2, autoreset_mode=mode)
    env.reset(seed=0)
    with pytest.raises(UsageError, match="saved state is a NoneType; expected the dict of get_state"):
        env.set_state(None)
    state = env.get_state()
    for name, wrong in (("over", np.full(2, 0.5)), ("last", np.full(state["last"].shape, "x"))):
        with pytest.raises(UsageError, match=f"saved state: {name} is .*; expected "):
            env.set_state({**state, name: wrong})
    env.set_state({**state, "over": state["over"].astype(int)})


@pytest.mark.parametrize("game", ["pong", ["pong", "breakout"]])
def test_a_state_before_the_first_reset_is_refused(game):
    env = parcade.make_vec(game, 2, **SMALL)
    with pytest.raises(UsageError, match="get_state before the first reset; call reset first"):
        env.get_state()


def test_a_console_that_was_never_started_is_not_restored():
    new, env = (parcade.make_vec("pong", 2, **SMALL) for _ in range(2))
    env.reset(seed=0)
    with pytest.raises(UsageError, match="the console of row 0 was never started"):
        env.set_state({name: array.copy() for name, array in new._state_arrays().items()})
    played(env)


@pytest.mark.parametrize("game", ["pong", ["pong", "breakout"]])
def test_resets_after_a_restore_continue_the_random_streams(game):
    first, second = (parcade.make_vec(game, 4, **SMALL) for _ in range(2))
    first.reset(seed=7)
    second.set_state(first.get_state())
    for env in (first, second):
        played(env)
    expected, got = first.reset(), second.reset()
    assert np.array_equal(expected[0], got[0])
    assert np.array_equal(expected[1]["reset_frames"], got[1]["reset_frames"])


def test_values_that_no_episode_has_are_refused():
    env = parcade.make_vec("pong", 2, **SMALL)
    env.reset(seed=0)
    state = env.get_state()
    for name, value, says in [
        ("elapsed", np.full(2, -5, np.int32), "elapsed is -5 to -5; expected 0 to"),
        ("captured", state["captured"].astype(np.float64), "captured is float64; expected uint64"),
        ("elapsed", np.array([None, None]), "elapsed is object; expected int32"),
        (
            "console.random",
            state["console.random"].astype(np.int64) - 2**32,
            "is -4294967.* expected 0 to 42949",
        ),
        ("observations", state["observations"].astype(int) + 256, "is 256 to .*; expected 0 to 255"),
    ]:
        with pytest.raises(UsageError, match=says):
            env.set_state({**state, name: value})


def test_a_state_that_fits_only_one_of_the_games_changes_none():
    env = parcade.make_vec(["pong", "breakout"], 4, **SMALL)
    env.reset(seed=0)
    early = env.get_state()
    played(env)
    before = env.get_state()
    with pytest.raises(UsageError, match="elapsed"):
        env.set_state({**early, "1.elapsed": np.full(2, -1, np.int32)})
    after = env.get_state()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    for wrong in (None, []):
        with pytest.raises(UsageError, match="expected the dict of get_state"):
            env.set_state(wrong)
    fresh, other = (parcade.make_vec(["pong", "breakout"], 4, **SMALL) for _ in range(2))
    with pytest.raises(UsageError, match="elapsed"):
        fresh.set_state({**early, "1.elapsed": np.full(2, -1, np.int32)})
    with pytest.raises(UsageError, match="before the first reset"):
        fresh.get_state()
    for each in (fresh, other):
        each.reset()
    expected = other.get_state()
    assert all(np.array_equal(expected[name], array) for name, array in fresh.get_state().items())


def test_a_state_of_several_games_with_views_is_restored():
    env = parcade.make_vec(["pong", "pong"], 2, preset="karpathy_2016")
    env.reset(seed=0)
    played(env, 30)
    state, expected = env.get_state(), played(env)
    shown = env.set_state(state)
    assert shown.shape == expected.shape and np.array_equal(played(env), expected)


@pytest.mark.parametrize(
    ("game", "settings", "says"),
    [
        ("assault", {}, "belongs to another ROM; use the game it was saved with"),
        ("space_invaders", {"mode": 3}, "mode of row 0 is 3; expected 0; use the settings"),
        ("space_invaders", {"difficulty": 1}, "difficulty of row 0 is 1; expected 0; use the settings"),
        ("space_invaders", {"sticky_actions": 0.9}, "sticky actions of row 0 is 0.9; expected 0.25; use"),
    ],
)
def test_a_state_of_another_game_or_of_other_settings_is_refused_and_changes_nothing(game, settings, says):
    """The ROMs of these games have the same size and the same constants."""
    env = parcade.make_vec("space_invaders", 2, sticky_actions=0.25, **SMALL)
    other = parcade.make_vec(game, 2, **{"sticky_actions": 0.25, **settings}, **SMALL)
    for each in (env, other):
        each.reset(seed=0)
    before = env.get_state()
    with pytest.raises(UsageError, match=says):
        env.set_state(other.get_state())
    assert all(np.array_equal(array, before[name]) for name, array in env.get_state().items())
    env.set_state({name: array for name, array in before.items() if name != "md5"})  # of an older version
    for each in (env, other):
        each.close()


def test_a_state_of_steps_of_several_frames_is_refused_by_steps_of_one():
    """The second-to-last frame would stay in every later observation."""
    several, one = (parcade.make_vec("pong", 1, frame_skip=skip, **SMALL) for skip in (4, 1))
    for env in (several, one):
        env.reset(seed=0)
        played(env, 5)
    with pytest.raises(UsageError, match="its steps have several frames; expected one"):
        one.set_state(several.get_state())
    several.set_state(one.get_state())
    one.set_state(one.get_state())
    plain = parcade.make_vec("pong", 1, frame_skip=1, max_pool=False, **SMALL)
    plain.reset(seed=0)
    plain.set_state(several.get_state())


CONTINUE = """
import pickle, sys
arcade = pickle.load(open(sys.argv[1], "rb"))
for _ in range(60):
    arcade.act([3, 4])
print(arcade.ram.tobytes().hex())
"""


def test_an_arcade_continues_in_another_process(tmp_path):
    arcade = parcade.Arcade("breakout", 2)
    for _ in range(90):
        arcade.act([1, 3])
    (tmp_path / "arcade.pkl").write_bytes(pickle.dumps(arcade))
    twin = copy.deepcopy(arcade)
    for _ in range(60):
        arcade.act([3, 4])
        twin.act([3, 4])
    command = [sys.executable, "-c", CONTINUE, str(tmp_path / "arcade.pkl")]
    there = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout.strip()
    assert twin.ram.tobytes().hex() == there == arcade.ram.tobytes().hex()


def test_arguments_of_an_arcade_are_not_rounded_or_guessed():
    arcade = parcade.Arcade("pong", 2)
    for wrong in ([1.7, 0.0], ["up", "up"], [0, 0, 0]):
        with pytest.raises(ValueError, match="expected 2 integers"):
            arcade.act(wrong)
    with pytest.raises(ValueError, match="seed=1.5: expected an integer"):
        arcade.reset(seed=1.5)
    with pytest.raises(ValueError, match="mask is int64"):
        arcade.reset(mask=[0, 1])
    for wrong in ({}, None, []):
        with pytest.raises(ValueError, match="expected the dict of get_state"):
            arcade.set_state(wrong)


def test_ale_in_a_forked_process_is_refused():
    env = parcade.make_vec("pong", 1, "ale", **SMALL)
    env.reset(seed=0)
    env._process = -1  # as if this were the child
    with pytest.raises(UsageError, match="step in a forked process, which has none of ale-py's threads"):
        env.step(np.zeros(1, np.int64))


def test_infos_do_not_share_memory():
    for game in ("CartPole-v1", "tiny_catch"):
        _, infos = parcade.make_vec(game, 2).reset(seed=0)
        infos["lives"][0] = 9
        assert infos["frames"][0] == infos["reset_frames"][0] == 0
