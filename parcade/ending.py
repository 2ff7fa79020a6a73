"""Ends by SIGTERM, or by SIGHUP when the terminal closes, that close what is open, as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator


def end_signals() -> tuple[int, ...]:
    """Return the signals that end a command: SIGTERM and, unless ignored as under nohup, SIGHUP."""
    hung_up = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGHUP) if hung_up else (signal.SIGTERM,)


@contextlib.contextmanager
def exits_in_order() -> Iterator[None]:
    """Let the end signals raise SystemExit, so that contexts end what they have started."""

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = {}
    for number in end_signals():
        with contextlib.suppress(ValueError):  # not the main thread, which alone receives signals
            before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
