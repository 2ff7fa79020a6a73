"""The process in which a person plays: ``python -m parcade.web.race.player SETTINGS``, settings as JSON.

It owns the consoles, so what it plays is exact whatever a page does. A frame is due every sixtieth of a
second by the monotonic clock. The keys held at that moment are the frame's input, and what is recorded.

Pictures are differences (XOR) to the first picture of the episode, which ``start`` brings: mostly zero, and
each complete, so a slow page may miss any of them.
"""

from __future__ import annotations

import contextlib
import gc
import queue
import sys
import time
from dataclasses import asdict
from typing import Any, BinaryIO

import numpy as np

from parcade.atari.held_keys import DOWN, FIRE, LEFT, RIGHT, UP, action_of
from parcade.atari.preprocess import rgb_table
from parcade.atari.recording import Recording
from parcade.errors import UsageError
from parcade.web.player_process import run_player
from parcade.web.race.book import Book, Episode
from parcade.web.race.contest import Alone, Contest, Match, Rival, SideBySide
from parcade.web.race.settings import RaceSettings
from parcade.web.wire import packed, write_message

KEYS = frozenset({UP, DOWN, LEFT, RIGHT, FIRE})
WAITING, PLAYING, PAUSED, OVER = "waiting", "playing", "paused", "over"
MOST_LATE_SECONDS = 0.1
"""A console that is later than this slows down; below, it catches up."""
PROGRESS_SECONDS = 0.5
"""How often a page is told how much of an interrupted episode has been played again."""


