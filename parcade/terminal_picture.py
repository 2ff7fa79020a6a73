"""Images in a terminal, two pixels per character."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import numpy as np

from parcade.ending import exits_in_order

ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h\x1b[2J\x1b[?25l", "\x1b[0m\x1b[?25h\x1b[?1049l"


@contextlib.contextmanager
def full_screen() -> Iterator[None]:
    """Show the terminal's second screen; return to the first one however the context ends."""
    with exits_in_order():
        try:
            sys.stdout.write(ENTER_SCREEN)
            yield
        finally:
            with contextlib.suppress(OSError):  # the terminal is gone
                sys.stdout.write(LEAVE_SCREEN)
                sys.stdout.flush()


def shrunk(picture: np.ndarray, columns: int, lines: int) -> np.ndarray:
    """Return every k-th pixel of ``[height, width, 3]``, for the smallest k that fits the terminal.

    A character shows two pixels, one above the other.
    """
    step = max(1, -(-picture.shape[1] // max(1, columns)), -(-picture.shape[0] // max(1, 2 * lines)))
    return picture[::step, ::step]


def half_blocks(picture: np.ndarray) -> str:
    """Render an image ``[height, width, 3]`` uint8 as text.

    Each character shows two pixels: the upper one in its foreground, the lower one in its background colour.
    """
    height = picture.shape[0] // 2 * 2
    lines = []
    for upper, lower in zip(picture[0:height:2], picture[1:height:2], strict=True):
        cells = (
            f"\x1b[38;2;{u[0]};{u[1]};{u[2]}m\x1b[48;2;{v[0]};{v[1]};{v[2]}m▀"
            for u, v in zip(upper, lower, strict=True)
        )
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines)
