"""Players of a duel: a trained agent, uniformly random actions, and a script for some games."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

import numpy as np

from parcade.agent import Agent
from parcade.atari.duel import Duel
from parcade.atari.two_players import with_fire
from parcade.duels.observation import PlayerObservations, check_has_sides
from parcade.envs.games import action_ids
from parcade.errors import UsageError

SIDES = ("A", "B")
HOLD_FRAMES = 4  # how long a random action is held
NOOP, UP, RIGHT, LEFT, DOWN = 0, 2, 3, 4, 5


class Player(Protocol):
    """One participant, in all its matches at the same time."""

    name: str

    def check(self, game: str) -> None:
        """Check that this player can play a game. Errors: UsageError."""

    def begin(self, duels: list[Duel], side: str, seed: int) -> None:
        """Take a side, ``A`` or ``B``, in n matches that are about to start."""

    def actions(self) -> list[int]:
        """Return the action for the next frame of every match, n ale-py action ids as player A uses them."""


class AgentPlayer:
    """A trained agent. As player B, it sees the picture from the other side (``OtherSide``).

    ``run`` may end in ``@FRAMES``: the agent after these frames of its training.
    """

    def __init__(self, run: str, greedy: bool = False) -> None:
        self.name = os.path.basename(os.path.abspath(run))  # that of "." is not empty
        run, frames = _run_and_frames(run)
        self._agent, self._greedy = Agent(run, checkpoint_frames=frames), greedy
        self._settings = self._agent.config.env

    @property
    def game(self) -> str:
        """The game it was trained on."""
        return self._agent.config.game

    @property
    def variant(self) -> dict[str, int | None]:
        """The mode and the difficulty of the game that it was trained on; None for the game's own."""
        return {"mode": self._settings.mode, "difficulty": self._settings.difficulty}

    def check(self, game: str) -> None:
        check_has_sides(self._settings)

    def begin(self, duels: list[Duel], side: str, seed: int) -> None:
        machine = duels[0].arcade.machine
        self._duels, self._side, self._frame = duels, side, 0
        self._seen = PlayerObservations(self._settings, len(duels), machine.height, pal=machine.pal)
        self._action_set = np.array(action_ids(duels[0].game, self._settings))
        self._before: list[np.ndarray | None] = [None] * len(duels)
        # Of its own side: two agents that drew the same numbers would make similar moves at the same time.
        (bits,) = np.random.SeedSequence([seed, SIDES.index(side)]).generate_state(1, np.uint64)
        self._agent.reset(int(bits >> np.uint64(1)))

    def _pictures(self) -> list[np.ndarray]:
        return [duel.screen if self._side == "A" else duel.screen_b for duel in self._duels]

    def actions(self) -> list[int]:
        skip = self._settings.frame_skip
        if self._frame % skip == 0:
            for match, (last, before) in enumerate(zip(self._pictures(), self._before, strict=True)):
                self._seen.push(match, last, before)
            starts = np.full(len(self._duels), self._frame == 0)
            chosen = self._agent.act(self._seen.observations(), starts, self._greedy)
            self._held = self._action_set[chosen].tolist()
        elif self._frame % skip == skip - 1 and self._seen.pools:
            self._before = self._pictures()
        self._frame += 1
        return self._held


def _run_and_frames(name: str) -> tuple[str, int | None]:
    """Return the parts of ``RUN`` or ``RUN@FRAMES``. The former may contain an @, too."""
    run, _, frames = name.rpartition("@")
    if run and frames.isdecimal() and not os.path.exists(name):
        return run, int(frames)
    return name, None


class RandomPlayer:
    """Uniformly random actions of the game's minimal set, each held for ``HOLD_FRAMES`` frames."""

    name = "random"

    def check(self, game: str) -> None:
        """Do nothing: it plays every game."""

    def begin(self, duels: list[Duel], side: str, seed: int) -> None:
        self._random = np.random.default_rng([seed, SIDES.index(side)])
        self._duels, self._frame = duels, 0

    def actions(self) -> list[int]:
        if self._frame % HOLD_FRAMES == 0:
            self._held = self._random.choice(self._duels[0].arcade.actions, len(self._duels)).tolist()
        self._frame += 1
        return self._held


def follow_ball(ram: np.ndarray, side: str, frame: int) -> int:
    """Pong: keep the paddle at the ball's height. RIGHT moves it up."""
    ball, paddle = int(ram[0x36]), int(ram[0x33 if side == "A" else 0x32])
    below = ball - paddle - 4
    return NOOP if ball == 0 or abs(below) < 3 else LEFT if below > 0 else RIGHT


def approach_and_punch(ram: np.ndarray, side: str, frame: int) -> int:
    """Boxing: stand next to the opponent, one glove at the height of its head, and punch."""
    own, other = (0, 1) if side == "A" else (1, 0)
    x, y = int(ram[0x20 + own]), int(ram[0x22 + own])
    other_x, other_y = int(ram[0x20 + other]), int(ram[0x22 + other])
    forward = 1 if side == "A" else -1
    distance = forward * (other_x - x)
    turned_down = (other_y - y) if side == "A" else (y - other_y)  # as seen with the picture turned
    if distance > 26:
        return RIGHT
    if abs(abs(turned_down) - 14) > 5:
        return DOWN if (turned_down > 14 or -14 < turned_down < 0) else UP
    return with_fire(NOOP) if frame % 8 < 4 else NOOP


SCRIPTS: dict[str, Callable[[np.ndarray, str, int], int]] = {
    "pong": follow_ball,
    "boxing": approach_and_punch,
}
"""Per game: an action, as player A uses it, from RAM ``[128]``, the side and the frame."""


class ScriptedPlayer:
    """A short rule per game that reads RAM."""

    name = "scripted"

    def check(self, game: str) -> None:
        if game not in SCRIPTS:
            raise UsageError(
                f"scripted plays {', '.join(SCRIPTS)}, not {game}; use random or a run directory"
            )

    def begin(self, duels: list[Duel], side: str, seed: int) -> None:
        game = duels[0].game
        self.check(game)
        self._script, self._duels, self._side, self._frame = SCRIPTS[game], duels, side, 0

    def actions(self) -> list[int]:
        self._frame += 1
        return [self._script(duel.ram, self._side, self._frame) for duel in self._duels]


def make_player(name: str, greedy: bool = False) -> Player:
    """Return ``random``, ``scripted``, or the agent of a run directory. Errors: UsageError."""
    if name == "random":
        return RandomPlayer()
    if name == "scripted":
        return ScriptedPlayer()
    return AgentPlayer(name, greedy)
