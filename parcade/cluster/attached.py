"""``python -m parcade.cluster.attached PARENT ARGUMENTS``: ``parcade ARGUMENTS`` while PARENT lives.

When a sweep or a suite is killed, its trainings receive SIGTERM from the kernel, save a checkpoint and stop.
Other systems than Linux have no such signal; there they train on, and a continued sweep or suite waits.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the command, with the death signal and with the signals that Ray's processes block."""
    parent, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):
            sys.exit(f"parcade: the process {parent} that started this training is gone")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    os.execv(sys.executable, [sys.executable, "-m", "parcade", *arguments])


if __name__ == "__main__":
    main()
