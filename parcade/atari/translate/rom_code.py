"""Machine code for a ROM: traced, translated and compiled at its first use (a few seconds), then kept on disk.

The files hold recompiled code of the ROM, so they stay in the cache beside Numba's and go nowhere else.
"""

import hashlib
import os

import numba
import numpy as np

from ..jit import cache_directory, only_process, source_digest
from ..state import CART_KIND
from . import machine_code, recompiler

_loaded: dict[str, tuple] = {}  # key: engine, which must live as long as its code, and address


def attach(rom: np.ndarray, powered: dict[str, np.ndarray], program: np.ndarray) -> None:
    """Give an expanded image its machine code; nothing with the JIT off."""
    if numba.config.DISABLE_JIT:
        return
    key = _key(rom)
    if key not in _loaded:
        _loaded[key] = machine_code.load_object(_object_file(key, rom, powered, program))
    address = _loaded[key][1]
    rom[-machine_code.ADDRESS_BYTES :] = np.frombuffer(int(address).to_bytes(machine_code.ADDRESS_BYTES, "little"), np.uint8)


def interpreted(rom: np.ndarray) -> np.ndarray:
    """A copy of an image that only the interpreter runs: what a device is given, since the machine code is this CPU's."""
    plain = rom.copy()
    detach(plain)
    return plain


def detach(rom: np.ndarray) -> None:
    """From here on only the interpreter runs this image."""
    rom[-machine_code.ADDRESS_BYTES :] = 0


def _key(rom: np.ndarray) -> str:
    parts = rom[: -machine_code.ADDRESS_BYTES].tobytes(), source_digest(everything=True).encode(), machine_code.target_name().encode()
    return hashlib.sha256(b"".join(parts)).hexdigest()[:32]


def _object_file(key: str, rom: np.ndarray, powered: dict[str, np.ndarray], program: np.ndarray) -> bytes:
    directory = cache_directory()
    with only_process(directory, f"rom-{key[:2]}"):  # processes that load different ROMs do not wait for each other
        path = None if directory is None else directory / f"rom-{key}.o"
        if path is not None and path.is_file():
            return path.read_bytes()
        from . import tracing

        seen, entered = tracing.trace(powered, rom, program)
        kind = int(powered["state"][0, CART_KIND])
        code = machine_code.compile_assembly(recompiler.translate(rom, kind, seen, entered))
        if path is not None:
            written = path.with_suffix(f".{os.getpid()}")
            written.write_bytes(code)
            written.replace(path)
        return code