class Player:
    """Plays the episodes of a race. It waits for the person's first key, and at the end for ``next``.

    The first one may continue an interrupted episode; ``play`` shows it.

    Args:
        out: where messages are written.

    Errors: UsageError of ``Book`` and ``Rival``.
    """

    def __init__(self, settings: RaceSettings, out: BinaryIO) -> None:
        self.settings, self._out = settings, out
        self.book = Book(settings.path, settings.game, settings.name)
        against = settings.against
        self._rival = Rival(against, settings.game, greedy=settings.greedy) if against else None
        self.held: frozenset[str] = frozenset()
        self._begin()
        found = self.book.unfinished(settings.unfinished, self._seed, 2 if settings.is_duel else 1)
        if found is not None:
            self._restore(found)

    def _begin(self) -> None:
        """Start the next episode."""
        settings = self.settings
        self._seed = settings.seed + len(self.book.episodes)
        self._frames, self._seconds, self._action = 0, 0.0, 0
        self.state = WAITING
        self.contest = self._new_contest()
        self._first_pictures = np.array(self.contest.pictures)
        self._episode: Episode | None = None

    def _new_contest(self) -> Contest:
        settings = self.settings
        if self._rival is None:
            return Alone(settings.game, self._seed)
        try:
            self._rival.refresh()
        except UsageError as error:  # the agent that was loaded before plays on
            self._say({"type": "problem", "text": str(error)})
        if settings.is_duel:
            return Match(settings.game, self._seed, self._rival.player, settings.side)
        return SideBySide(settings.game, self._seed, self._rival.player)

    def _restore(self, recording: Recording) -> None:
        """Play an interrupted episode again up to where it was, and wait there; or start it again."""
        is_b = self.settings.is_duel and self.settings.side == "B"
        done, told = 0, time.monotonic()
        for runs in recording.episodes[:1]:
            for action_a, action_b, frames in runs:
                mine, other = (action_b, action_a) if is_b else (action_a, action_b)
                for _ in range(frames):
                    self.contest.play_frame(mine, other if self.settings.is_duel else None)
                    self.contest.think()
                    done += 1
                    if time.monotonic() - told > PROGRESS_SECONDS:
                        told = time.monotonic()
                        share = f"{done / recording.frames:.0%} of {recording.frames:,} frames"
                        text = f"The interrupted episode is played again: {share}."
                        self._say({"type": "restoring", "text": text})
        if self.contest.session.recording() != recording:
            self._begin()
            return
        self._frames = recording.frames
        self._seconds = recording.frames / self.settings.frames_per_second

    def play(self, commands: queue.SimpleQueue) -> None:
        """Show the episode and play until the commands end with None.

        Earlier commands are ignored: the person had not seen the game yet.
        """
        _discard(commands)
        self._look()
        frame_seconds = 1.0 / self.settings.frames_per_second
        due = before = time.monotonic()
        while True:
            runs = self._runs()
            try:
                command = commands.get(timeout=max(0.0, due - time.monotonic()) if runs else None)
            except queue.Empty:
                now = time.monotonic()
                self._seconds += min(now - before, MOST_LATE_SECONDS) if self.state == PLAYING else 0.0
                before = now
                self._play_frame()
                due = max(due + frame_seconds, now - MOST_LATE_SECONDS)
                continue
            if command is None:
                self._keep_unfinished()
                return
            self._obey(command)
            if self._runs() and not runs:
                due = before = time.monotonic()

    def _runs(self) -> bool:
        """Return whether a console runs; an agent plays its episode to the end after the person's is over."""
        return self.state == PLAYING or (self.state == OVER and self.contest.rival_plays)

    def _obey(self, command: dict[str, Any]) -> None:
        """Carry out one command; values of another type are ignored."""
        held = command.get("held")
        if isinstance(held, list) and all(isinstance(key, str) for key in held):
            self.held = KEYS & set(held)
            if self.held and self.state == WAITING:
                self.state = PLAYING
        paused = command.get("paused")
        if paused is True and self.state == PLAYING:
            self.state = PAUSED
            self._show()
            self._keep_unfinished()  # the server, which has perhaps lost its page, may end without notice
        elif paused is False and self.state in (PAUSED, WAITING):
            self.state = PLAYING
        if command.get("next") is True and self.state == OVER:
            self._begin()
            self._look()
        if command.get("look") is True:
            self._look()

    def _play_frame(self) -> None:
        self._action = action_of(self.held, self.settings.game)
        self.contest.play_frame(self._action)
        self._frames += self.state == PLAYING
        if self.state == PLAYING and self.contest.session.arcade.game_over[0]:
            self.state = OVER
        self._show()
        if self.contest.rival_plays:
            self.contest.think()
        if self.state == OVER:
            self._count()

    @property
    def _is_saved(self) -> bool:
        return self._episode is not None and self._episode.recording != ""

    def _count(self) -> None:
        """Save the episode when the person's is over, and when the agent's is.

        What could not be saved at the first time is saved at the second.
        """
        if self._episode and (self._episode.opponent_ended or self.contest.rival_plays):
            return
        try:
            opponents = self.contest.opponents_recording()
            if self._is_saved:
                self._episode = self.book.complete(self._episode, self.contest.scores[1], opponents)
            else:
                self._episode = self.book.add(self._row(), self.contest.session.recording(), opponents)
        except OSError as error:
            self._episode = self._episode or self._row()  # play goes on; it is not saved
            self._say({"type": "problem", "text": f"the episode cannot be saved ({error.strerror})"})
            return
        self._say({"type": "saved", "episode": asdict(self._episode)})

    def _row(self) -> Episode:
        settings, scores = self.settings, self.contest.scores
        return Episode(
            mode=self.contest.mode, seed=self._seed, seconds=round(self._seconds, 3), frames=self._frames,
            score=scores[0], side=settings.side if settings.is_duel else "A", opponent=settings.against,
            opponent_score=scores[1] if len(scores) > 1 else None,
            opponent_ended=len(scores) > 1 and not self.contest.rival_plays, recording="", checksum="",
        )  # fmt: skip

    def _keep_unfinished(self) -> None:
        if self._frames and self.state != OVER:
            try:
                self.book.save_unfinished(self.contest.session.recording(), self.settings.unfinished)
            except OSError as error:
                self._say({"type": "problem", "text": f"the episode cannot be kept ({error.strerror})"})

    def _look(self) -> None:
        """Send all that a page needs when it opens."""
        settings, arcade = self.settings, self.contest.session.arcade
        head = {
            "type": "start", "game": settings.game, "name": settings.name, "mode": self.contest.mode,
            "side": settings.side, "against": settings.against, "seed": self._seed,
            "episode": len(self.book.episodes) + (not self._is_saved),
        }  # fmt: skip
        self._say(head, {"pictures": self._first_pictures, "palette": rgb_table(arcade.machine.pal)})
        self._show()

    def _show(self) -> None:
        """Send the outcome of a frame."""
        head = {
            "type": "step", "frame": self._frames, "action": self._action, "scores": self.contest.scores,
            "state": self.state, "seconds": round(self._seconds, 2),
            "lives": int(self.contest.session.arcade.lives[0]), "rival_plays": self.contest.rival_plays,
        }  # fmt: skip
        self._say(head, {"pictures": np.array(self.contest.pictures) ^ self._first_pictures})

    def _say(self, head: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
        write_message(self._out, packed(head, arrays))


def _discard(commands: queue.SimpleQueue) -> None:
    """Remove the commands that wait, up to the None that ends them."""
    with contextlib.suppress(queue.Empty):
        while commands.get_nowait() is not None:
            pass
        commands.put(None)


def _play(commands: queue.SimpleQueue, out: BinaryIO) -> None:
    player = Player(RaceSettings.from_json(sys.argv[1]), out)
    gc.collect()
    gc.freeze()  # what is loaded now stays; searching it would cost a frame
    player.play(commands)


if __name__ == "__main__":
    sys.exit(run_player(_play))
