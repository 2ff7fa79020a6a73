"""Reading files of a run directory that anyone may have written: only regular files, only up to a size."""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

MOST_JSON_BYTES = 1 << 20


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[int]:
    """Yield a descriptor for reading. Errors: OSError if the file is missing or not a regular file.

    Opening does not block, as it would at a named pipe.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Return the content of a file. Errors: OSError if it cannot be read or is larger than ``most_bytes``."""
    with open_regular(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(f"{path} has more than {most_bytes:,} bytes")
    return content


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def read_object(path: Path, most_bytes: int = MOST_JSON_BYTES) -> dict[str, Any]:
    """Return a JSON object; an empty one if the file is missing, too large or holds no object.

    NaN and infinity, which are not JSON, are None.
    """
    try:
        data = json.loads(read_bytes(path, most_bytes), parse_constant=lambda _: None, parse_float=_finite)
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def fits(value: Any, expected: Any) -> bool:
    """Return whether a JSON value is of a type such as ``float`` or ``dict[str, list[int]]``.

    Lists stand for tuples of one type, such as ``tuple[str, ...]``.
    """
    if expected is Any:
        return True
    outer, inner = get_origin(expected), get_args(expected)
    if outer is dict:
        return isinstance(value, dict) and all(fits(each, inner[1]) for each in value.values())
    if outer in (list, tuple):
        return isinstance(value, list) and all(fits(each, inner[0]) for each in value)
    if outer is UnionType:
        return any(fits(value, each) for each in inner)
    kinds = (int, float) if expected is float else (expected,)
    return isinstance(value, kinds) and (isinstance(value, bool) == (expected is bool))
