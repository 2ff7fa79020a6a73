"""A lock file, so that only one process works on a directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from parcade.errors import UsageError


@contextlib.contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock of a file, which is created if necessary; it ends with the process at the latest.

    Errors: UsageError with the text ``refusal`` if another process holds it; OSError if the file cannot be
    written.
    """
    import fcntl

    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(refusal) from None
        yield
