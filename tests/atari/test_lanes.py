"""Lanes of a warp on machine code, a few instead of 32, on the CPU; they meet by the rule of `lanes.py`."""

import secrets

import numpy as np
import pytest

from parcade.atari import Arcade
from parcade.atari import state as st
from parcade.atari.cuda.lane_simulation import Lanes, lanes_together
from parcade.atari.games import load_games
from parcade.atari.translate.lanes import STOPPED

pytest.importorskip("ale_py")

LANES, FRAMES = 4, 12


def compare(game: str, seed: int, frames: int = FRAMES) -> tuple[int, int]:
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


def test_a_warp_of_equal_consoles_stays_whole_and_others_do_not():
    alone = lanes_together("pong", 4, lanes=1, warm_up_frames=60)
    assert alone.lanes_active == 1.0
    apart = lanes_together("pong", 4, lanes=8, warm_up_frames=60)
    assert 1.0 < apart.lanes_active < 8.0 and apart.meetings_a_frame > 0
    assert abs(apart.instructions_a_frame / alone.instructions_a_frame - 1) < 0.2


@pytest.mark.parametrize("game", ["pong", "seaquest", "ms_pacman", "pitfall2", "up_n_down"])
def test_lanes_that_meet_play_what_each_plays_alone(game):
    meetings, places = compare(game, secrets.randbits(30))
    assert meetings > LANES * FRAMES and 0 < places < STOPPED


@pytest.mark.exact_gpu
@pytest.mark.parametrize("game", sorted(load_games()))
def test_no_meeting_starves_a_lane_of_any_game(game):
    meetings, places = compare(game, secrets.randbits(30), frames=6)
    assert meetings > 0 and places < STOPPED
