"""Mistakes in the arguments of consoles give one clear line, and change nothing."""

import types

import numpy as np
import psutil
import pytest

from parcade.atari import Arcade, VectorConsoles

pytest.importorskip("ale_py")


@pytest.fixture(scope="module")
def arcade():
    return Arcade("pong", 3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((3, 1), "game=3: expected the name of a game, or the path of a ROM"),
        (("pong", "2"), "num_consoles='2': expected an integer"),
        (("pong", 2.0), "num_consoles=2.0: expected an integer"),
        (("pong", True), "num_consoles=True: expected an integer"),
        (("pong", 0), "num_consoles=0: expected at least 1"),
        (("pong", 1, "cpu", "often"), "repeat_action_probability='often': expected 0 to 1"),
        (("pong", 1, "cpu", float("nan")), "repeat_action_probability=nan: expected 0 to 1"),
        (("pong", 1, "cpu", 1.5), "repeat_action_probability=1.5: expected 0 to 1"),
    ],
)
def test_consoles_that_cannot_be_made_are_refused(arguments, says):
    with pytest.raises(ValueError) as refused:
        Arcade(*arguments)
    assert says in str(refused.value) and "\n" not in str(refused.value)


SMALL = {"img_height": 42, "img_width": 42}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"num_envs": 0}, "num_envs=0: expected at least 1"),
        ({"num_envs": 1.5}, "num_envs=1.5: expected an integer"),
        ({"num_threads": 1.5}, "num_threads=1.5: expected an integer"),
        ({"mode": 77}, "mode=77 is not supported by this game; use 0, 1"),
        ({"difficulty": 9}, "difficulty=9 is not supported by this game; use 0, 1"),
        ({"stack_num": 0}, "stack_num=0: expected an integer from 1 to 2147483647"),
        ({"frameskip": 2.5}, "frameskip=2.5: expected an integer from 1"),
        ({"img_height": 0}, "img_height=0: expected an integer from 1"),
        ({"max_num_frames_per_episode": -5}, "max_num_frames_per_episode=-5: expected an integer from 0"),
        ({"repeat_action_probability": "a"}, "repeat_action_probability='a': expected 0 to 1"),
    ],
)
def test_a_vector_of_consoles_that_cannot_be_made_is_refused(arguments, says):
    with pytest.raises(ValueError) as refused:
        VectorConsoles("pong", **{"num_envs": 1, **SMALL, **arguments})
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_consoles_of_a_vector_do_not_play_before_they_are_reset():
    consoles = VectorConsoles("pong", 2, **SMALL)
    with pytest.raises(ValueError, match="environment 0 was never reset; call reset first"):
        consoles.step(np.zeros(2, int))
    consoles.reset(seed=0, mask=np.array([True, False]))
    with pytest.raises(ValueError, match="environment 1 was never reset"):
        consoles.step(np.zeros(2, int))
    assert consoles.step(np.zeros(2, int), np.array([True, False])).frames.tolist() == [4, 0]
    consoles.reset()
    assert consoles.step(np.zeros(2, int)).frames.tolist() == [4, 4]


def test_more_consoles_than_fit_into_memory_are_refused_before_any_is_made(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=20_000_000))
    with pytest.raises(ValueError, match=r"num_consoles=1,000,000 need .* use 1[0-9][0-9] or fewer"):
        Arcade("pong", 1_000_000)
    assert Arcade("pong", 100).num_consoles == 100


@pytest.mark.parametrize(
    ("actions", "actions_b", "says"),
    [
        ([0, 1], None, "actions=[0, 1]: expected 3 integers, or one for all"),
        ([1], None, "actions=[1]: expected 3 integers, or one for all"),
        ([[0, 1, 2]], None, "actions=[[0, 1, 2]]: expected 3 integers, or one for all"),
        ([[0], [1, 2]], None, "actions=[[0], [1, 2]]: expected 3 integers, or one for all"),
        ("up", None, "actions=up: expected 3 integers, or one for all"),
        (0, [0.5, 0, 0], "actions_b=[0.5, 0, 0]: expected 3 integers, or one for all"),
        (0, [1, 2], "actions_b=[1, 2]: expected 3 integers, or one for all"),
        (0, [1], "actions_b=[1]: expected 3 integers, or one for all"),
        (np.zeros((3, 1), int), None, "actions=[[0] [0] [0]]: expected 3 integers, or one for all"),
        ([0.5] * 100, None, "0.5, ...: expected 3 integers, or one for all"),
    ],
)
def test_the_wrong_argument_of_act_is_named(arcade, actions, actions_b, says):
    before = arcade.get_state()
    with pytest.raises(ValueError) as refused:
        arcade.act(actions, actions_b)
    assert says in str(refused.value) and "\n" not in str(refused.value)
    assert all(np.array_equal(array, before[name]) for name, array in arcade.get_state().items())


