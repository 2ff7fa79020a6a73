"""Machine code for a ROM: traced, translated and compiled at its first use (a few seconds), then kept on disk.

Code for GPUs is a file of its own. The files hold recompiled code of the ROM, so they stay in the cache next to Numba's and go
nowhere else.
"""

import hashlib
from collections.abc import Callable

import numba
import numpy as np

from ..jit import cache_directory, only_process, source_digest, write_whole
from ..state import CART_KIND
from . import lanes, machine_code, recompiler

_loaded: dict[str, tuple] = {}  # key: engine, which must live as long as its code, and address


def attach(rom: np.ndarray, powered: dict[str, np.ndarray], program: np.ndarray) -> None:
    """Give an expanded image its machine code; nothing with the JIT off."""
    if numba.config.DISABLE_JIT:
        return
    key = _key(rom, machine_code.target_name())
    if key not in _loaded:

        def make() -> bytes:
            return machine_code.compile_assembly(recompiler.translate(*_traced(rom, powered, program)))

        _loaded[key] = machine_code.load_object(_kept(f"{key}.o", make))
    put_address(rom, _loaded[key][1])


def ptx_of(rom: np.ndarray, powered: dict[str, np.ndarray], program: np.ndarray) -> str:
    """The machine code of an expanded image for GPUs, to be linked to kernels."""
    key = _key(rom, machine_code.PTX_VERSION)

    def make() -> bytes:
        return machine_code.compile_for_gpu(lanes.translate(*_traced(rom, powered, program))).encode()

    return _kept(f"{key}.ptx", make).decode()


def put_address(rom: np.ndarray, address: int) -> None:
    """Say where an image's machine code is; 0 for none. On a GPU any other number says that it is linked."""
    rom[-machine_code.ADDRESS_BYTES :] = np.frombuffer(
        int(address).to_bytes(machine_code.ADDRESS_BYTES, "little"), np.uint8
    )


def detach(rom: np.ndarray) -> None:
    """From here on only the interpreter runs this image."""
    put_address(rom, 0)


def _key(rom: np.ndarray, target: str) -> str:
    parts = (
        rom[: -machine_code.ADDRESS_BYTES].tobytes(),
        source_digest(everything=True).encode(),
        target.encode(),
    )
    return hashlib.sha256(b"".join(parts)).hexdigest()[:32]


def _traced(rom: np.ndarray, powered: dict[str, np.ndarray], program: np.ndarray) -> tuple:
    """What a translation is made of."""
    from . import tracing

    seen, entered = tracing.trace(powered, rom, program)
    return rom, int(powered["state"][0, CART_KIND]), seen, entered


def _kept(name: str, make: Callable[[], bytes]) -> bytes:
    """What `make` gives, from disk if it has been made before."""
    directory = cache_directory()
    with only_process(
        directory, f"rom-{name[:2]}"
    ):  # processes that load different ROMs do not wait for each other
        path = None if directory is None else directory / f"rom-{name}"
        if path is not None and path.is_file():
            return path.read_bytes()
        code = make()
        if path is not None:
            write_whole(path, code)
        return code
