"""The Atari 2600, numpy and numba only: exact consoles that know no reinforcement learning.

Read `console.py` first (a frame, a reset), then `cpu6507.py`, `bus.py`, `tia.py`. `state.py` is the shape table. Numba is imported
when `Arcade` or `VectorConsoles` is first asked for.
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
