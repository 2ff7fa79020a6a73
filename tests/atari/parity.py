"""Frame-by-frame comparison of `Arcade` with ale-py, shared by the tests and the sweep."""

import random

import numpy as np

from parcade.atari import Arcade, games


def play_both(
    game: str,
    num_frames: int,
    seed: int,
    *,
    sticky: float = 0.0,
    hold_frames: int = 4,
    mode=None,
    difficulty=None,
    make=Arcade,
) -> str | None:
    """Play `num_frames` on ale-py and `Arcade`; describe the first difference, or return None.

    Compares RAM, the complete screen, reward, lives, game over and frame numbers after every frame, and
    resets both after game over. `make` builds the arcade.
    """
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", sticky)
    ale.setInt("random_seed", seed & 0x7FFFFFFF)
    ale.loadROM(games.find_rom(game))
    arcade = make(game, 1, repeat_action_probability=sticky)
    ale.reset_game()
    # Adventure's choice of a mode draws numbers even without sticky actions
    arcade.reset(seed=seed & 0x7FFFFFFF)
    if mode is not None or difficulty is not None:
        if mode is not None:
            ale.setMode(mode)
            arcade.mode = mode
        if difficulty is not None:
            ale.setDifficulty(difficulty)
            arcade.difficulty = difficulty
        ale.reset_game()
        arcade.reset()
    player = random.Random(seed)
    action = 0
    for frame in range(num_frames + 1):
        reward, expected = 0, 0
        if frame > 0:
            if frame % hold_frames == 1 or hold_frames == 1:
                action = player.randrange(18)
            expected = ale.act(ale_py.Action(action))
            reward = int(arcade.act(action)[0])
        difference = _difference(ale, arcade, reward, expected)
        if difference:
            return f"{game} frame {frame} seed {seed}: {difference}"
        if ale.game_over():
            ale.reset_game()
            arcade.reset()
    return None


def _difference(ale, arcade: Arcade, reward: int, expected: int) -> str | None:
    ram = ale.getRAM()
    if not np.array_equal(ram, arcade.ram[0]):
        return f"RAM at {[hex(0x80 + i) for i in np.flatnonzero(ram != arcade.ram[0])[:8]]}"
    if not np.array_equal(ale.getScreen(), arcade.screen[0]):
        rows = np.flatnonzero((ale.getScreen() != arcade.screen[0]).any(axis=1))
        return f"screen lines {rows[0]} to {rows[-1]}"
    if reward != expected:
        return f"reward {reward}, ale-py {expected}"
    if ale.lives() != arcade.lives[0]:
        return f"lives {arcade.lives[0]}, ale-py {ale.lives()}"
    if ale.game_over() != bool(arcade.game_over[0]):
        return f"game over {arcade.game_over[0]}, ale-py {ale.game_over()}"
    if ale.getEpisodeFrameNumber() != arcade.episode_frame_number[0]:
        return f"frame number {arcade.episode_frame_number[0]}, ale-py {ale.getEpisodeFrameNumber()}"
    return None
