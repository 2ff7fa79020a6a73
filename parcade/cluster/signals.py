"""Stopping a run from outside: Ctrl-C, SIGTERM, a closed terminal, or a file ``stop`` in the run directory.

The file works on any host and with any launcher; MPI launchers differ in the signals they forward.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from parcade.ending import end_signals

STOP_FILE = "stop"


def stop_signals() -> tuple[int, ...]:
    """Return the signals that request a stop: SIGINT, SIGTERM and, unless ignored as under nohup, SIGHUP."""
    return (signal.SIGINT, *end_signals())


class StopRequest:
    """A context in which the first signal of ``stop_signals`` requests a stop after the iteration.

    A later SIGINT raises KeyboardInterrupt. Further SIGTERMs change nothing: batch systems repeat them, and a
    training whose sweep is killed may get one from the sweep and one from the kernel. With a run directory,
    the stop file requests a stop too.

    Args:
        says: what the first signal writes to stderr at once, as an iteration may take minutes.
    """

    def __init__(self, run: Path | None, says: str = "") -> None:
        self._says = says
        self._file = run / STOP_FILE if run is not None else None
        self._asked = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        for number in stop_signals():
            try:
                self._previous[number] = signal.signal(number, self._on_signal)
            except ValueError:  # not the main thread: only the file works
                break
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self._asked = True
        if self._says:
            # Not print: the signal may have come in the middle of another one.
            with contextlib.suppress(OSError):
                os.write(sys.stderr.fileno(), f"{self._says}\n".encode())

    def requested(self) -> bool:
        """Return whether a stop was requested."""
        return self._asked or (self._file is not None and self._file.exists())
