"""Lanes of a warp on machine code, a few instead of 32, on the CPU; they meet by the rule of `lanes.py`."""

import pytest
from thread_parity import FRAMES, LANES, play_lanes

from parcade.atari.cuda.lane_simulation import lanes_together
from parcade.atari.games import load_games
from parcade.atari.translate.lanes import STOPPED

pytest.importorskip("ale_py")


@pytest.mark.gpu_code
def test_a_warp_of_equal_consoles_stays_whole_and_others_do_not():
    alone = lanes_together("pong", 4, lanes=1, warm_up_frames=60)
    assert alone.lanes_active == 1.0
    apart = lanes_together("pong", 4, lanes=8, warm_up_frames=60)
    assert 1.0 < apart.lanes_active < 8.0 and apart.meetings_a_frame > 0
    assert abs(apart.instructions_a_frame / alone.instructions_a_frame - 1) < 0.2


@pytest.mark.gpu_code
@pytest.mark.parametrize("game", ["pong", "seaquest", "ms_pacman", "pitfall2", "up_n_down"])
def test_lanes_that_meet_play_what_each_plays_alone(game, seed):
    meetings, places = play_lanes(game, seed)
    assert meetings > LANES * FRAMES and 0 < places < STOPPED


@pytest.mark.exact_gpu
@pytest.mark.parametrize("game", sorted(load_games()))
def test_no_meeting_starves_a_lane_of_any_game(game, seed):
    meetings, places = play_lanes(game, seed, frames=6)
    assert meetings > 0 and places < STOPPED
