"""Algorithms, backends, networks and environments of other packages.

A package names a module in the entry point group ``parcade``; importing the module calls
``register_algorithm``, ``register_backend``, ``register_network`` or ``gymnasium.register``. So every process
of a run finds them: ranks, actors, ``eval``.
"""

from __future__ import annotations

import functools
import importlib.metadata

GROUP = "parcade"


@functools.cache
def load_plugins() -> None:
    """Import the modules of all installed plugins, once. It takes place when a name is not parcade's own."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        entry.load()
