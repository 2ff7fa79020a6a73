"""Numba's cache of separate functions on disk: where it is, and which of its files must not be used."""

import functools
import hashlib
import os
import pickle
from pathlib import Path

import numba

from .jit import separate_functions

STAMP = "kernels.sha256"

# Files and folders without CPU kernels: changing them does not invalidate the cache.
WITHOUT_KERNELS = (
    "__init__.py", "arcade.py", "consoles.py", "duel.py", "games.py", "held_keys.py", "memory.py",
    "queued.py", "recording.py", "starts.py", "state_check.py", "two_players.py", "vector.py",
    "cuda/", "translate/",
)  # fmt: skip
WITH_KERNELS = ("translate/machine_code.py", "translate/notes.py", "translate/tracing.py")


@functools.cache
def source_digest(*, everything: bool = False) -> str:
    """Return a digest of the sources with kernels, or of all sources of the package, as of the first call."""
    folder = Path(__file__).parents[1]
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if "__pycache__" not in path.parts
    )
    wanted = [
        name for name in names if everything or name in WITH_KERNELS or not name.startswith(WITHOUT_KERNELS)
    ]
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in wanted)).hexdigest()


def cache_directory() -> Path | None:
    """Return the directory of compiled code, or None if it is not writable."""
    if numba.config.DISABLE_JIT:
        return None
    probe = numba.njit(lambda: None)
    try:
        probe.enable_caching()
        directory = Path(probe.stats.cache_path)
        directory.mkdir(parents=True, exist_ok=True)
    except (RuntimeError, OSError):
        return None
    return directory


def forget_stale_kernels(directory: Path | None) -> bool:
    """Delete code compiled from other sources; return whether everything must be compiled.

    Numba checks only the source file of the function itself, not those of its callees. Separate functions
    refer to each other by symbols of one compilation, so either all of them are valid or none is. Damaged
    ones would crash the process.
    """
    if directory is None:
        return True
    file = directory / STAMP
    if file.is_file() and file.read_bytes() == stamp():
        return False
    file.unlink(missing_ok=True)
    delete_kernels(directory)
    return True


def stamp() -> bytes:
    """Return a digest of the sources with kernels and of all compiled separate functions."""
    digest = hashlib.sha256(source_digest().encode())
    for path in sorted(_kernel_files()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest().encode()


def _kernel_files() -> set[Path]:
    """Return the files of Numba's cache with separate functions, indices and code."""
    found: set[Path] = set()
    for dispatcher, _ in separate_functions().values():
        dispatcher.enable_caching()
        module = dispatcher.py_func.__module__.rsplit(".", 1)[-1]
        folder = Path(dispatcher.stats.cache_path)
        found |= set(folder.glob(f"{module}.{dispatcher.__name__}-*.nb[ic]"))
    return found


def forget_half_a_set(directory: Path) -> bool:
    """Delete an incomplete set of compiled functions; return whether everything must be compiled.

    Functions call each other by symbols of one compilation, so a partial set is unusable, and so is one with
    a file that a power failure has cut. A complete set for another CPU model is kept.
    """
    files = [path for folder in _kernel_folders() for path in folder.glob("*.nb[ic]")]
    if not all(map(_is_complete_pickle, files)):
        delete_kernels(directory)
        return True
    present = [
        _lies_on_disk(dispatcher, signature) for dispatcher, signature in separate_functions().values()
    ]
    if any(present) and not all(present):
        delete_kernels(directory)
    return not all(present)


def _is_complete_pickle(path: Path) -> bool:
    """Return whether a file ends as every pickle does."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() == pickle.STOP


def _lies_on_disk(dispatcher, signature: str) -> bool:
    """Return whether a compiled function is on disk.

    Uses private parts of Numba. If they are missing, return True; Numba compiles missing functions itself.
    """
    try:
        cache = dispatcher._cache
        return cache._index_key(signature, dispatcher.targetctx.codegen()) in cache._cache_file._load_index()
    except AttributeError:
        return True


def delete_kernels(directory: Path) -> None:
    """Delete all compiled functions, and the machine code of ROMs, which calls them."""
    for folder in _kernel_folders() | {directory}:
        for path in [
            *folder.glob("*.nbi"),
            *folder.glob("*.nbc"),
            *folder.glob("rom-*.o"),
            *folder.glob("rom-*.ptx"),
        ]:
            path.unlink(missing_ok=True)


def _kernel_folders() -> set[Path]:
    """Return the folders of Numba's cache with separate functions, one per source folder."""
    folders: set[Path] = set()
    for dispatcher, _ in separate_functions().values():
        dispatcher.enable_caching()
        folders.add(Path(dispatcher.stats.cache_path))
    return folders
