"""Lock files, so that only one process works on a directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from parcade.errors import UsageError

LOCK_FILE = "lock"
"""The lock of a run's directory. The process that starts a training holds it, for its ranks too."""


class Held(UsageError):
    """Another process holds the lock."""


@contextlib.contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock of a file, which is created if necessary; it ends with the process at the latest.

    Errors: Held with the text ``refusal`` if another process holds it; UsageError if it cannot be written.
    """
    import fcntl

    try:
        file = open(path, "w")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}); delete it if no process works in its directory, "
            "or use another directory"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Held(refusal) from None
        except OSError:
            pass  # this file system has no locks
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # closing it would leave the lock to a forked process


@contextlib.contextmanager
def training_in(run: Path) -> Iterator[None]:
    """Hold the lock of a run's directory.

    Errors: Held if another process of this host trains in it, or of any host that shares locks; UsageError if
    the lock cannot be written.
    """
    refusal = f"{run} is in use by another training; let it save and stop with: touch {run}/stop"
    with locked(run / LOCK_FILE, refusal):
        yield


@contextlib.contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Wait until no other process is in such a block with the same directory, if the file system can tell."""
    import fcntl

    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # the directory is missing, or this file system has no locks
            descriptor = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, descriptor)  # which ends the lock
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
