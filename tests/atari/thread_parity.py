"""Compare the GPU's thread bodies and lanes, run on the CPU, with the CPU engine and with ale-py."""

import functools

import numpy as np

from parcade.atari import Arcade, VectorConsoles
from parcade.atari import state as st
from parcade.atari.cuda.arcade import DeviceArcade
from parcade.atari.cuda.engine import HostThreads
from parcade.atari.cuda.lane_simulation import Lanes
from parcade.atari.cuda.vector import DeviceConsoles

DeviceArcadeOnHost = functools.partial(DeviceArcade, threads=HostThreads())
LANES, FRAMES = 4, 12


def play_lanes(game: str, seed: int, frames: int = FRAMES) -> tuple[int, int]:
    """Play diverged consoles as a group of lanes and on the CPU engine; return meetings and places."""
    arcade = Arcade(game, LANES)
    arcade.reset(seed=np.arange(LANES))
    player = np.random.default_rng(seed)
    for _ in range(30):
        arcade.act(player.choice(arcade.actions, LANES))
    group = Lanes(arcade)
    meetings = 0
    for frame in range(frames):
        actions = player.choice(arcade.actions, LANES)
        over = arcade.game_over
        arcade.act(actions)
        meetings += group.act(actions).meetings
        words = slice(0, st.CART_BANK + 1)
        got, want = group.arrays["state"][~over, words].copy(), arcade.arrays["state"][~over, words].copy()
        got[:, st.BUS] = want[:, st.BUS] = 0  # undefined between instructions
        assert np.array_equal(got, want), f"{game}, seed {seed}, frame {frame}"
        assert np.array_equal(group.arrays["memory"][~over], arcade.arrays["memory"][~over]), (
            f"{game}, seed {seed}, frame {frame}"
        )
        for name in ("state", "memory"):
            group.arrays[name][over] = arcade.arrays[name][over]
    return meetings, len(group.code.places)


def play_steps(game: str, num_steps: int, seed: int, n: int = 2, **settings) -> int:
    """Play both and compare every output of a step; return the number of finished episodes."""
    expected = VectorConsoles(game, n, **settings)
    consoles = DeviceConsoles(game, n, HostThreads(seed), **settings)
    assert np.array_equal(expected.reset(seed=seed)[0], consoles.reset(seed=seed)[0])
    player = np.random.default_rng(seed)
    episodes = 0
    for step in range(num_steps):
        actions = player.integers(0, len(consoles.action_set), n)
        want, got = expected.step(actions), consoles.step(actions)
        for name in ("observations", "rewards", "terminated", "truncated"):
            assert np.array_equal(getattr(want, name), getattr(got, name)), (
                f"{name} of {game}, seed {seed}, step {step}"
            )
        assert np.array_equal(
            np.stack([want.lives, want.frame_number, want.episode_frame_number], 1), got.counters
        )
        ended = want.terminated | want.truncated
        assert np.array_equal(ended, got.over)
        if ended.any():
            assert np.array_equal(want.final_observations[ended], got.final_observations[ended])
        episodes += int(ended.sum())
    return episodes


def both_after(
    game: str, num_steps: int, n: int, **settings
) -> tuple[VectorConsoles, DeviceConsoles, set[int]]:
    """Return both engines after ``num_steps`` equal steps, and the places of the frames' second images."""
    expected, consoles = (
        VectorConsoles(game, n, **settings),
        DeviceConsoles(game, n, HostThreads(3), **settings),
    )
    assert np.array_equal(expected.reset(seed=4)[0], consoles.reset(seed=4)[0])
    player = np.random.default_rng(5)
    places = set()
    for step in range(num_steps):
        actions = player.integers(0, len(consoles.action_set), n)
        want, got = expected.step(actions), consoles.step(actions)
        assert np.array_equal(want.observations, got.observations), (game, step)
        ended = want.terminated | want.truncated
        if ended.any():
            assert np.array_equal(want.final_observations[ended], got.final_observations[ended]), (game, step)
        places |= set(consoles.seen.second.tolist())
    return expected, consoles, places


def state_of(consoles: VectorConsoles) -> dict[str, np.ndarray]:
    state = {f"console.{name}": array for name, array in consoles.arrays.items()}
    return state | {name: getattr(consoles, name) for name in ("observations", "captured", "elapsed")}
