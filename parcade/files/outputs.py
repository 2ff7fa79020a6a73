"""Outputs: checks before long work that files can be written, and what happens if an output cannot be."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from parcade.errors import UsageError


class _Messages(io.FileIO):
    """Standard error. Messages are lost on a full disk, or when the reader has left, and the work goes on."""

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        with contextlib.suppress(OSError):
            while written := super().write(rest):  # None if the reader of a non-blocking pipe is slow
                rest = rest[written:]
        return memoryview(data).nbytes


def prepare_streams() -> None:
    """Make standard streams exist, and take every character; for a program's start.

    What goes to one that was closed (``>&-``) is discarded: Python has no such stream then, and a library's
    messages would go into the next file that is opened. Characters that the encoding lacks, such as the bars
    of the live view in LANG=en_US.ISO-8859-1, are escaped. Messages that stderr cannot take are discarded.
    """
    if sys.stderr is not None and sys.stderr is sys.__stderr__:
        # io.BufferedWriter would write a line again after a Ctrl-C that arrives while the line is written.
        messages: Any = _Messages(sys.stderr.fileno(), "w", closefd=False)
        sys.stderr = sys.__stderr__ = io.TextIOWrapper(
            messages, encoding=sys.stderr.encoding, line_buffering=True
        )
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number, which is the stream's
            os.set_inheritable(nowhere, True)
            stream = open(nowhere, mode)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        if mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output(stream: TextIO) -> None:
    """Discard what remains in a stream's buffer and all later output, so that no flush of it fails."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def say_line(line: str, stream: TextIO | None = None, what: str = "the work") -> None:
    """Print a line of progress, to stdout by default. If the reader has left or the disk is full, say so on
    stderr, and that ``what`` goes on; later output is discarded.
    """
    stream = stream or sys.stdout
    try:
        print(line, file=stream, flush=True)
    except OSError as error:
        drop_output(stream)
        with contextlib.suppress(OSError):
            print(f"parcade: output cannot be written ({error.strerror}); {what} goes on", file=sys.stderr)


OF_A_RUN = ("config.json", "result.json", "metrics.jsonl")
"""Files that a training writes into its directory and reads again."""


def why_not_writable(path: Path) -> str | None:
    """Return why a file or the files of a directory cannot be written, or None; changes nothing there.

    A file is opened, because permissions alone would allow root to write to a read-only file system.
    """
    try:
        if path.is_dir():
            with tempfile.TemporaryFile(dir=path):
                pass
        elif path.is_file():
            os.close(os.open(path, os.O_WRONLY))
        elif not path.exists():  # OSError if the name is too long
            return why_not_writable(path.parent)
    except OSError as error:
        return error.strerror
    return None


def make_directory(path: Path) -> None:
    """Create a directory and its parents if necessary. Errors: OSError, which says what is there instead."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        nearest = next(each for each in (path, *path.parents) if os.path.lexists(each))
        if nearest.exists():
            reason = f"{nearest} is a file"
        else:
            reason = f"{nearest} is a link to {os.readlink(nearest)}, which does not exist"
        raise OSError(error.errno, reason) from None


def make_folders(kind: str, folder: Path, names: tuple[str, ...]) -> None:
    """Create the subdirectories of a suite's or a sweep's ``--dir``. Errors: UsageError."""
    try:
        for name in names:
            make_directory(folder / name)
        reason = why_not_writable(folder)
    except OSError as error:
        reason = error.strerror
    if reason:
        raise UsageError(f"{kind} {folder} cannot be written ({reason}); use another --dir")


def check_output_file(name: str, path: str) -> None:
    """Check the path of a file that is written after long work; "" means none.

    Errors: UsageError, also for a file that belongs to a run.
    """
    file = Path(path)
    if file.name in OF_A_RUN and os.path.isfile(file.parent / "config.json"):
        raise UsageError(f"{name}={path} belongs to the run in {file.parent}; use another path")
    if not os.path.isdir(file.parent):
        raise UsageError(
            f"{name}={path}: directory {file.parent} does not exist; create it, or use another path"
        )
    if path and os.path.isdir(file):
        raise UsageError(f"{name}={path} is a directory; expected a file path")
    target = os.path.realpath(file)
    if os.path.islink(file) and (os.path.islink(target) or not os.path.isdir(os.path.dirname(target))):
        raise UsageError(
            f"{name}={path} is a link to {os.readlink(file)}, which cannot be created; use another path"
        )
    if path and (reason := why_not_writable(file)):
        raise UsageError(f"{name}={path} cannot be written ({reason}); use another path")


@contextlib.contextmanager
def writes_output(name: str, path: str) -> Iterator[None]:
    """Name a file of results that cannot be written after all, e.g. on a full disk. Errors: UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{name}={path} could not be written ({error.strerror or error}); the results are printed above"
        ) from None
