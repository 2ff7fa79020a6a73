"""Interactive play: keys map to actions, and the terminal is restored however the game ends."""

import itertools
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from parcade import play
from parcade.atari.recording import Session, load_recording
from parcade.play import HOLD_SECONDS, Keyboard
from parcade.terminal_picture import ENTER_SCREEN, LEAVE_SCREEN, half_blocks, shrunk

PATIENCE_SECONDS = 400  # the first call may compile


def test_keys_become_the_actions_of_ale_py():
    keyboard = Keyboard()
    assert keyboard.action(0.0) == 0
    keyboard.hear(b"\x1b[A ", 0.0)
    assert keyboard.action(0.0) == 10  # UPFIRE
    keyboard.hear(b"d", 0.0)
    assert keyboard.action(0.0) == 14  # UPRIGHTFIRE
    keyboard.hear(b"\x1b[D", 0.0)
    assert keyboard.action(0.0) == 15  # UPLEFTFIRE: left replaces right


def test_a_key_is_held_until_it_has_not_been_heard_of_for_a_while():
    keyboard = Keyboard()
    keyboard.hear(b"a", 1.0)
    assert keyboard.action(1.0 + 0.9 * HOLD_SECONDS) == 4
    assert keyboard.action(1.0 + 1.1 * HOLD_SECONDS) == 0


def test_an_arrow_key_may_come_in_two_parts_and_rubbish_is_skipped():
    keyboard = Keyboard()
    assert keyboard.hear(b"\x00\xffzz\x1b[", 0.0) == []
    assert keyboard.hear(b"Cq", 0.0) == ["quit"]
    assert keyboard.action(0.0) == 3


@pytest.mark.parametrize(
    "sequence",
    [
        b"\x1bOP",
        b"\x1bOQ",
        b"\x1bOR",
        b"\x1bOS",
        b"\x1b[15~",
        b"\x1b[3~",
        b"\x1b[1;2P",
        b"\x1b[[A",
        b"\x1b[200~",
    ],
)
def test_letters_that_end_the_sequence_of_another_key_are_no_keys(sequence):
    """F2 is ESC O Q in most terminals."""
    for parts in ([sequence], [sequence[i : i + 1] for i in range(len(sequence))]):
        keyboard = Keyboard()
        assert [keyboard.hear(part, 0.0) for part in parts] == [[]] * len(parts)
        assert keyboard.action(0.0) == 0
        assert keyboard.hear(b"r", 0.0) == ["restart"]


@pytest.mark.parametrize(
    ("sequence", "action"),
    [(b"\x1b[1;2D", 4), (b"\x1b[1;5A", 2), (b"\x1bOC", 3), (b"\x1b[B", 5), (b"\x1b\x1b[B", 5)],
)
def test_arrows_count_with_shift_and_ctrl_and_after_the_escape_key(sequence, action):
    keyboard = Keyboard()
    assert keyboard.hear(sequence, 0.0) == [] and keyboard.action(0.0) == action


def test_a_picture_shrinks_to_what_the_terminal_shows():
    picture = np.zeros((210, 160, 3), np.uint8)
    assert shrunk(picture, 160, 105).shape == (210, 160, 3)
    assert shrunk(picture, 80, 60).shape == (70, 80, 3)  # blocks of 3 lines and 2 columns
    assert shrunk(picture, 80, 23).shape == (42, 54, 3)
    assert shrunk(picture, 1, 1).shape[1] == 1
    picture = np.zeros((210, 160, 3), np.uint8)
    picture[101:103, 80] = 240  # as small as Pong's ball
    for columns, lines in ((160, 105), (80, 60), (80, 23)):
        assert shrunk(picture, columns, lines).max() >= 32


def test_text_of_a_picture_has_the_colour_of_every_pixel_and_names_it_where_it_changes():
    picture = np.zeros((4, 5, 3), np.uint8)
    picture[1, 3] = 9, 8, 7
    assert half_blocks(picture).split("\n") == [
        "\x1b[38;2;0;0;0;48;2;0;0;0m▀▀▀\x1b[38;2;0;0;0;48;2;9;8;7m▀\x1b[38;2;0;0;0;48;2;0;0;0m▀\x1b[0m\x1b[K",
        "\x1b[38;2;0;0;0;48;2;0;0;0m▀▀▀▀▀\x1b[0m\x1b[K",
    ]


SUSPENDED = """
import time
from parcade.terminal_picture import full_screen
with full_screen(lambda: print("enters", flush=True), lambda: print("leaves", flush=True)):
    while True:
        time.sleep(0.05)
"""


@pytest.mark.processes
def test_a_suspended_game_gives_the_terminal_back_and_takes_it_again():
    # A group of its own whose parent is in the same session: Ctrl-Z does not stop orphaned groups.
    process = subprocess.Popen([sys.executable, "-c", SUSPENDED], stdout=subprocess.PIPE, process_group=0)
    reads = process.stdout.fileno()
    patience = threading.Timer(PATIENCE_SECONDS, process.kill)
    patience.start()

    def said(last):
        heard = b""
        while last not in heard:
            part = os.read(reads, 1000)
            assert part, f"it has ended; it said {heard}"
            heard += part
        return heard

    try:
        assert said(b"enters\n") == ENTER_SCREEN.encode() + b"enters\n"
        for _ in range(2):
            process.send_signal(signal.SIGTSTP)
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
            assert said(LEAVE_SCREEN.encode()) == b"leaves\n" + LEAVE_SCREEN.encode()
            process.send_signal(signal.SIGCONT)
            assert said(b"enters\n") == ENTER_SCREEN.encode() + b"enters\n"
        process.send_signal(signal.SIGINT)
        assert said(LEAVE_SCREEN.encode()) and process.wait(PATIENCE_SECONDS) not in (0, -signal.SIGKILL)
    finally:
        patience.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def test_caps_lock_changes_no_key():
    keys = Keyboard()
    assert keys.hear(b"QRP", 0.0) == ["quit", "restart", "pause"]
    keys.hear(b"W ", 0.0)
    assert keys.action(0.0) == 10  # UPFIRE


