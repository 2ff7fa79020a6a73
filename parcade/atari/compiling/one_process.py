"""Files of the cache that several processes share: one at a time works on them, and others see them whole."""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

LOCK_SECONDS = 900
QUIET_SECONDS = 3
# Errors of file systems without locks (Lustre mounted without them, NFS without its lock service). There, a
# directory serves as the lock.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
HELD_SECONDS = 300  # age at which such a directory counts as abandoned


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: other processes see it complete or not at all. Errors: OSError.

    A link stays one; to what is no file, e.g. a device, the content is written.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    making = path.with_suffix(f".{os.getpid()}")
    try:
        making.write_bytes(content)
        making.replace(path)
    except OSError:
        making.unlink(missing_ok=True)
        raise


def _open_lock(path: Path) -> IO[str]:
    """Open a lock's file, which in a shared directory may be another user's."""
    try:
        return path.open("w")
    except PermissionError:
        return path.open()


@contextlib.contextmanager
def only_process(
    directory: Path | None, name: str = "kernels", waits: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Hold the lock `name` between processes. Errors: TimeoutError if it is held for `LOCK_SECONDS`.

    `waits` is called once, when it has been held by another process for `QUIET_SECONDS`.

    Where its file cannot be made, e.g. on a full disk, nothing else can be written, and nothing is locked.
    """
    try:
        import fcntl
    except ImportError:
        fcntl = None
    if directory is None or fcntl is None:
        yield
        return
    started, is_quiet = time.monotonic(), True
    try:
        file = _open_lock(directory / f"{name}.lock")
    except OSError:
        yield
        return
    with file:
        folder = None
        while True:
            try:
                if folder is None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                else:
                    folder.mkdir()
                break
            except (BlockingIOError, FileExistsError):
                waited = time.monotonic() - started
                if is_quiet and waited > QUIET_SECONDS:
                    is_quiet = False
                    waits()
                if waited > LOCK_SECONDS:
                    raise TimeoutError(
                        f"another process has been compiling the consoles for {LOCK_SECONDS} s"
                    ) from None
                time.sleep(0.05)
                _forget_dead_holder(folder)
            except OSError as error:
                if error.errno not in NO_LOCKS or folder is not None:
                    raise
                folder = directory / f"{name}.held"
        try:
            yield
        finally:
            if folder is None:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing it would leave the lock to a forked process
            else:
                with contextlib.suppress(OSError):  # another process considered this one dead
                    folder.rmdir()


def _forget_dead_holder(folder: Path | None) -> None:
    """Remove a lock directory that is older than any compilation takes: its process must have died."""
    with contextlib.suppress(OSError):
        if folder is not None and time.time() - folder.stat().st_mtime > HELD_SECONDS:
            folder.rmdir()


@contextlib.contextmanager
def only_process_or_none(directory: Path | None, name: str) -> Iterator[Path | None]:
    """Hold the lock `name` and yield the directory, or None if another process does not release the lock."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(only_process(directory, name))
        except TimeoutError:
            directory = None
        yield directory
