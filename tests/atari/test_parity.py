"""The native consoles equal ale-py frame by frame."""

import numpy as np
import pytest
from parity import play_both

from parcade.atari import Arcade, games

ale_py = pytest.importorskip("ale_py")

SAMPLE = (
    "pong breakout seaquest ms_pacman qbert space_invaders beam_rider pitfall2 "
    "robotank elevator_action montezuma_revenge journey_escape adventure tetris pooyan"
).split()


@pytest.mark.parametrize("game", SAMPLE)
def test_every_frame_equals_ale_py(game, seed):
    assert play_both(game, 250, seed) is None


@pytest.mark.parametrize("game", ["pong", "breakout"])
def test_every_frame_of_code_that_users_run_equals_ale_py(game, seed, usual_code):
    assert play_both(game, 250, seed) is None


@pytest.mark.parametrize("game", ["pong", "breakout"])
def test_sticky_actions_draw_as_ale_py_draws(game, seed):
    assert play_both(game, 250, seed, sticky=0.25, hold_frames=1) is None


def test_a_menu_is_left_by_itself_if_every_action_repeats_the_one_before(seed):
    """Double Dunk's menu then takes no key; its cursor moves after more than 2,000 frames."""
    assert play_both("double_dunk", 5, seed, sticky=1.0) is None


MODES = [
    ("adventure", 1, 2), ("space_invaders", 5, 1), ("breakout", 8, 1), ("berzerk", 3, 0),
    ("ms_pacman", 2, 0), ("video_cube", 102, 0),
]  # fmt: skip


@pytest.mark.parametrize(("game", "mode", "difficulty"), MODES)
def test_modes_and_difficulties_start_as_in_ale_py(game, mode, difficulty, seed):
    assert play_both(game, 60, seed, mode=mode, difficulty=difficulty) is None


@pytest.mark.exact
@pytest.mark.parametrize("game", sorted(games.load_games()))
def test_all_games_equal_ale_py(game, seed):
    assert play_both(game, 1500, seed) is None


def test_a_saved_state_continues_exactly():
    arcade = Arcade("seaquest", 2)
    arcade.reset()
    for frame in range(30):
        arcade.act([frame % 18, 5])
    saved = arcade.get_state()
    expected = [
        (arcade.act([frame % 18, 1]).tolist(), arcade.ram.copy(), arcade.screen) for frame in range(40)
    ]
    arcade.reset(seed=9)
    arcade.set_state(saved)
    for frame, (rewards, ram, screen) in enumerate(expected):
        assert arcade.act([frame % 18, 1]).tolist() == rewards
        assert np.array_equal(arcade.ram, ram)
        assert np.array_equal(arcade.screen, screen)


NTSC_FRAME = (  # three lines of VSYNC and 250 others
    "A9 02 85 00 85 02 85 02 85 02 A9 00 85 00 A2 FA 85 02 86 09 CA D0 F9"
)
COMPUTE = "A0 00 A2 00 CA D0 FD 88 D0 F8"  # 65,536 rounds, many updates without an end of the frame


@pytest.mark.parametrize("program", ["", NTSC_FRAME, NTSC_FRAME + COMPUTE])
def test_the_television_of_a_program_that_computes_for_long_is_ale_pys(program, tmp_path):
    path = tmp_path / "amidar.bin"  # ale-py needs the name of a game
    path.write_bytes(bytes.fromhex(program + "4C 00 F0").ljust(4092, b"\xea") + b"\x00\xf0\x00\xf0")
    theirs = ale_py.ALEInterface()
    theirs.loadROM(path)
    with pytest.warns(UserWarning, match="not a known game"):
        ours = Arcade(path, 1)
    assert (ours.height, 160) == theirs.getScreenDims()
    assert np.array_equal(ours.screen[0], theirs.getScreen())


def test_an_unknown_rom_runs_without_rules_and_warns(tmp_path):
    path = tmp_path / "unknown.bin"
    path.write_bytes(bytes([0x4C, 0x00, 0xF0]).ljust(4092, b"\xea") + b"\x00\xf0\x00\xf0")
    with pytest.warns(UserWarning, match="not a known game"):
        arcade = Arcade(path, 1)
    assert arcade.act([1]).tolist() == [0]
    assert not arcade.game_over.any()
