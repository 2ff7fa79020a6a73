"""Imports that take seconds, made faster."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

from parcade.errors import UsageError


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Context manager for the first import of torch, without garbage collection.

    On exit, all objects are frozen: later collections skip them, also those at the end of the process.
    Together, this saves a quarter of the CPU time of a process that only imports torch. Once torch is
    imported it does nothing, since frozen objects are never freed.
    Errors: UsageError where the process may not use the memory that libraries need.
    """
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    except ImportError as error:
        if "failed to map" in str(error) or "annot allocate memory" in str(error):
            raise UsageError(
                f"too little memory to import torch ({error}); raise the limit (ulimit -v), or free some"
            ) from None
        raise
    finally:
        gc.freeze()
        gc.enable()


def import_torch() -> None:
    """Import torch ``without_collections``."""
    with without_collections():
        import torch  # noqa: F401
