"""Images in a terminal, two pixels per character."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import numpy as np

from parcade.ending import exits_in_order

ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h\x1b[2J\x1b[?25l", "\x1b[0m\x1b[?25h\x1b[?1049l"


@contextlib.contextmanager
def full_screen(
    enter: Callable[[], object] = lambda: None, leave: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Show the terminal's second screen; return to the first one however the context ends.

    Ctrl-Z returns to it as well, and ``fg`` to the second one. ``enter`` and ``leave`` are called each time.
    """
    with exits_in_order(), _suspending(enter, leave):
        try:
            sys.stdout.write(ENTER_SCREEN)
            sys.stdout.flush()
            enter()
            yield
        finally:
            leave()
            with contextlib.suppress(OSError):  # the terminal is gone
                sys.stdout.write(LEAVE_SCREEN)
                sys.stdout.flush()


@contextlib.contextmanager
def _suspending(enter: Callable[[], object], leave: Callable[[], object]) -> Iterator[None]:
    """Leave the second screen when Ctrl-Z stops this process, and enter it when it continues."""
    number = getattr(signal, "SIGTSTP", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def suspend(number: int, frame: FrameType | None) -> None:
        leave()
        # Not sys.stdout: the signal may have come in the middle of writing a picture to it.
        os.write(sys.stdout.fileno(), LEAVE_SCREEN.encode())
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # stops here
        signal.signal(number, suspend)
        os.write(sys.stdout.fileno(), ENTER_SCREEN.encode())
        enter()

    earlier = signal.signal(number, suspend)
    try:
        yield
    finally:
        signal.signal(number, earlier)


class Pace:
    """Waits so that pictures follow each other at equal times, in seconds. Lost time is not made up for."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._due = seconds, time.perf_counter()

    def wait(self) -> None:
        """Wait until the next picture is due."""
        self._due = max(self._due + self._seconds, time.perf_counter())
        time.sleep(max(0.0, self._due - time.perf_counter()))


def show_picture(picture: np.ndarray, status: str) -> None:
    """Show an image ``[height, width, 3]`` uint8, as large as fits, above a line of text."""
    size = shutil.get_terminal_size()  # it may change
    fitting = half_blocks(shrunk(picture, size.columns, size.lines - 1))
    sys.stdout.write(f"\x1b[H{fitting}\x1b[0m\n{status[: size.columns]}\x1b[K\x1b[J")
    sys.stdout.flush()


def shrunk(picture: np.ndarray, columns: int, lines: int) -> np.ndarray:
    """Return ``[height, width, 3]`` uint8 with as many pixels as fit the terminal, each the mean of a block.

    A block is k lines high and 4/7 as wide: 210 lines of 160 pixels fill a screen of 4:3. A character shows
    two pixels, one above the other.
    """
    height, width, _ = picture.shape
    rows = across = 1
    while -(-height // rows) > max(2, 2 * lines) or -(-width // across) > max(1, columns):
        rows += 1
        across = max(1, round(rows * 4 / 7))
    starts = np.arange(0, height, rows), np.arange(0, width, across)
    sums = np.add.reduceat(np.add.reduceat(picture.astype(np.uint32), starts[0], 0), starts[1], 1)
    sizes = np.outer(np.diff(starts[0], append=height), np.diff(starts[1], append=width))
    means: np.ndarray = (sums // sizes[:, :, None]).astype(np.uint8)
    return means


def half_blocks(picture: np.ndarray) -> str:
    """Render an image ``[height, width, 3]`` uint8 as text.

    Each character shows two pixels: the upper one in its foreground, the lower one in its background colour.
    Colours are written where they change, which takes a tenth of the bytes.
    """
    height = picture.shape[0] // 2 * 2
    pairs = np.concatenate([picture[0:height:2], picture[1:height:2]], 2)
    lines = []
    for line in pairs.tolist():
        cells, last = [], None
        for pair in line:
            if pair != last:
                cells.append("\x1b[38;2;{};{};{};48;2;{};{};{}m".format(*pair))
                last = pair
            cells.append("▀")
        lines.append("".join(cells) + "\x1b[0m\x1b[K")  # a larger picture may have been here
    return "\n".join(lines)
