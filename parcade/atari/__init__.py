"""An exact Atari 2600 emulator on numpy, numba and llvmlite alone, without reinforcement learning.

Read `console.py` first (a frame, a reset), then `mos6507/interpreter.py`, `bus.py` and `tia/chip.py`.
`state.py` is the shape table. Numba is imported on the first access to `Arcade` or `VectorConsoles`.
"""

__all__ = ["Arcade", "VectorConsoles"]


def __getattr__(name: str):
    if name == "Arcade":
        from .consoles import make_arcade

        return make_arcade
    if name == "VectorConsoles":
        from .vector import VectorConsoles

        return VectorConsoles
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
