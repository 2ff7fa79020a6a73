"""Rubbish in, no crash: random images of every cartridge size, random states refused."""

import secrets

import numpy as np
import pytest

from parcade.atari import Arcade, cartridge, console
from parcade.atari import state as st


def test_random_images_of_every_cartridge_type_neither_crash_nor_hang():
    seed = secrets.randbits(30)
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    for turn in range(48):
        kind = turn % 8
        rom = cartridge.expand_image(random.bytes(16384), kind)
        arrays = st.allocate(1, 250)
        rows = arrays["state"][0], arrays["memory"][0], rom, arrays["screen"][0], arrays["random"][0]
        rows[0][st.CART_KIND], rows[0][st.ROM_YSTART], rows[0][st.ROM_HEIGHT], rows[0][st.ROM_MAX_LINES] = kind, 34, 210, 290
        rows[0][st.ROM_HMOVE_BLANKS] = 1
        console.power_on(*rows)
        for _ in range(20):
            console.run_update(*rows[:4])


def test_states_that_would_index_outside_arrays_are_refused():
    arcade = Arcade("pong", 1)
    saved = arcade.get_state()
    saved["state"][0, st.LOG_COUNT] = 10**6
    with pytest.raises(ValueError, match="state word"):
        arcade.set_state(saved)
    with pytest.raises(ValueError, match="another ROM"):
        Arcade("breakout", 1).set_state(arcade.get_state())


def test_memory_of_a_console_follows_the_formula():
    arrays = st.allocate(3, 210)
    assert sum(array.nbytes for array in arrays.values()) == 3 * st.bytes_per_console(210)
