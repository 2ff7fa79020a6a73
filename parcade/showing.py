"""Frames of a game in the terminal, or as a video."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from parcade.errors import UsageError
from parcade.files.outputs import check_output_file
from parcade.terminal_picture import Pace, full_screen, show_picture

MOST_PICTURES_PER_SECOND = 30
"""In a terminal."""
SCALE = 2
"""Of the pixels of a video."""

Show = Callable[[np.ndarray, str], None]
"""Shows a frame ``[height, 160, 3]`` uint8, in a terminal above a line of text."""


def check_video(path: str) -> None:
    """Check that a video can be written there. Errors: UsageError."""
    if Path(path).suffix.lower() != ".mp4":
        raise UsageError(f"video {path} does not end in .mp4; use a name ending in .mp4")
    if Path(path).exists() and not Path(path).is_file():
        raise UsageError(f"video {path} is not a file; use another path")
    check_output_file("video", path)


def require_terminal(otherwise: str) -> None:
    """Errors: UsageError without a terminal, with what to do otherwise."""
    if not sys.stdout.isatty():
        raise UsageError(f"watch needs a terminal; {otherwise}")


def shown(video: str, frames_per_second: float) -> contextlib.AbstractContextManager[Show]:
    """Return the video at this path, or the terminal if it is empty. Errors: UsageError if there is none."""
    if video:
        check_video(video)
        return in_video(video, frames_per_second)
    require_terminal("run it in one, or use: --video out.mp4")
    return in_terminal(frames_per_second)


@contextlib.contextmanager
def in_terminal(frames_per_second: float) -> Iterator[Show]:
    """Show frames in real time, two pixels per character, leaving out those that would be too many."""
    every = max(1, round(frames_per_second / MOST_PICTURES_PER_SECOND))
    frames = 0
    with full_screen():
        pace = Pace(every / frames_per_second)

        def show(picture: np.ndarray, status: str) -> None:
            nonlocal frames
            frames += 1
            if frames % every == 0:
                show_picture(picture, f"{status}   Ctrl-C quits")
                pace.wait()

        yield show


@contextlib.contextmanager
def in_video(path: str, frames_per_second: float) -> Iterator[Show]:
    """Write frames as H.264 at twice the console's resolution, which plays in real time.

    The file appears when it is complete; a block that raises leaves what was there before.
    Errors: UsageError when the file cannot be written, or would have no frame.
    """
    target = Path(path).resolve()
    encoder = _Encoder(target.with_name(f".{target.stem}.{os.getpid()}.mp4"), frames_per_second)
    try:
        with contextlib.closing(encoder):
            yield encoder.show
        encoder.check()
        encoder.path.replace(target)
    except OSError as error:  # of the encoder's pipe, with the encoder's whole output
        reason = str(error).splitlines()[0]
        raise UsageError(f"video={path} could not be written ({reason}); use another path") from None
    finally:
        encoder.path.unlink(missing_ok=True)


class _Encoder:
    """Encodes frames into the file ``path``."""

    def __init__(self, path: Path, frames_per_second: float) -> None:
        self.path = path
        self._frames_per_second = frames_per_second
        self._frames = 0
        self._writer: Any = None

    def show(self, picture: np.ndarray, status: str) -> None:
        """Encode a frame; the first one decides the size."""
        import imageio_ffmpeg

        if self._writer is None:
            height, width, _ = picture.shape
            self._writer = imageio_ffmpeg.write_frames(
                str(self.path), (width * SCALE, height * SCALE), fps=self._frames_per_second,
                codec="libx264", macro_block_size=1, quality=8, ffmpeg_log_level="quiet",
            )  # fmt: skip
            self._writer.send(None)
        self._writer.send(np.ascontiguousarray(picture.repeat(SCALE, axis=0).repeat(SCALE, axis=1)))
        self._frames += 1

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()

    def check(self) -> None:
        """Check that the file has all frames: an encoder that fails says nothing. Errors: OSError."""
        import imageio_ffmpeg

        if self._frames == 0:
            raise OSError("there is no frame to write")
        try:
            written, _ = imageio_ffmpeg.count_frames_and_secs(str(self.path))
        except RuntimeError:
            written = 0
        if written != self._frames:
            raise OSError(f"only {written} of {self._frames} frames were written; is the disk full?")
