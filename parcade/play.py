"""Play a game with the keyboard: one native console in the terminal at 60 frames per second.

A terminal reports key presses and repeats but not releases. A key therefore counts as held for `HOLD_SECONDS`
after its last event.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from parcade.atari.held_keys import DOWN, FIRE, LEFT, OPPOSITE, RIGHT, UP, action_of
from parcade.envs.settings import FRAMES_PER_SECOND
from parcade.errors import UsageError
from parcade.terminal_picture import full_screen, show_picture

if TYPE_CHECKING:
    from parcade.atari.arcade import Arcade
    from parcade.atari.recording import Recording, Session

FRAMES_PER_PICTURE = 2
HOLD_SECONDS = 0.25

ARROWS = {b"A": UP, b"B": DOWN, b"C": RIGHT, b"D": LEFT}
KEYS = {
    b"w": UP, b"s": DOWN, b"a": LEFT, b"d": RIGHT, b" ": FIRE,
    b"q": "quit", b"r": "restart", b"p": "pause",
}  # fmt: skip
KEYS |= {key.upper(): name for key, name in KEYS.items()}  # with Caps Lock
# Escape sequences that a terminal sends: of an arrow, alone or with Shift, Alt or Ctrl, or of another key.
# The letter that ends another key's, such as the Q of F2, is not a key of its own.
SEQUENCE = re.compile(
    rb"\x1b(?:(?:\[(?:1;[0-9]+)?|O)([A-D])|\[\[[A-E]|\[[0-?]{0,16}[ -/]{0,4}[@-Z\\-~]|O[@-~])"
)
INCOMPLETE = re.compile(rb"\x1b(?:O|\[\[?|\[[0-?]{0,16}[ -/]{0,4})?")


class Keyboard:
    """The set of held keys, derived from the bytes a terminal sends."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        self._rest = b""

    def hear(self, data: bytes, now: float) -> list[str]:
        """Process bytes received at time `now`, seconds; return the commands among them.

        Commands are quit, restart and pause.
        """
        data = self._rest + data
        commands = []
        while data:
            sequence = SEQUENCE.match(data)
            if sequence is None and INCOMPLETE.fullmatch(data):
                break  # wait for the rest
            name = ARROWS.get(sequence[1]) if sequence else KEYS.get(data[:1])
            data = data[sequence.end() if sequence else 1 :]
            if name is None:
                continue
            if name in OPPOSITE or name == FIRE:
                self._heard[name] = now
                self._heard.pop(OPPOSITE.get(name, ""), None)
            else:
                commands.append(name)
        self._rest = data
        return commands

    def action(self, now: float) -> int:
        """Return ale-py's id of the action given by the held keys."""
        return action_of(name for name, heard in self._heard.items() if now - heard < HOLD_SECONDS)


@contextlib.contextmanager
def game_terminal() -> Iterator[int]:
    """Yield a descriptor to read keys without echo and line buffering; restore the terminal on exit."""
    try:
        import termios
        import tty
    except ImportError as error:
        raise UsageError("play reads keys from a Unix terminal; use Linux or macOS") from error
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("play needs a terminal for input and output; run it in one, without redirection")
    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)

    def restore() -> None:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(keys, termios.TCSADRAIN, before)

    with full_screen(enter=lambda: tty.setcbreak(keys), leave=restore):
        yield keys


def open_session(game: str, seed: int, mode: int | None, difficulty: int | None) -> Session:
    """Start one console with a game, given by name or path. Errors: UsageError."""
    from parcade.atari.games import read_rom
    from parcade.atari.recording import Session

    try:
        read_rom(game)
        return Session(game, seed, mode=mode, difficulty=difficulty)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error


def play(
    game: str,
    *,
    mode: int | None = None,
    difficulty: int | None = None,
    seed: int | None = None,
    record: str = "",
) -> int | None:
    """Play until the user quits; return the best score of an episode, None if none has begun.

    What was played is written to ``record``, if given. ``seed`` seeds the console; None takes the time.
    Errors: UsageError without a terminal, for an unknown game, or if the recording cannot be written.
    """
    from parcade.atari.preprocess import rgb_table

    with contextlib.ExitStack() as stack:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            stack.enter_context(game_terminal())  # fails here, before the consoles are compiled
        session = open_session(game, int(time.time()) if seed is None else seed, mode, difficulty)
        if record:
            _recording_of(session, Path(record))  # fails here, and not after the user has played
            stack.callback(_save, session, Path(record))
        colours = rgb_table(session.arcade.machine.pal)
        keys = stack.enter_context(game_terminal())
        return _play(session, colours, keys, Path(game).stem)


def _recording_of(session: Session, path: Path) -> Recording:
    """Return what was played. Errors: UsageError for a ROM without a name."""
    try:
        return session.recording()
    except ValueError as error:
        raise UsageError(f"{path} cannot be written: {error}") from error


def _save(session: Session, path: Path) -> None:
    try:
        _recording_of(session, path).save(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error}") from error


def _play(session: Session, colours: np.ndarray, keys: int, name: str) -> int | None:
    """Play until the user quits or the terminal is gone; return the best score at the end of an episode."""
    arcade, keyboard, frame, paused = session.arcade, Keyboard(), 0, False
    score: int | None = None  # before the first frame of an episode
    best: int | None = None
    due = time.perf_counter()
    while True:
        now = time.perf_counter()
        try:
            heard = os.read(keys, 1024) if select.select([keys], [], [], max(0.0, due - now))[0] else None
        except OSError:
            heard = b""
        is_gone = heard == b""  # the terminal
        for command in ["quit"] if is_gone else keyboard.hear(heard or b"", time.perf_counter()):
            if command in ("quit", "restart") and score is not None:
                best = score if best is None else max(best, score)
            if command == "quit":
                return best
            if command == "restart":
                session.restart()
                score = None
            paused ^= command == "pause"
        if time.perf_counter() < due:
            continue
        due = max(due + 1 / FRAMES_PER_SECOND, now - 0.1)
        if not paused:
            score = (score or 0) + session.act(keyboard.action(now))
        frame += 1
        if frame % FRAMES_PER_PICTURE == 0:
            status = f"{name}   score {score or 0}   lives {arcade.lives[0]}   {_status(arcade, paused)}"
            show_picture(colours[arcade.screen[0]], status)


def _status(arcade: Arcade, paused: bool) -> str:
    if arcade.halted[0]:
        return "the 6507 executed an opcode that halts it: r restarts, q quits"
    if arcade.game_over[0]:
        return "game over: r restarts, q quits"
    return "paused: p continues" if paused else "arrows or wasd, space fires, r restarts, p pauses, q quits"


def load_recording(path: str) -> Recording:
    """Read a recording. Errors: UsageError."""
    from parcade.atari import recording

    try:
        return recording.load_recording(Path(path))
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error


def watch_recording(path: str, video: str = "") -> None:
    """Replay a recording in real time in the terminal, or into a video.

    Errors: UsageError, also for an inexact replay.
    """
    from parcade.atari.preprocess import rgb_table
    from parcade.showing import shown

    recorded = load_recording(path)
    showing, score = shown(video, FRAMES_PER_SECOND), 0
    try:
        with showing as show:
            for session, reward in recorded.replay():
                score += reward
                points = session.duel.scores if session.duel else (score,)
                colours = rgb_table(session.arcade.machine.pal)
                show(
                    colours[session.arcade.screen[0]],
                    f"{recorded.game}   score {' : '.join(map(str, points))}",
                )
    except UsageError:  # of the video
        raise
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
