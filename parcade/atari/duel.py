"""`Duel`: a match of two players on one exact console."""

from typing import NamedTuple

import numpy as np

from . import games
from .arcade import Arcade
from .two_players import two_player_game

IDLE_FRAMES = 30  # a match starts with a random number of frames without input, below this


class Scores(NamedTuple):
    """Points on the screen of player A and player B."""

    a: int
    b: int


class Duel:
    """One match of a game of `two_players.py`, frame by frame.

    The console starts as ale-py's does, with the two-player variation selected by its switches. `seed` seeds
    the number of frames without input at the start; everything else follows from the actions, so a match
    replays exactly from its seed and actions. Sticky actions are off.
    Attributes: `frames`, number of video frames of this match since its idle start; `seed`; `arcade`, the
    console; `variation`, the row of `two_players.py`.
    Errors: ValueError for a game that is not offered, or for a negative seed.
    """

    def __init__(self, game: str, seed: int = 0):
        self.game = games.snake_case(game)
        self.variation = two_player_game(self.game)
        self.arcade = Arcade(self.game, 1, rules_instead=self.variation.rules)
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start the match of a seed, 0 or more. Errors: ValueError."""
        self.seed = seed
        self.frames = 0
        self.arcade.reset(seed=seed)
        for _ in range(np.random.default_rng(seed).integers(IDLE_FRAMES)):
            self.arcade.act(0)

    def act(self, action_a: int, action_b: int) -> tuple[int, int]:
        """Play one frame with ale-py action ids (0-17); return both players' rewards, which sum to 0.

        The reward of player A is that of the game's rules, in points, not clipped. After the end of the
        match, no frame runs and the rewards are 0. Errors: ValueError for other actions.
        """
        was_over = self.over
        reward = int(self.arcade.act(action_a, action_b)[0])
        if not was_over:
            self.frames += 1
        return reward, -reward

    @property
    def over(self) -> bool:
        """Whether the match has ended."""
        return bool(self.arcade.game_over[0])

    @property
    def scores(self) -> Scores:
        """Both players' points."""
        return Scores(*(points(self.ram) for points in self.variation.scores))

    @property
    def ram(self) -> np.ndarray:
        """RIOT RAM, uint8 `[128]`. This is a view: writing to it changes the console."""
        return self.arcade.ram[0]

    @property
    def screen(self) -> np.ndarray:
        """Palette indices of the current frame, uint8 `[height, 160]`."""
        return self.arcade.screen[0]

    @property
    def screen_b(self) -> np.ndarray:
        """The current frame as player A would see it in player B's place, uint8 `[height, 160]`."""
        return self.variation.other_side.picture(self.screen)
