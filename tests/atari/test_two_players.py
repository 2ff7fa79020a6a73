"""Player B's controls, the switches, and matches of two players on one console."""

import numpy as np
import pytest

from parcade.atari import console, joystick, riot, rule_machine, rules, state
from parcade.atari.arcade import Arcade
from parcade.atari.duel import Duel
from parcade.atari.two_players import TWO_PLAYER_GAMES

NOOP, FIRE, UP, RIGHT, LEFT, DOWN = range(6)


def ports(action_a: int, action_b: int, **constants: int) -> np.ndarray:
    """Return a state row after one set of controls, on a console with these constants of the ROM."""
    row = np.zeros(state.ROW_WORDS, np.int32)
    row[state.PADDLE_A] = row[state.PADDLE_B] = 400_000
    row[state.PADDLE_MIN], row[state.PADDLE_MAX] = 27_450, 790_196
    for name, value in constants.items():
        row[getattr(state, name)] = value
    console.apply_controls(row, action_a, action_b)
    return row


def reads_of_joystick(action_a: int, action_b: int, **constants: int) -> tuple[int, int, int]:
    """SWCHA, INPT4 and INPT5."""
    row = ports(action_a, action_b, **constants)
    return int(riot.read(row, 0x280)), int(row[state.IN_INPT4]), int(row[state.IN_INPT5])


@pytest.fixture(scope="module", autouse=True)
def compiled():
    Arcade("pong", 1)


@pytest.mark.parametrize(("action", "bit"), [(UP, 0x01), (DOWN, 0x02), (LEFT, 0x04), (RIGHT, 0x08)])
def test_player_b_pulls_down_the_low_half_of_swcha_and_player_a_the_high_half(action, bit):
    assert reads_of_joystick(NOOP, action) == (0xFF & ~bit, 0x80, 0x80)
    assert reads_of_joystick(action, NOOP) == (0xFF & ~(bit << 4), 0x80, 0x80)
    assert reads_of_joystick(action, action) == (0xFF & ~(bit << 4 | bit), 0x80, 0x80)


def test_the_fire_buttons_of_joysticks_are_inpt4_and_inpt5():
    assert reads_of_joystick(FIRE, NOOP) == (0xFF, 0, 0x80)
    assert reads_of_joystick(NOOP, FIRE) == (0xFF, 0x80, 0)


def test_swapped_ports_exchange_the_players():
    assert reads_of_joystick(NOOP, UP, ROM_SWAP_PORTS=1) == (0xFF & ~0x10, 0x80, 0x80)
    assert reads_of_joystick(NOOP, FIRE, ROM_SWAP_PORTS=1) == (0xFF, 0, 0x80)


@pytest.mark.parametrize("swap", [0, 1])
def test_player_b_turns_the_second_paddle_of_the_left_port_alone(swap):
    own, button = (state.IN_CHARGE, 0x80) if swap else (state.IN_CHARGE + 1, 0x40)
    paddles = {"ROM_LEFT_PADDLES": 1, "ROM_SWAP_PADDLES": swap}
    idle, right, fire = (ports(NOOP, action, **paddles) for action in (NOOP, RIGHT, FIRE))
    changed = np.flatnonzero(idle != right)
    assert changed.tolist() == [own, state.PADDLE_B]
    assert right[state.PADDLE_B] == idle[state.PADDLE_B] - joystick.PADDLE_STEP
    assert right[own] < idle[own]
    assert riot.read(fire, 0x280) == 0xFF & ~button


