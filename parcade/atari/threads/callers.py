"""A lock for what only one thread at a time may use, such as consoles in compiled code without the GIL."""

import os
import threading
import weakref


class Callers:
    """The threads that call an object. `with callers.lock:` makes them wait for each other.

    A forked process has a new lock, because another thread of its parent may have held the old one.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _of_this_process.add(self)


_of_this_process: "weakref.WeakSet[Callers]" = weakref.WeakSet()


def _renew_locks() -> None:
    for callers in _of_this_process:
        callers.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
