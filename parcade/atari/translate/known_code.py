"""What is known of the code of a ROM, in one file of notes per ROM: the start of every translation.

The file is made by a trace of random play. Processes that meet more code add to it. It belongs to the ROM
alone, so other versions of parcade use it as well. It stays in the local cache, like the machine code.
"""

import contextlib
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..cartridge import image_size
from ..compiling.kernel_cache import cache_directory
from ..compiling.one_process import only_process_or_none, write_whole
from .notes import ENTERED, named
from .rom_image import Image, find_code

NOTES_FORMAT = 1  # part of the file's name


def lacks(rom: np.ndarray, kind: int, translated: np.ndarray, notes: np.ndarray) -> bool:
    """Return whether a translation from the notes `translated` lacks instructions of `notes`, or entries."""
    seen, entered = named(translated, kind)
    code, reached = find_code(Image(rom, kind), seen)
    new_seen, new_entered = named(notes, kind)
    return not (code.keys() >= set(new_seen) and entered | reached >= new_entered)


def known_notes(rom: np.ndarray, powered: dict[str, np.ndarray], program: np.ndarray) -> np.ndarray:
    """Return the notes of a ROM from disk, or trace it."""
    from . import tracing

    with _notes_file(rom) as path:
        known = _read_notes(path, image_size(rom))
        if known is None:
            known = tracing.trace(powered, rom, program)
            _write_notes(path, known)
        return known


def shared_notes(rom: np.ndarray, kind: int, notes: np.ndarray) -> np.ndarray:
    """Add `notes` to those on disk; return the sum, or the latter if they lack nothing.

    So processes that play the same game end with the same code.
    """
    with _notes_file(rom) as path:
        known = _read_notes(path, image_size(rom))
        if known is not None:
            if not lacks(rom, kind, known, notes):
                return known
            notes = np.where(notes != 0, notes | known & ENTERED, known)
        _write_notes(path, notes)
        return notes


@contextlib.contextmanager
def _notes_file(rom: np.ndarray) -> Iterator[Path | None]:
    """Hold the lock of the file of a ROM's notes; yield its path, None without a cache."""
    name = hashlib.sha256(rom[: image_size(rom)].tobytes()).hexdigest()[:32]
    with only_process_or_none(cache_directory(), f"notes-{name[:2]}") as directory:
        yield None if directory is None else directory / f"rom-{name}.notes{NOTES_FORMAT}"


def _read_notes(path: Path | None, size: int) -> np.ndarray | None:
    """Return the notes in a file; None if it does not exist or is damaged."""
    if path is None or not path.is_file():
        return None
    with contextlib.suppress(zlib.error):
        notes = np.frombuffer(zlib.decompress(path.read_bytes(), bufsize=size), np.uint8)
        if len(notes) == size:
            return notes
    return None


def _write_notes(path: Path | None, notes: np.ndarray) -> None:
    if path is not None:
        with contextlib.suppress(OSError):  # a full disk: the next process traces again
            write_whole(path, zlib.compress(notes.tobytes()))
