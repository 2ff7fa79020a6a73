"""Machine code of a ROM: traced, translated and compiled at first use (a few seconds), then cached on disk.

The trace is random play. `CodeRenewal` translates again when play meets code that the trace did not.

Code for GPUs is in separate files. The files contain recompiled code of the ROM, so they stay in the local
cache, next to Numba's, and are never distributed.
"""

import contextlib
import hashlib
import threading
from collections.abc import Callable

import numba
import numpy as np

from ..cartridge import image_size
from ..compiling.kernel_cache import cache_directory, source_digest
from ..compiling.one_process import only_process_or_none, write_whole
from ..compiling.one_thread import compiling
from ..state import CART_KIND
from . import lanes, machine_code, recompiler
from .known_code import known_notes, lacks, shared_notes
from .notes import named, notes_of, number_noted

DIGEST_BYTES = hashlib.sha256().digest_size
RENEW_AFTER = 100_000_000  # instructions; interpreting them takes about as long as translating a ROM

_loaded: dict[str, tuple] = {}  # key to (engine, address); the engine must live as long as its code


def attach(rom: np.ndarray, powered: dict[str, np.ndarray], program: np.ndarray) -> None:
    """Attach machine code to an expanded ROM image; does nothing without the JIT."""
    if not numba.config.DISABLE_JIT:
        notes_of(rom)[:] = notes = known_notes(rom, powered, program)
        put_address(rom, _machine_code(rom, int(powered["state"][0, CART_KIND]), notes))


def ptx_of(rom: np.ndarray, powered: dict[str, np.ndarray], program: np.ndarray) -> str:
    """Return the GPU machine code of an expanded ROM image as PTX, to be linked to kernels."""
    kind, notes = int(powered["state"][0, CART_KIND]), known_notes(rom, powered, program)

    def make() -> bytes:
        return machine_code.compile_for_gpu(lanes.translate(rom, kind, *named(notes, kind))).encode()

    with compiling:
        return _kept(f"{_key(rom, notes, machine_code.PTX_VERSION)}.ptx", make).decode()


def put_address(rom: np.ndarray, address: int) -> None:
    """Store the address of a ROM image's machine code: 0 for none; on a GPU, nonzero for linked code."""
    _address(rom)[0] = address  # in one store, because consoles may be playing


def detach(rom: np.ndarray) -> None:
    """Detach the machine code, so that only the interpreter runs this ROM image."""
    put_address(rom, 0)


class CodeRenewal:
    """Translates a ROM again after much code that its translation lacks has been interpreted.

    The interpreter is ten times slower, and notes what it runs. Call `check` before every step: it starts a
    thread that translates, and later attaches the new code, which plays the same. What was noted is kept on
    disk, so the next start has that code from the beginning.
    """

    def __init__(self, rom: np.ndarray, kind: int) -> None:
        self._rom, self._kind = rom, kind
        self._translated = notes_of(rom).copy()
        self._number = number_noted(rom)
        self._due = RENEW_AFTER
        self._thread: threading.Thread | None = None
        self._renewed: tuple[np.ndarray, int] | None = None  # notes, address

    def check(self) -> None:
        """Start a translation if it is due; attach the result of one that has ended."""
        if self._thread is None:
            if self._number[0] >= self._due and _address(self._rom)[0] != 0:
                self._thread = threading.Thread(target=self._translate, name="translation of a ROM")
                self._thread.start()
        elif not self._thread.is_alive():
            self._thread = None
            self._number[0] = 0
            if self._renewed is None:
                self._due *= 8  # nothing of it can be translated
            else:
                self._translated, address = self._renewed
                put_address(self._rom, address)
            self._renewed = None

    def _translate(self) -> None:
        notes = notes_of(self._rom).copy()
        if not lacks(self._rom, self._kind, self._translated, notes):
            return
        with contextlib.suppress(OSError):  # of the cache on disk; play goes on as before
            notes = shared_notes(self._rom, self._kind, notes)
            self._renewed = notes, _machine_code(self._rom, self._kind, notes)


def _address(rom: np.ndarray) -> np.ndarray:
    """Return a view of the address of the machine code, int64 [1]."""
    return rom[-machine_code.ADDRESS_BYTES :].view(np.int64)


def _machine_code(rom: np.ndarray, kind: int, notes: np.ndarray) -> int:
    """Return the address of a ROM's machine code, from memory, from disk or made now."""

    def make() -> bytes:
        return machine_code.compile_assembly(recompiler.translate(rom, kind, *named(notes, kind)))

    with compiling:
        key = _key(rom, notes, machine_code.target_name())
        if key not in _loaded:
            _loaded[key] = machine_code.load_object(_kept(f"{key}.o", make))
        return _loaded[key][1]


def _key(rom: np.ndarray, notes: np.ndarray, target: str) -> str:
    parts = (
        rom[: image_size(rom)].tobytes(),
        notes.tobytes(),
        source_digest(everything=True).encode(),
        target.encode(),
    )
    return hashlib.sha256(b"".join(parts)).hexdigest()[:32]


def _kept(name: str, make: Callable[[], bytes]) -> bytes:
    """Return the cached file `name`, or create it with `make`."""
    # One lock per name prefix, so that processes that load different ROMs rarely wait for each other.
    with only_process_or_none(cache_directory(), f"rom-{name[:2]}") as directory:
        path = None if directory is None else directory / f"rom-{name}"
        if path is not None and path.is_file():
            content = path.read_bytes()
            digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
            if digest == hashlib.sha256(code).digest():  # a damaged file would crash the process
                return code
        code = make()
        if path is not None:
            with contextlib.suppress(OSError):  # a full disk: the next process translates again
                write_whole(path, hashlib.sha256(code).digest() + code)
        return code
