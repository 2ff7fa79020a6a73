"""The lock of the thread that compiles or translates. A fork waits for it.

A child process inherits the locks of llvmlite and of Numba as they are. One that another thread of the parent
held would never be released, and the child would wait for ever when it compiles or loads code itself.
"""

import os
import threading

compiling = threading.RLock()

if hasattr(os, "register_at_fork"):
    # The thread that forks is the only one of the child and has the same number there, so it may release it.
    os.register_at_fork(
        before=compiling.acquire, after_in_parent=compiling.release, after_in_child=compiling.release
    )
