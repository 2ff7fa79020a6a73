"""Identities of processes that others on the same host can check: is this process still there?"""

from __future__ import annotations

import os
import socket

import psutil


def own_identity() -> str:
    """Return this process's id, and where ids mean this process: its host, and on Linux their namespace."""
    return f"{os.getpid()} {_place()}"


def is_gone(identity: str) -> bool:
    """Return whether the process of an ``own_identity`` has ended.

    One whose parent has not noticed yet (a zombie) counts. False for processes that cannot be seen from here.
    """
    pid, _, place = identity.partition(" ")
    if not pid.isdigit() or place != _place():
        return False
    try:
        return psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _place() -> str:
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{socket.gethostname()}/{namespace}"
