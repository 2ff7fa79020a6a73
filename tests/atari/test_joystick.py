"""Continuous actions and the strengths of paddles, by hand and against ale-py."""

import ale_py
import numpy as np
import pytest

from parcade.atari import state
from parcade.atari.arcade import Arcade
from parcade.atari.held_keys import ACTION_NAMES
from parcade.atari.joystick import ACTION_BITS, ACTION_ID, PADDLE_STEP, from_polar, paddle_bits
from parcade.integrations.ale_interface import AleInterface


@pytest.mark.parametrize(
    ("distance", "degrees", "button", "name"),
    [
        (1.0, 0, 0.0, "RIGHT"),
        (1.0, 90, 0.0, "UP"),
        (1.0, 180, 0.0, "LEFT"),
        (1.0, -90, 0.0, "DOWN"),
        (1.0, 45, 0.0, "UPRIGHT"),
        (1.0, 135, 0.6, "UPLEFTFIRE"),
        (1.0, -45, 0.6, "DOWNRIGHTFIRE"),
        (0.8, -135, 0.0, "DOWNLEFT"),
        (0.6, 45, 0.0, "NOOP"),  # 0.42 in either direction
        (0.6, 30, 0.0, "RIGHT"),  # 0.52 to the right
        (0.5, 0, 0.5, "NOOP"),  # neither is above the threshold
        (0.0, 0, 0.51, "FIRE"),
        (9.0, 60, 0.0, "UP"),  # limited to 1: 0.5 to the right is not above the threshold
    ],
)
def test_a_direction_or_the_button_counts_above_the_threshold(distance, degrees, button, name):
    (action,) = from_polar(np.array([[distance, np.radians(degrees), button]]), 0.5)
    assert ACTION_NAMES[action & ACTION_ID] == name
    assert PADDLE_STEP - (action >> ACTION_BITS) == int(PADDLE_STEP * float(np.float32(min(distance, 1))))


def test_a_full_step_adds_nothing_to_an_id():
    strengths = np.array([1, -1, 7, 0.5, 1e-9, 0])
    assert (paddle_bits(strengths) >> ACTION_BITS).tolist() == [0, 0, 0, 11_500, PADDLE_STEP, PADDLE_STEP]


def strengths_that_float32_rounds_up():
    """Strengths whose product with the step is below a whole number, but not if it is rounded to float32."""
    strengths = np.random.default_rng(0).random(400_000, np.float32)
    product = PADDLE_STEP * strengths.astype(np.float64)
    return strengths[np.float32(PADDLE_STEP) * strengths >= np.ceil(product)]


def test_the_product_with_the_step_is_not_rounded_to_float32():
    rounded_up = strengths_that_float32_rounds_up()
    assert len(rounded_up) > 100
    turned = PADDLE_STEP - (paddle_bits(rounded_up) >> ACTION_BITS)
    assert (turned == np.floor(PADDLE_STEP * rounded_up.astype(np.float64))).all()
    assert (turned < np.float32(PADDLE_STEP) * rounded_up).all()


@pytest.mark.parametrize("game", ["breakout", "kaboom"])
def test_a_paddle_turns_as_in_ale_py_where_float32_would_round_up(game):
    """Each step turns one unit less; only many show in the RAM. RIGHT and LEFT, for 40 frames each."""
    strengths = strengths_that_float32_rounds_up()
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    theirs = ale_py.ALEInterface()
    theirs.setInt("random_seed", 5)
    theirs.setFloat("repeat_action_probability", 0.0)
    theirs.loadROM(ale_py.roms.get_rom_path(game))
    ours = AleInterface(Arcade(game, 1))
    ours.load(5)
    for frame in range(3000):
        action, strength = (3, 4)[frame // 40 % 2], float(strengths[frame % len(strengths)])
        assert ours.act(action, strength) == theirs.act(action, strength), frame
        assert (ours.getRAM() == theirs.getRAM()).all(), frame


@pytest.mark.parametrize("game", ["breakout", "pong"])
def test_a_paddle_turns_by_the_strength_as_in_ale_py(game):
    seed = int(np.random.SeedSequence().generate_state(1)[0]) >> 1
    draw = np.random.default_rng(seed)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    theirs = ale_py.ALEInterface()
    theirs.setInt("random_seed", 5)
    theirs.setFloat("repeat_action_probability", 0.25)
    theirs.loadROM(ale_py.roms.get_rom_path(game))
    ours = AleInterface(Arcade(game, 1, repeat_action_probability=0.25))
    ours.load(5)
    for frame in range(600):
        action, strength = int(draw.integers(18)), float(np.float32(draw.uniform(-1, 1)))
        assert ours.act(action, strength) == theirs.act(action, strength), (seed, frame)
        assert (ours.getRAM() == theirs.getRAM()).all(), (seed, frame)


def test_a_remembered_strength_is_part_of_the_state():
    pair = [Arcade("breakout", 1, repeat_action_probability=0.9) for _ in range(2)]
    for each in pair:
        each.reset(seed=1)
    pair[0].act(3, strengths=0.25)
    while pair[0].arrays["state"][0, state.ACTION] == 0:  # until the action is not a repeated NOOP
        pair[0].act(3, strengths=0.25)
    assert pair[0].arrays["state"][0, state.ACTION] == 3 + (17_250 << ACTION_BITS)
    pair[1].set_state(pair[0].get_state())
    before = pair[0].arrays["state"][0, state.PADDLE_A].copy()
    for each in pair:
        for _ in range(4):
            each.act(4)
    assert pair[0].arrays["state"][0, state.PADDLE_A] != before
    assert (pair[0].arrays["state"] == pair[1].arrays["state"]).all()


def test_consoles_have_strengths_of_their_own():
    arcade = Arcade("breakout", 3)
    start = arcade.arrays["state"][:, state.PADDLE_A].copy()
    arcade.act([3, 3, 4], strengths=[0.5, 1, 0.1])
    assert (arcade.arrays["state"][:, state.PADDLE_A] - start).tolist() == [-11_500, -23_000, 2_300]
    arcade.act(3, strengths=0)
    assert (arcade.arrays["state"][:, state.PADDLE_A] - start).tolist() == [-11_500, -23_000, 2_300]


@pytest.mark.parametrize("strengths", ["full", [0.5], [[1.0, 1.0]], np.nan, [0.5, np.inf], True])
def test_strengths_that_are_none_are_refused(strengths):
    arcade = Arcade("breakout", 2)
    before = arcade.get_state()
    with pytest.raises(ValueError, match="strengths="):
        arcade.act(3, strengths=strengths)
    assert (arcade.get_state()["state"] == before["state"]).all()
    with pytest.raises(ValueError, match="expected 0 to 17"):
        arcade.act(3 + (5 << ACTION_BITS))