def test_the_best_score_is_that_of_an_episode_and_may_be_negative(monkeypatch):
    monkeypatch.setattr(play, "show_picture", lambda *arguments: None)
    reads, writes = os.pipe()
    presses = {3: b"r", 5: b"rq"}  # by frame: episodes of 3, 2 and no frames
    frames = itertools.count(1)

    def act(action):
        os.write(writes, presses.get(next(frames), b""))
        return -1

    arcade = SimpleNamespace(lives=[0], halted=[False], game_over=[False], screen=np.zeros((1, 2, 2), int))
    session = SimpleNamespace(arcade=arcade, act=act, restart=lambda: None)
    assert play._play(session, np.zeros((1, 3)), reads, "pong") == -2
    os.close(writes)  # the terminal is gone before a frame is played
    assert play._play(session, np.zeros((1, 3)), reads, "pong") is None
    os.close(reads)


class Terminal:
    """`parcade` in a pseudo-terminal."""

    def __init__(self, *arguments: str):
        self.keys, inner = pty.openpty()
        self.inner = inner
        self.before = termios.tcgetattr(inner)
        environment = {**os.environ, "COLUMNS": "80", "LINES": "40"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "parcade", *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environment,
            start_new_session=True,
        )
        self.shown = b""

    def read_until(self, text: bytes) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown[-500:]
            if select.select([self.keys], [], [], 0.2)[0]:
                self.shown += os.read(self.keys, 1 << 16)
            else:
                assert self.process.poll() is None, self.shown[-500:]

    def end(self) -> int:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([self.keys], [], [], 0.1)[0]:
                self.shown += os.read(self.keys, 1 << 16)
        while select.select([self.keys], [], [], 0.0)[0]:
            self.shown += os.read(self.keys, 1 << 16)
        return self.process.returncode

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.keys)
        os.close(self.inner)


@pytest.mark.processes
def test_playing_in_a_terminal_shows_the_game_restores_the_terminal_and_is_recorded(tmp_path):
    recording = tmp_path / "pong.json"
    with Terminal("play", "pong", "--seed", "7", "--record", str(recording)) as terminal:
        terminal.read_until(b"score 0")
        assert termios.tcgetattr(terminal.inner)[3] & termios.ECHO == 0
        os.write(terminal.keys, b"p")
        terminal.read_until(b"paused")
        os.write(terminal.keys, b"q")
        assert terminal.end() == 0
        assert termios.tcgetattr(terminal.inner) == terminal.before
        assert b"\x1b[?1049l" in terminal.shown
        assert b"best score" in terminal.shown
    assert load_recording(recording).seed == 7 and load_recording(recording).frames > 0
    with Terminal("watch", str(recording)) as terminal:
        assert terminal.end() == 0
        assert b"pong   score 0   Ctrl-C quits" in terminal.shown


@pytest.mark.processes
def test_the_terminal_is_restored_when_playing_is_killed():
    with Terminal("play", "pong") as terminal:
        terminal.read_until(b"score 0")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 143
        assert termios.tcgetattr(terminal.inner) == terminal.before


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_is_played_is_recorded_when_the_terminal_closes_and_not_before(tmp_path, number):
    recording = tmp_path / "pong.json"
    recording.write_text("an earlier one")
    with Terminal("play", "pong", "--record", str(recording)) as terminal:
        terminal.read_until(b"score 0")
        assert recording.read_text() == "an earlier one"
        terminal.process.send_signal(number)
        assert terminal.end() == 128 + number
    assert load_recording(recording).frames > 0


@pytest.mark.processes
def test_the_terminal_is_restored_when_watching_is_killed(tmp_path):
    session = Session("pong", 1)
    for _ in range(3000):
        session.act(0)
    session.recording().save(tmp_path / "pong.json")
    for words in ([str(tmp_path / "pong.json")], ["zoo:pong"]):
        with Terminal("watch", *words) as terminal:
            terminal.read_until(b"Ctrl-C quits")
            terminal.process.send_signal(signal.SIGTERM)
            assert terminal.end() == 143
            assert b"\x1b[?1049l" in terminal.shown and b"\x1b[?25h" in terminal.shown


@pytest.mark.processes
def test_a_game_that_cannot_be_recorded_is_refused_before_it_is_played(tmp_path):
    rom = tmp_path / "unknown.bin"
    rom.write_bytes(b"\xea" * 4092 + b"\x00\xf0\x00\xf0")
    with Terminal("play", str(rom), "--record", str(tmp_path / "out.json")) as terminal:
        assert terminal.end() == 2
        assert b"cannot be recorded" in terminal.shown
        assert b"score" not in terminal.shown


@pytest.mark.processes
def test_playing_needs_a_terminal():
    done = subprocess.run(
        [sys.executable, "-m", "parcade", "play", "pong"],
        input="",
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "needs a terminal" in done.stderr
