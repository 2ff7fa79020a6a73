"""Messages from a player process through the server to a page: a JSON head, and arrays, deflated.

Layout: ``head_bytes`` uint32, little-endian; the head; the arrays, one after the other, as one zlib stream.
The head lists them as ``arrays: [[name, shape], ...]``, all uint8. Pictures of one message are differences
to the one before (XOR), which are mostly zero, so a second of 60 pictures takes some 20 kB. Each message
is complete, so a page may miss any of them.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from typing import Any, BinaryIO

import numpy as np

HEAD = struct.Struct("<I")
MOST_BYTES = 32 << 20


def json_text(content: Any) -> str:
    """Return JSON in ASCII: names in files may hold halves of surrogate pairs, which UTF-8 cannot express.

    NaN and infinities, which are not JSON, become null: one damaged run must not hide the others.
    """
    try:
        return json.dumps(content, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(content), allow_nan=False)


def _finite(content: Any) -> Any:
    """Return content with null in place of numbers that are not finite."""
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def differences(pictures: np.ndarray) -> np.ndarray:
    """Return pictures ``[k, ...]`` uint8 with each but the first XORed with the one before it."""
    changed = pictures.copy()
    changed[1:] ^= pictures[:-1]
    return changed


def packed(head: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> bytes:
    """Return a message. ``arrays`` are uint8."""
    arrays = arrays or {}
    shapes = [[name, list(array.shape)] for name, array in arrays.items()]
    text = json_text({**head, "arrays": shapes}).encode()
    body = b"".join(np.ascontiguousarray(array, np.uint8).tobytes() for array in arrays.values())
    # Level 1: higher levels save little on differences, and cost time that the training next to it has.
    return HEAD.pack(len(text)) + text + (zlib.compress(body, 1) if body else b"")


def unpacked(message: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Invert ``packed``; for tests and other readers than a browser."""
    (length,) = HEAD.unpack_from(message)
    head = json.loads(message[HEAD.size : HEAD.size + length])
    body = message[HEAD.size + length :]
    body = zlib.decompress(body) if body else b""
    arrays, start = {}, 0
    for name, shape in head["arrays"]:
        size = int(np.prod(shape))
        arrays[name] = np.frombuffer(body, np.uint8, size, start).reshape(shape)
        start += size
    return head, arrays


def write_message(stream: BinaryIO, message: bytes) -> None:
    """Write a message with its length to a pipe."""
    stream.write(HEAD.pack(len(message)) + message)
    stream.flush()
