"""States of consoles move between the CPU and the GPU's kernels, run on the CPU, and go on identically."""

import copy

import numpy as np
import pytest
from thread_parity import DeviceArcadeOnHost, both_after, state_of

from parcade.atari import Arcade, VectorConsoles
from parcade.atari.cuda.engine import HostThreads
from parcade.atari.cuda.transfer import rows_to_device
from parcade.atari.cuda.vector import DeviceConsoles
from parcade.atari.state import FRAME_NUMBER, LOG_SLOT, TERMINAL

pytestmark = pytest.mark.gpu_code

pytest.importorskip("ale_py")


@pytest.mark.parametrize("obs_type", ["ram", "rgb"])
def test_states_of_other_observations_move_between_devices(obs_type):
    settings = {
        "obs_type": obs_type,
        "img_height": 42,
        "img_width": 42,
        "stack_num": 2,
        "start_states": "cached",
        "num_starts": 2,
    }
    expected, consoles, _ = both_after("breakout", 12, 2, **settings)
    again = DeviceConsoles("breakout", 2, HostThreads(), **settings)
    again.set_state(consoles.get_state() if obs_type == "ram" else state_of(expected))
    for step in range(6):
        want, got = expected.step(np.array([step % 4, 1])), again.step(np.array([step % 4, 1]))
        assert np.array_equal(want.observations, got.observations) and np.array_equal(
            want.rewards, got.rewards
        )


def test_a_game_that_was_over_already_plays_no_frame():
    expected, consoles, _ = both_after("breakout", 3, 2)
    state = state_of(expected)
    state["console.state"] = state["console.state"].copy()
    state["console.state"][0, TERMINAL] = 1
    expected.arrays["state"][0, TERMINAL] = 1
    consoles.set_state(state)
    want, got = expected.step(np.zeros(2, np.int64)), consoles.step(np.zeros(2, np.int64))
    assert want.terminated.tolist() == got.terminated.tolist() == [True, False]
    assert np.array_equal(want.frame_number, got.counters[:, 1]) and np.array_equal(
        want.observations, got.observations
    )


@pytest.mark.parametrize("game", ["breakout", "tic_tac_toe_3d"])
def test_pictures_are_drawn_for_the_host_as_they_would_be_there(game):
    expected, consoles, _ = both_after(game, 25, 3)
    state = consoles.get_state()
    rows = {
        name.removeprefix("console."): array for name, array in state.items() if name.startswith("console.")
    }
    assert np.array_equal(state["captured"][:, :2], expected.captured[:, :2])
    wanted, got = rows_to_device(expected.arrays), rows_to_device(rows)
    assert np.array_equal(wanted.memory, got.memory) and np.array_equal(wanted.screens, got.screens)
    assert state["captured"].any()


def test_a_console_moves_between_devices_and_goes_on_identically():
    arcade = Arcade("space_invaders", 3)
    for frame in range(40):
        arcade.act([frame % 18, 5, 1])
    device = DeviceArcadeOnHost("space_invaders", 4)
    device.seed_from(arcade, 1, 3)  # consoles 1, 2, 1, 2
    for frame in range(30):
        arcade.act([0, frame % 18, 3])
        device.act([frame % 18, 3, frame % 18, 3])
        assert np.array_equal(device.ram, arcade.ram[[1, 2, 1, 2]])
        assert np.array_equal(device.screen, arcade.screen[[1, 2, 1, 2]])
    back = Arcade("space_invaders", 4)
    back.set_state(device.get_state())
    for frame in range(30):
        rewards = back.act(frame % 18).tolist(), device.act(frame % 18).tolist()
        assert rewards[0] == rewards[1]
        assert np.array_equal(back.ram, device.ram)
        assert np.array_equal(back.screen, device.screen)
    assert device.halted.tolist() == back.halted.tolist() == [False] * 4


def test_a_console_from_a_device_among_others_can_be_saved_and_copied():
    device, arcade = DeviceArcadeOnHost("tic_tac_toe_3d", 2), Arcade("tic_tac_toe_3d", 2)
    for frame in range(20):
        device.act([frame % 18, 3])
        arcade.act([5, frame % 18])
    arcade.set_state(device.get_state(0), 0)
    again = copy.deepcopy(arcade)
    again.set_state(arcade.get_state())
    device.seed_from(arcade, 0, 2)
    for frame in range(20):
        for each in (arcade, again, device):
            each.act([3, frame % 18])
        assert np.array_equal(arcade.screen, again.screen) and np.array_equal(arcade.screen, device.screen)
    for junk in (None, {}, {"version": 1}):
        with pytest.raises(ValueError, match="expected the dict of get_state"):
            device.set_state(junk)


