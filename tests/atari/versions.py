"""Versions of compiled functions: one per combination of argument types."""

import sys

JIT = "parcade.atari.compiling.jit"


def further_versions() -> dict[str, int]:
    """Return the separate functions with more than one version, and how many each has.

    Numba keeps a further version on disk, where it makes all compiled code stale.
    """
    if JIT not in sys.modules:
        return {}
    found = {
        name: len(dispatcher.overloads)
        for name, (dispatcher, _) in sys.modules[JIT].separate_functions().items()
    }
    return {name: count for name, count in found.items() if count > 1}