def test_a_program_reads_player_b_where_the_cartridge_expects_it():
    """A ROM that copies SWCHA, SWCHB, INPT4 and INPT5 to RAM in a loop, with one VSYNC per frame."""
    code = bytes.fromhex(
        "a902 8500 8502 8502 8502 a900 8500"  # VSYNC on for three lines
        "ad8002 8580 ad8202 8581 a50c 8582 a50d 8583"
        "a2fa 8502 ca d0fb"  # 250 lines
        "4c00f0"
    )
    arcade = arcade_of(code)
    arcade.act(UP, DOWN)
    arcade.act(UP, DOWN)
    assert arcade.ram[0, 0] == 0xFF & ~0x10 & ~0x02
    arcade.act(NOOP, FIRE)
    arcade.act(NOOP, FIRE)
    assert arcade.ram[0, 0] == 0xFF
    assert (arcade.ram[0, 2:4] & 0x80).tolist() == [0x80, 0]
    arcade.press(select=True)
    arcade.act(NOOP)
    arcade.act(NOOP)
    assert arcade.ram[0, 1] & 3 == 1
    arcade.press(reset=True)
    arcade.act(NOOP)
    arcade.act(NOOP)
    assert arcade.ram[0, 1] & 3 == 2


def arcade_of(code: bytes) -> Arcade:
    """An arcade that runs a 4K ROM with this code at $F000."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "program.bin"
        path.write_bytes(code.ljust(4092, b"\xea") + b"\x00\xf0\x00\xf0")
        with pytest.warns(UserWarning, match="not a known game"):
            return Arcade(path, 1)


@pytest.mark.parametrize("game", ["pong", "boxing"])  # with modes, which SELECT chooses, and without
def test_a_reset_releases_the_switches(game):
    plain, pressed = Arcade(game, 1), Arcade(game, 1)
    pressed.press(select=True, reset=True)
    for arcade in (plain, pressed):
        arcade.reset()
        for _ in range(20):
            arcade.act(NOOP)
    assert np.array_equal(pressed.ram, plain.ram)


def test_an_idle_player_b_is_no_player_b():
    alone, both = Arcade("pong", 1), Arcade("pong", 1)
    for action in np.random.default_rng(0).integers(0, 18, 100).tolist():
        assert alone.act(action) == both.act(action, NOOP)
    assert all(np.array_equal(alone.arrays[name], both.arrays[name]) for name in alone.arrays)


def test_each_player_repeats_an_action_with_a_random_number_of_its_own():
    arcade = Arcade("boxing", 1, repeat_action_probability=0.5)
    arcade.reset(seed=3)
    held = []
    for frame in range(200):
        arcade.act(*((UP, DOWN) if frame % 2 else (LEFT, RIGHT)))
        held.append(arcade.arrays["state"][0, [state.ACTION, state.ACTION_B]].tolist())
    repeated = np.array(held[1:]) == np.array(held[:-1])
    assert 60 < repeated[:, 0].sum() < 140 and 60 < repeated[:, 1].sum() < 140
    assert (repeated[:, 0] != repeated[:, 1]).sum() > 40


def test_the_word_of_player_b_was_zero_in_states_saved_before_it_existed():
    """It was the last variable of the rules, which no game uses, so those states load with player B idle."""
    assert state.ACTION_B == state.RULE_VARIABLES + state.NUM_RULE_VARIABLES
    assert state.ACTION_B < state.RULE_STACK
    from parcade.atari.games import load_games

    for row in load_games().values():
        program = rules.compile_rules(row)
        pairs = program[rules.HEADER_WORDS : program[rules.START_AT]].reshape(-1, 2)
        stored = pairs[np.isin(pairs[:, 0], (rule_machine.LOAD, rule_machine.STORE)), 1]
        assert state.ACTION_B not in stored


def test_the_limit_of_frames_was_zero_in_states_saved_before_it_existed():
    """It was the lowest word of the rules' stack, in which the empty stack's 0 is kept."""
    assert state.FRAMES_ALLOWED == state.RULE_STACK - 1
    arcade = Arcade("pong", 1)
    arcade.arrays["state"][0, state.RULE_STACK] = 1
    arcade.act(NOOP)
    assert arcade.arrays["state"][0, state.RULE_STACK] == 0


def test_wrong_actions_of_player_b_are_refused():
    with pytest.raises(ValueError, match="expected 0 to 17"):
        Arcade("pong", 1).act(NOOP, 18)


@pytest.mark.parametrize("actions", [[NOOP, 18], [-1, NOOP]])
def test_no_console_plays_if_one_action_is_refused(actions):
    arcade = Arcade("pong", 2)
    arcade.reset(seed=1)
    before = {name: array.copy() for name, array in arcade.arrays.items()}
    with pytest.raises(ValueError, match="expected 0 to 17"):
        arcade.act(np.array(actions))
    assert all(np.array_equal(array, before[name]) for name, array in arcade.arrays.items())
    arcade.act(np.array([NOOP, NOOP]))
    assert not np.array_equal(arcade.arrays["state"], before["state"])


# --- matches ------------------------------------------------------------------------------------------------


def follow_ball(ram: np.ndarray, paddle: int) -> int:
    below = int(ram[0x36]) - int(ram[paddle]) - 4
    return NOOP if ram[0x36] == 0 or abs(below) < 3 else LEFT if below > 0 else RIGHT


def pong_match(scripted: str) -> tuple[tuple[int, int], list[int], list[bytes]]:
    """A complete match of a script that follows the ball against a still paddle: points, rewards, RAM."""
    duel, rewards, seen = Duel("pong", seed=5), [], []
    while not duel.over and duel.frames < 8000:
        serve = FIRE if duel.frames % 30 == 0 else NOOP
        play = follow_ball(duel.ram, 0x33 if scripted == "a" else 0x32)
        play = FIRE if serve else play
        reward, other = duel.act(*((play, serve) if scripted == "a" else (serve, play)))
        assert other == -reward
        rewards.append(reward)
        seen.append(duel.ram.tobytes())
    assert duel.over
    return tuple(duel.scores), rewards, seen


def test_a_whole_pong_match_is_deterministic_and_mirrored():
    (points, rewards, seen), (mirrored, other_rewards, _) = pong_match("a"), pong_match("b")
    assert pong_match("a") == (points, rewards, seen)
    assert points == (21, 0) and mirrored == (0, 21)
    assert sum(rewards) == 21 and sum(other_rewards) == -21


def test_a_refused_action_is_no_frame():
    match = Duel("pong", 0)
    with pytest.raises(ValueError):
        match.act(99, 0)
    assert match.frames == 0


def test_after_the_end_of_a_match_nothing_happens():
    duel = Duel("pong")
    duel.ram[0x0E] = 20  # player A's points
    while not duel.over:
        duel.act(FIRE if duel.frames % 30 == 0 else NOOP, FIRE if duel.frames % 30 == 0 else NOOP)
    before, frames = duel.ram.copy(), duel.frames
    assert duel.act(RIGHT, RIGHT) == (0, 0)
    assert duel.frames == frames and np.array_equal(duel.ram, before)


def test_the_starting_picture_looks_the_same_from_either_side():
    duel = Duel("pong")
    assert (duel.screen != duel.screen_b).sum() <= 16  # the paddles differ by one line
    duel.act(NOOP, RIGHT)
    mirrored = duel.variation.other_side
    assert np.array_equal(mirrored.picture(duel.screen_b), duel.screen)


@pytest.mark.parametrize("game", TWO_PLAYER_GAMES)
def test_looking_twice_from_the_other_side_is_looking_from_ones_own(game):
    side = TWO_PLAYER_GAMES[game].other_side
    screen = np.random.default_rng(0).integers(0, 256, (210, 160)).astype(np.uint8)
    assert np.array_equal(side.picture(side.picture(screen)), screen)
    assert [side.action(side.action(action)) for action in range(18)] == list(range(18))


def test_turning_boxing_turns_its_actions():
    side = TWO_PLAYER_GAMES["boxing"].other_side
    assert [side.action(action) for action in (NOOP, FIRE, UP, RIGHT, LEFT, DOWN, 6, 14)] == [
        NOOP, FIRE, DOWN, LEFT, RIGHT, UP, 9, 17,
    ]  # fmt: skip


def test_a_game_that_is_not_offered_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match="breakout is not offered for two players; use one of pong, boxing"):
        Duel("breakout")