@pytest.mark.parametrize("consoles", [1, -1, [2, 0], [True, False, True], slice(1, 3), slice(None), []])
def test_some_consoles_of_a_device_are_saved_and_restored(consoles):
    device, arcade = DeviceArcadeOnHost("tic_tac_toe_3d", 3), Arcade("tic_tac_toe_3d", 3)
    for frame in range(10):
        for each in (device, arcade):
            each.act([frame % 18, 3, 5])
    saved, expected = device.get_state(consoles), arcade.get_state(consoles)
    for name in ("memory", "md5"):
        assert np.array_equal(saved[name], expected[name]), name
    assert len(saved["state"]) == len(expected["state"])
    for each in (device, arcade):
        each.act([2, 4, 6])
        each.set_state(saved, consoles)
    assert np.array_equal(device.screen, arcade.screen)
    for frame in range(10):
        rewards = device.act([5, frame, 2]).tolist(), arcade.act([5, frame, 2]).tolist()
        assert rewards[0] == rewards[1]
        assert np.array_equal(device.ram, arcade.ram) and np.array_equal(device.screen, arcade.screen)


def test_rows_of_a_device_are_restored_once_each_and_the_last_one_counts():
    device = DeviceArcadeOnHost("pong", 3)
    states = []
    for action in (2, 3):
        for _ in range(10):
            device.act(action)
        states.append(device.get_state(0))
    both = {
        name: array if name in ("version", "md5") else np.concatenate([array, states[1][name]])
        for name, array in states[0].items()
    }
    device.set_state(both, [1, 1])
    assert np.array_equal(device.get_state(1)["state"], states[1]["state"])
    with pytest.raises(ValueError, match="consoles=7: expected 0 to 2"):
        device.get_state(7)


def test_a_state_no_kernel_could_work_on_is_refused_and_changes_nothing():
    device = DeviceConsoles("pong", 2, HostThreads())
    device.reset(seed=1)
    state, before = device.get_state(), device.get_state()
    state["console.state"][1, LOG_SLOT] = 400_000_000
    state["elapsed"][:] = 7
    with pytest.raises(ValueError, match="LOG_SLOT .* of row 1 is 400000000; expected 0 to 2"):
        device.set_state(state)
    with pytest.raises(ValueError, match=r"captured is None; expected uint64 \(2, 3, 4200\)"):
        device.set_state({name: array for name, array in before.items() if name != "captured"})
    for name, wrong in (
        ("elapsed", before["elapsed"].astype(np.float32)),
        ("elapsed", [[1, 2], [3]]),
        ("console.memory", before["console.memory"].astype(np.int64) + 256),
    ):
        with pytest.raises(ValueError, match=f"saved consoles: {name} "):
            device.set_state({**before, name: wrong})
    after = device.get_state()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    device.set_state({name: array.tolist() if name == "elapsed" else array for name, array in before.items()})


@pytest.mark.parametrize(
    ("game", "n", "sticky"),
    [("pong", 2, 0.25), ("pong", 1, 0.0), ("adventure", 2, 0.0), ("adventure", 2, 0.25)],
)
def test_environments_go_on_from_a_state_of_the_other_device(game, n, sticky):
    """Both ways, over restarts, which draw from all generators, including that of sticky actions."""
    settings = {
        "repeat_action_probability": sticky,
        "max_num_frames_per_episode": 40,
        "mode": 1 if game == "adventure" else None,
    }
    consoles = VectorConsoles(game, n, **settings)
    consoles.reset(seed=3)
    for step in range(20):
        consoles.step(np.array([step % 6, 2])[:n])
    device = DeviceConsoles(game, n, HostThreads(), **settings)
    device.set_state(state_of(consoles))
    assert device.outcome.counters[:, 1].tolist() == consoles.arrays["state"][:, FRAME_NUMBER].tolist()
    for step in range(20):
        want, got = consoles.step(np.array([2, step % 6])[:n]), device.step(np.array([2, step % 6])[:n])
        assert np.array_equal(want.observations, got.observations)
        assert np.array_equal(want.rewards, got.rewards)
    state = device.get_state()
    assert np.array_equal(consoles.arrays["random"][:, :, 624], state["console.random"][:, :, 624])
    again = DeviceConsoles(game, n, HostThreads(), **settings)
    again.set_state(state)
    for step in range(12):
        want, got = consoles.step(np.array([2, step % 6])[:n]), again.step(np.array([2, step % 6])[:n])
        assert np.array_equal(want.observations, got.observations)


def test_a_state_of_other_sticky_actions_or_pictures_is_refused():
    consoles, device = (
        VectorConsoles("pong", 1, repeat_action_probability=0.25),
        DeviceConsoles("pong", 1, HostThreads()),
    )
    consoles.reset(seed=3)
    with pytest.raises(ValueError, match="sticky actions of row 0 is 0.25; expected 0; use the settings"):
        device.set_state(state_of(consoles))
    device = DeviceConsoles("pong", 1, HostThreads(), repeat_action_probability=0.25)
    consoles.captured[0, 0, 5] ^= np.uint64(1)
    with pytest.raises(ValueError, match="captured frame of row 0 is not its console's current frame"):
        device.set_state(state_of(consoles))
