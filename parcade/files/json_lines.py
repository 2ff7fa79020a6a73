"""Files with one JSON object per line, which a run appends to and a resume shortens."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path


def append_whole(path: Path, content: bytes) -> None:
    """Append to a file, or leave it as it was: half a report would spoil the next one. Errors: OSError."""
    with open(path, "ab", buffering=0) as file:
        size = file.tell()
        try:
            if file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(size)
            if size == 0:
                path.unlink(missing_ok=True)
            raise


def remove_later_lines(path: Path, frames: int) -> None:
    """Remove the objects from after a checkpoint at ``frames``, from which a run continues. Errors: OSError.

    Lines that were cut by a kill, or damaged, go too.
    """
    if not path.exists():
        return
    content, kept = path.read_bytes(), []
    for line in content.split(b"\n"):
        try:
            if json.loads(line)["frames"] <= frames:
                kept.append(line + b"\n")
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    if b"".join(kept) == content:
        return
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_bytes(b"".join(kept))
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
