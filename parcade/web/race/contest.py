"""One episode of a race, frame by frame: a person alone, side by side with an agent, or against it.

An agent decides in ``think``, which is called after the person's picture has been sent: its network must not
delay the picture.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from parcade.atari.arcade import Arcade
from parcade.atari.duel import Duel
from parcade.atari.held_keys import FIRE, action_of
from parcade.atari.recording import Recording, Session
from parcade.atari.two_players import SERVE_FRAMES, with_fire
from parcade.duels.players import Player, make_player
from parcade.errors import UsageError
from parcade.files.run_directory import complete_checkpoints


class Contest(Protocol):
    """One episode. ``mode`` is one of ``book.MODES``; ``session`` is what the person plays."""

    mode: str
    session: Session

    def play_frame(self, action: int, other: int | None = None) -> None:
        """Play one frame; ``action`` is the person's. ``other`` repeats a recorded action of the agent."""

    def think(self) -> None:
        """Let the agent decide on its next action."""

    @property
    def scores(self) -> list[int]:
        """The person's points, and the agent's if there is one."""

    @property
    def pictures(self) -> list[np.ndarray]:
        """The screens of the consoles, palette indices ``[height, 160]`` uint8; the person's first."""

    @property
    def rival_plays(self) -> bool:
        """Whether the agent's episode goes on."""

    def opponents_recording(self) -> Recording | None:
        """Return what the agent has played on a console of its own."""


class Alone:
    """The person on one console, in the game against the console. Arguments as for ``Session``."""

    mode = "alone"

    def __init__(self, game: str, seed: int, **variant: int | None) -> None:
        self.session = Session(game, seed, **variant)
        self._score = 0

    def play_frame(self, action: int, other: int | None = None) -> None:
        self._score += self.session.act(action)

    def think(self) -> None:
        pass

    @property
    def scores(self) -> list[int]:
        return [self._score]

    @property
    def pictures(self) -> list[np.ndarray]:
        return [self.session.arcade.screen[0]]

    @property
    def rival_plays(self) -> bool:
        return False

    def opponents_recording(self) -> Recording | None:
        return None


class OwnConsole:
    """A console with one player, as ``Player.begin`` takes a match."""

    def __init__(self, session: Session, game: str) -> None:
        self.session, self.game = session, game

    @property
    def arcade(self) -> Arcade:
        """The console."""
        return self.session.arcade

    @property
    def ram(self) -> np.ndarray:
        """RIOT RAM, uint8 ``[128]``."""
        return self.arcade.ram[0]

    @property
    def screen(self) -> np.ndarray:
        """Palette indices of the current frame, uint8 ``[height, 160]``."""
        return self.arcade.screen[0]


class SideBySide(Alone):
    """The person and an agent, each on a console of its own with the same seed.

    Both play the mode and the difficulty that the agent was trained on.
    """

    mode = "side by side"

    def __init__(self, game: str, seed: int, rival: Player) -> None:
        variant = getattr(rival, "variant", {})
        super().__init__(game, seed, **variant)
        self._rival, self._rival_score = rival, 0
        self._rivals = Session(game, seed, **variant)
        rival.begin([OwnConsole(self._rivals, game)], "A", seed)
        self.think()
        if action_of([FIRE]) in self._rivals.arcade.actions:
            self._next = action_of([FIRE])  # as environments do after a reset: some games wait for it

    def play_frame(self, action: int, other: int | None = None) -> None:
        super().play_frame(action)
        self._rival_score += self._rivals.act(self._next)

    def think(self) -> None:
        (self._next,) = self._rival.actions()

    @property
    def scores(self) -> list[int]:
        return [self._score, self._rival_score]

    @property
    def pictures(self) -> list[np.ndarray]:
        return [self.session.arcade.screen[0], self._rivals.arcade.screen[0]]

    @property
    def rival_plays(self) -> bool:
        return not self._rivals.arcade.game_over[0]

    def opponents_recording(self) -> Recording | None:
        return self._rivals.recording()


class Match:
    """The person against an agent on one console. ``side`` is the person's, ``A`` or ``B``.

    The person's actions are those of the controls on that side, as the picture shows it. The agent presses
    FIRE where that serves, and the person does it with the key.
    """

    mode = "duel"

    def __init__(self, game: str, seed: int, rival: Player, side: str) -> None:
        self.session = Session(game, seed, players=2)
        self._duel: Duel = self.session.duel
        self._rival, self._side = rival, side
        rival.begin([self._duel], "B" if side == "A" else "A", seed)
        self._frame = 0
        self.think()

    def play_frame(self, action: int, other: int | None = None) -> None:
        other = self._next if other is None else other
        self.session.act(*((action, other) if self._side == "A" else (other, action)))
        self._frame += 1

    def think(self) -> None:
        variation = self._duel.variation
        (action,) = self._rival.actions()
        if variation.serves_with_fire and self._frame % SERVE_FRAMES == 0:
            action = with_fire(action)
        self._next = variation.other_side.action(action) if self._side == "A" else action

    @property
    def scores(self) -> list[int]:
        a, b = self._duel.scores
        return [a, b] if self._side == "A" else [b, a]

    @property
    def pictures(self) -> list[np.ndarray]:
        return [self._duel.screen]

    @property
    def rival_plays(self) -> bool:
        return not self._duel.over

    def opponents_recording(self) -> Recording | None:
        return None


class Rival:
    """An agent to race or to meet: a run directory, ``zoo:NAME``, or a built-in player of duels.

    While a run is training, every episode begins with its newest checkpoint. Errors: UsageError if there is
    no usable checkpoint, or if it plays another game.
    """

    def __init__(self, against: str, game: str, *, greedy: bool) -> None:
        self._against, self._greedy = against, greedy
        self.player = make_player(against, greedy)
        self._newest = self._newest_checkpoint()
        trained = getattr(self.player, "game", game)
        if trained != game:
            raise UsageError(f"{against} plays {trained}, not {game}; use an agent of {game}")

    def _newest_checkpoint(self) -> Path | None:
        return next(iter(complete_checkpoints(Path(self._against))), None)

    def refresh(self) -> None:
        """Load the newest checkpoint if there is a newer one. Errors: UsageError if it cannot be read."""
        newest = self._newest_checkpoint()
        if newest != self._newest:
            self.player, self._newest = make_player(self._against, self._greedy), newest
