"""Stopping a run from outside: Ctrl-C, SIGTERM, a closed terminal, or a file named ``stop`` in the run's directory.

The file reaches ranks on any host, behind any launcher: MPI launchers do not agree on which signals they pass on.
"""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

STOP_FILE = "stop"


def stop_signals() -> tuple[int, ...]:
    """What asks for a stop: Ctrl-C, SIGTERM, and a terminal that is closed, unless that is ignored as under nohup."""
    asked = (signal.SIGINT, signal.SIGTERM)
    return asked if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (*asked, signal.SIGHUP)


class StopRequest:
    """While entered, the first of ``stop_signals`` asks for a stop after the iteration; the second one interrupts.

    Without a run directory there is no file to ask with.
    """

    def __init__(self, run: Path | None) -> None:
        self._file = run / STOP_FILE if run is not None else None
        self._asked = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        for number in stop_signals():
            try:
                self._previous[number] = signal.signal(number, self._on_signal)
            except ValueError:  # not in the main thread: only the file is left
                break
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def requested(self) -> bool:
        """Whether a stop was asked for."""
        return self._asked or (self._file is not None and self._file.exists())
