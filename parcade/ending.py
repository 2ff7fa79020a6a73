"""Close files and parts at SIGTERM, and at SIGHUP when the terminal closes, as after Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType


class EndedBySignal(SystemExit):
    """The exit of a process that got an end signal, as opposed to an exit that some code asks for."""


def end_signals() -> tuple[int, ...]:
    """Return the signals that end a command: SIGTERM and, unless ignored as under nohup, SIGHUP."""
    hung_up = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGHUP) if hung_up else (signal.SIGTERM,)


@contextlib.contextmanager
def exits_in_order() -> Iterator[None]:
    """Let the end signals raise SystemExit, so that contexts end what they have started."""
    received: list[int] = []

    def leave(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise EndedBySignal(128 + number)

    with _handling(leave):
        try:
            yield
        except SystemExit:
            if received:  # where a call of Ray is interrupted, it exits with a code of its own
                sys.exit(128 + received[-1])
            raise


def interrupts_on_end() -> contextlib.AbstractContextManager[None]:
    """Let the end signals do what Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    return _handling(interrupt)


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {}
    for number in end_signals():
        with contextlib.suppress(ValueError):  # not the main thread, which alone receives signals
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
