"""Machine code of a ROM: traced, translated and compiled at first use (a few seconds), then cached on disk.

Code for GPUs is in separate files. The files contain recompiled code of the ROM, so they stay in the local
cache, next to Numba's, and are never distributed.
"""

import hashlib
from collections.abc import Callable

import numba
import numpy as np

from ..jit import cache_directory, only_process, source_digest, write_whole
from ..state import CART_KIND
from . import lanes, machine_code, recompiler

_loaded: dict[str, tuple] = {}  # key to (engine, address); the engine must live as long as its code


def attach(rom: np.ndarray, powered: dict[str, np.ndarray], program: np.ndarray) -> None:
    """Attach machine code to an expanded ROM image; does nothing without the JIT."""
    if numba.config.DISABLE_JIT:
        return
    key = _key(rom, machine_code.target_name())
    if key not in _loaded:

        def make() -> bytes:
            return machine_code.compile_assembly(recompiler.translate(*_traced(rom, powered, program)))

        _loaded[key] = machine_code.load_object(_kept(f"{key}.o", make))
    put_address(rom, _loaded[key][1])


def ptx_of(rom: np.ndarray, powered: dict[str, np.ndarray], program: np.ndarray) -> str:
    """Return the GPU machine code of an expanded ROM image as PTX, to be linked to kernels."""
    key = _key(rom, machine_code.PTX_VERSION)

    def make() -> bytes:
        return machine_code.compile_for_gpu(lanes.translate(*_traced(rom, powered, program))).encode()

    return _kept(f"{key}.ptx", make).decode()


def put_address(rom: np.ndarray, address: int) -> None:
    """Store the address of a ROM image's machine code: 0 for none; on a GPU, nonzero for linked code."""
    rom[-machine_code.ADDRESS_BYTES :] = np.frombuffer(
        int(address).to_bytes(machine_code.ADDRESS_BYTES, "little"), np.uint8
    )


def detach(rom: np.ndarray) -> None:
    """Detach the machine code, so that only the interpreter runs this ROM image."""
    put_address(rom, 0)


def _key(rom: np.ndarray, target: str) -> str:
    parts = (
        rom[: -machine_code.ADDRESS_BYTES].tobytes(),
        source_digest(everything=True).encode(),
        target.encode(),
    )
    return hashlib.sha256(b"".join(parts)).hexdigest()[:32]


def _traced(rom: np.ndarray, powered: dict[str, np.ndarray], program: np.ndarray) -> tuple:
    """Return the arguments of `translate`: ROM, cartridge kind, instructions seen, instructions entered."""
    from . import tracing

    seen, entered = tracing.trace(powered, rom, program)
    return rom, int(powered["state"][0, CART_KIND]), seen, entered


def _kept(name: str, make: Callable[[], bytes]) -> bytes:
    """Return the cached file `name`, or create it with `make`."""
    directory = cache_directory()
    # One lock per name prefix, so that processes that load different ROMs rarely wait for each other.
    with only_process(directory, f"rom-{name[:2]}"):
        path = None if directory is None else directory / f"rom-{name}"
        if path is not None and path.is_file():
            return path.read_bytes()
        code = make()
        if path is not None:
            write_whole(path, code)
        return code
