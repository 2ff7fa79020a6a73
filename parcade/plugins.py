"""Algorithms, backends, networks and environments of other packages.

A package names a module in the entry point group ``parcade``; importing the module calls
``register_algorithm``, ``register_backend``, ``register_network`` or ``gymnasium.register``. So every process
of a run finds them: ranks, actors, ``eval``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import sys
from collections.abc import Iterator

from parcade.ending import EndedBySignal
from parcade.errors import UsageError
from parcade.stand_ins import need_real_packages

GROUP = "parcade"


@functools.cache
def load_plugins() -> None:
    """Import the modules of all installed plugins, once. It takes place when a name is not parcade's own.

    One that cannot be imported is named on stderr, and the others are still imported.
    """
    entries = importlib.metadata.entry_points(group=GROUP)
    if entries:
        need_real_packages()
    for entry in entries:
        try:
            with exit_refused():
                entry.load()
        except Exception as error:  # a plugin's module may raise anything
            package = entry.dist.name if entry.dist else entry.name
            print(f"warning: plugin {package} ({entry.value}) cannot be imported: {error}", file=sys.stderr)


@contextlib.contextmanager
def exit_refused() -> Iterator[None]:
    """Let an import not end the process. Errors: ImportError in place of a module's own SystemExit."""
    try:
        yield
    except EndedBySignal:
        raise
    except SystemExit as error:
        raise ImportError(
            f"it calls sys.exit({'' if error.code is None else repr(error.code)}) when it is imported; "
            "leave that to the block of __name__ == '__main__'"
        ) from error


def check_registered(kind: str, name: object, make: object) -> None:
    """Check the arguments of a ``register_`` function, rather than fail at first use. Errors: UsageError."""
    if not isinstance(name, str) or name.split() != [name]:  # a word of a command line
        raise UsageError(f"{kind} name {name!r}: expected text without spaces")
    if not callable(make):
        raise UsageError(
            f"{kind} {name!r} is made by a {type(make).__name__}; expected a class or a function"
        )