@pytest.mark.parametrize(
    ("consoles", "says"),
    [
        (3, "consoles=3: expected 0 to 2"),
        ([0, -4], "consoles=[0, -4]: expected 0 to 2"),
        (1.0, "consoles=1.0: expected integers, a slice, or a mask of 3"),
        ([True, False], "consoles=[True, False]: expected integers, a slice, or a mask of 3"),
        ([[0]], "consoles=[[0]]: expected integers, a slice, or a mask of 3"),
        ([[0], [1, 2]], "consoles cannot be read as an array"),
        (slice("a", None), "expected a slice of integers"),
    ],
)
def test_consoles_that_do_not_exist_have_no_state(arcade, consoles, says):
    with pytest.raises(ValueError) as refused:
        arcade.get_state(consoles)
    assert says in str(refused.value)


def test_consoles_are_chosen_by_number_slice_or_mask(arcade):
    arcade.reset(seed=1)
    arcade.act([0, 2, 3])
    everything = arcade.get_state()["state"]
    for consoles, rows in (
        (-1, [2]),
        (slice(0, 2), [0, 1]),
        ([True, False, True], [0, 2]),
        ([2, 0, 2], [2, 0, 2]),
    ):
        assert np.array_equal(arcade.get_state(consoles)["state"], everything[rows])


def test_of_a_console_that_is_chosen_twice_the_last_row_counts(arcade):
    arcade.reset(seed=1)
    states = []
    for action in (2, 3):
        for _ in range(20):
            arcade.act(action)
        states.append(arcade.get_state(0))
    both = {
        name: array if name in ("version", "md5") else np.concatenate([array, states[1][name]])
        for name, array in states[0].items()
    }
    arcade.set_state(both, [1, 1])
    assert np.array_equal(arcade.get_state(1)["state"], states[1]["state"])
    assert not np.array_equal(states[0]["state"], states[1]["state"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("pong", 0, 1), "arcade='pong': expected an Arcade"),
        ((None, 0, 4), "first=0, last=4: expected 0 <= first < last <= 3"),
        ((None, 0.5, 1), "first=0.5: expected an integer"),
    ],
)
def test_seeds_come_from_consoles_of_another_arcade(arcade, arguments, says):
    with pytest.raises(ValueError) as refused:
        arcade.seed_from(arguments[0] or arcade, *arguments[1:])
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("select", "says"),
    [
        ([True, False], "select has shape (2,); expected one value, or 3"),
        (0.5, "select=0.5: expected True or False, or 3 of them"),
        ("on", "select=on: expected True or False, or 3 of them"),
    ],
)
def test_a_switch_that_cannot_be_held_is_refused(arcade, select, says):
    before = arcade.get_state()
    with pytest.raises(ValueError) as refused:
        arcade.press(reset=True, select=select)
    assert str(refused.value) == says
    assert all(np.array_equal(array, before[name]) for name, array in arcade.get_state().items())


def test_a_state_with_a_switch_held_by_a_number_is_restored(arcade):
    arcade.press(select=np.array([0, 1, 5]), reset=2)
    held = arcade.get_state()
    arcade.press()
    arcade.set_state(held)
    assert np.array_equal(arcade.get_state()["state"], held["state"])


@pytest.mark.parametrize("name", ["mode", "difficulty"])
def test_modes_of_another_number_of_consoles_are_refused(arcade, name):
    with pytest.raises(ValueError) as refused:
        setattr(arcade, name, [0, 1])
    assert str(refused.value) == f"{name} has shape (2,); expected one value, or 3"
