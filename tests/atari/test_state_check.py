"""Saved rows with a word out of range are refused with the word's name; accepted states cannot crash."""

import numpy as np
import pytest

from parcade.atari import Arcade, state_check, state_scan
from parcade.atari import state as st


@pytest.fixture(scope="module")
def arcade():
    arcade = Arcade("pitfall2", 1)
    arcade.reset(seed=1)
    for frame in range(10):
        arcade.act(frame % 18)
    return arcade


def test_every_word_with_a_range_is_refused_outside_of_it(arcade):
    low, high, _ = state_check.bounds_for(arcade.machine)
    saved = arcade.get_state()
    checked = 0
    for word in range(st.ROW_WORDS):
        for bound, step in ((low, -1), (high, 1)):
            if -(2**31) < bound[word] < 2**31 - 1:
                kept = saved["state"][0, word]
                saved["state"][0, word] = bound[word] + step
                with pytest.raises(ValueError, match="saved state"):
                    state_check.check_rows(saved, arcade.machine)
                saved["state"][0, word] = kept
                checked += 1
    state_check.check_rows(saved, arcade.machine)
    assert checked > 400


def test_the_error_names_the_word_and_what_was_expected(arcade):
    saved = arcade.get_state()
    saved["state"][0, st.TIA + st.T_POSM1] = 160
    with pytest.raises(ValueError, match=r"T_POSM1 \(word 201\) of row 0 is 160; expected 0 to 159"):
        arcade.set_state(saved)
    saved = arcade.get_state()
    saved["state"][0, st.DPC_COUNTER + 3] = 2048
    with pytest.raises(ValueError, match=r"DPC_COUNTER \+ 3"):
        arcade.set_state(saved)
    saved = arcade.get_state()
    left = saved["state"][0, st.TIA + st.T_LEFT]
    saved["state"][0, st.TIA + st.T_LEFT] = (left + 100) % 228
    with pytest.raises(ValueError, match="how far the frame is drawn"):
        arcade.set_state(saved)
    saved = arcade.get_state()
    saved["random"][0, 1, 624] = 625
    with pytest.raises(ValueError, match="random stream"):
        arcade.set_state(saved)


def test_the_compiled_test_says_the_same_without_a_message(arcade):
    low, _, size = state_check.bounds_for(arcade.machine)
    good = arcade.get_state()

    def fits(name=None, *place_and_value):
        saved = {key: array.copy() for key, array in good.items()}
        if name:
            *place, value = place_and_value
            saved[name][tuple(place)] = value
        return state_scan.rows_fit(saved["state"], saved["random"], low, size, arcade.height)

    assert fits()
    assert fits("state", 0, st.CART_BANK, 0) and not fits("state", 0, st.CART_BANK, 1)
    block = st.TIA + 2 * st.TIA_WORDS
    for word in (st.T_LINE, st.T_LEFT, st.T_STOP, st.T_START, st.T_LAST):
        assert not fits("state", 0, block + word, good["state"][0, block + word] ^ 1), word
    assert fits("random", 0, 2, 624, 624) and not fits("random", 0, 2, 624, 625)
    assert fits("state", 0, st.CYCLES, -(2**31)) and fits("state", 0, st.CYCLES, 2**31 - 1)


def test_states_that_are_read_only_or_not_contiguous_are_checked_too(arcade):
    saved = arcade.get_state()
    saved["state"] = np.asfortranarray(np.repeat(saved["state"], 2, 0))[:1]
    saved["random"].flags.writeable = False
    arcade.set_state(saved)
    saved["state"][0, st.CPU_A] = 256
    with pytest.raises(ValueError, match="CPU_A"):
        arcade.set_state(saved)


def test_states_of_running_games_are_accepted():
    for game in ("pong", "montezuma_revenge", "robotank"):
        arcade = Arcade(game, 2)
        for frame in range(40):
            arcade.act([frame % 18, 0])
            arcade.set_state(arcade.get_state())


def test_states_in_the_middle_of_long_episodes_are_accepted():
    """Tetris never strobes HMOVE, so the time since the last one grows; it was refused after 1,100 frames."""
    arcade = Arcade("tetris", 1)
    for _ in range(1300):
        arcade.act(0)
    assert arcade.arrays["state"][0, st.TIA + st.T_LAST_HMOVE] < -(2**26)
    arcade.set_state(arcade.get_state())
    saved = arcade.get_state()
    times = [st.RIOT_SET_CYCLE, st.RIOT_READ_CYCLE, st.DUMP_OFF_CYCLE, st.DPC_MARK_CYCLE, st.VSYNC_FINISH]
    for oldest in (-(2**31), 2**31 - 1):  # after half an hour they start again above zero
        saved["state"][0, [*times, st.FRAME_NUMBER, st.TIA + st.T_LAST_HMOVE]] = oldest
        arcade.set_state(saved)
        arcade.act(0)


def test_states_of_a_frame_that_does_not_end_are_accepted(tmp_path):
    path = tmp_path / "endless.bin"
    path.write_bytes(bytes([0x4C, 0x00, 0xF0]).ljust(4092, b"\xea") + b"\x00\xf0\x00\xf0")
    with pytest.warns(UserWarning, match="not a known game"):
        arcade = Arcade(path, 1)
    for _ in range(1000):
        arcade.act(0)
    assert arcade.arrays["state"][0, st.CYCLES] > 2**26
    saved = arcade.get_state()
    arcade.set_state(saved)
    for most in (-(2**31), 2**31 - 1):
        saved["state"][0, [st.CYCLES, st.SCANLINES]] = most
        arcade.set_state(saved)
        arcade.act(0)


def test_a_random_state_inside_the_ranges_neither_crashes_nor_hangs(arcade, seed):
    random = np.random.default_rng(seed)
    low, high, _ = state_check.bounds_for(arcade.machine)
    good = arcade.get_state()
    for _ in range(60):
        saved = {name: array.copy() for name, array in good.items()}
        row = saved["state"][0]
        for word in random.integers(0, st.TIA, 40):
            row[word] = random.integers(low[word], min(high[word], 2**31 - 2) + 1)
        row[st.CART_BANK] &= ~4095
        row[st.LOGS :] = random.integers(0, 2**31 - 1, st.ROW_WORDS - st.LOGS)
        row[st.LOG_OPEN] = random.integers(2)
        saved["memory"][:] = random.integers(0, 256, saved["memory"].shape)
        arcade.set_state(saved)
        for _ in range(3):
            arcade.act(int(random.integers(18)))
        assert arcade.screen.shape == (1, 210, 160)
    arcade.set_state(good)


def test_a_state_of_one_console_is_given_and_taken_by_its_number():
    pair = Arcade("pong", 2)
    pair.reset(seed=3)
    first = pair.get_state(0)
    pair.act([2, 3])
    pair.set_state(first, 1)
    assert np.array_equal(pair.get_state(1)["state"], first["state"]) and len(first["state"]) == 1
    assert not np.array_equal(pair.get_state(0)["state"], first["state"])
    before = pair.get_state()
    pair.set_state(pair.get_state([]), [])
    assert np.array_equal(pair.get_state()["state"], before["state"])
