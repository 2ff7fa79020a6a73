"""Lanes of a warp on machine code: 32 in the product, a few here, on the CPU, meeting by the rule of `lanes.py`."""

import secrets

import numpy as np
import pytest
from lanes_on_cpu import LanesOnCpu, compile_form, play_group_of_states

from parcade.atari import Arcade, console, rules
from parcade.atari import state as st
from parcade.atari.games import load_games
from parcade.atari.translate import rom_image, tracing
from parcade.atari.translate.lanes import STOPPED

pytest.importorskip("ale_py")

LANES, FRAMES = 4, 12


def lanes_of(arcade: Arcade) -> LanesOnCpu:
    rom = arcade.machine.rom
    kind = int(arcade.machine.powered["state"][0, st.CART_KIND])
    seen, entered = tracing.trace(arcade.machine.powered, rom, arcade.machine.program)
    code, reached = rom_image.find_code(rom_image.Image(rom, kind), seen)
    return LanesOnCpu(rom_image.Image(rom, kind), code, reached | entered)


def compare(game: str, seed: int, frames: int = FRAMES) -> tuple[int, int]:
    """Consoles that have drifted apart, as a group of lanes and as the CPU engine plays them; returns meetings and places."""
    arcade = Arcade(game, LANES)
    arcade.reset(seed=np.arange(LANES))
    player = np.random.default_rng(seed)
    for _ in range(30):
        arcade.act(player.choice(arcade.actions, LANES))
    rom, program = arcade.machine.rom, arcade.machine.program
    code = compile_form(lanes_of(arcade))
    rows = {name: array.copy() for name, array in arcade.arrays.items()}
    meetings = 0
    for frame in range(frames):
        actions = player.choice(arcade.actions, LANES)
        over = arcade.arrays["state"][:, st.TERMINAL] != 0
        arcade.act(actions)
        for e in range(LANES):
            s, memory = rows["state"][e], rows["memory"][e]
            s[st.ACTION] = actions[e]
            console.apply_controls(s, int(actions[e]))
            console.begin_update(s, memory)
        meetings += play_group_of_states(rows, rom, code, console.INSTRUCTION_LIMIT)[0]
        for e in range(LANES):
            console.end_update(rows["state"][e], rows["screen"][e])
            rules.execute(rows["state"][e], rows["memory"][e], program, program[rules.AT_STEP])
        assert np.array_equal(rows["memory"][~over], arcade.arrays["memory"][~over]), f"{game}, seed {seed}, frame {frame}"
        words = slice(0, st.CART_BANK + 1)
        got, want = rows["state"][~over, words].copy(), arcade.arrays["state"][~over, words].copy()
        got[:, st.BUS] = want[:, st.BUS] = 0  # means nothing between instructions
        assert np.array_equal(got, want), f"{game}, seed {seed}, frame {frame}"
        rows["state"][over], rows["memory"][over] = arcade.arrays["state"][over], arcade.arrays["memory"][over]
    return meetings, len(code.places)


@pytest.mark.parametrize("game", ["pong", "seaquest", "ms_pacman", "pitfall2", "up_n_down"])
def test_lanes_that_meet_play_what_each_plays_alone(game):
    meetings, places = compare(game, secrets.randbits(30))
    assert meetings > LANES * FRAMES and 0 < places < STOPPED


@pytest.mark.exact_gpu
@pytest.mark.parametrize("game", sorted(load_games()))
def test_no_meeting_starves_a_lane_of_any_game(game):
    meetings, places = compare(game, secrets.randbits(30), frames=6)
    assert meetings > 0 and places < STOPPED
