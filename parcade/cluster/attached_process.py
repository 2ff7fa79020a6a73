"""Processes of ``parcade`` that a suite or a sweep starts and stops: trainings and evaluations.

Each has a session and a log of its own. It stops when the process that started it is killed
(``attached.py``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from parcade.cluster.processes import wait_for_end

GRACE_SECONDS = 60.0
"""How long a training may take for its last checkpoint before it is killed, or before a new start of its
suite or sweep gives up waiting for it."""
KILL_SECONDS = 5.0
"""How long to wait for the end of a process that was killed."""
POLL_SECONDS = 0.5
"""How often a wait for such a training looks whether its suite is stopping."""


class CannotStart(Exception):
    """A process cannot start, e.g. because another one works on its run; the message says why."""


def wait_until_free(run: Path, is_stopping: Callable[[], bool] = lambda: False) -> None:
    """Wait for the end of a training that a killed suite or sweep left behind, which saves and stops.

    Errors: CannotStart if it goes on; KeyboardInterrupt if ``is_stopping()`` meanwhile.
    """
    end = time.monotonic() + GRACE_SECONDS
    while not wait_for_end(run, POLL_SECONDS):
        if is_stopping():
            raise KeyboardInterrupt
        if time.monotonic() > end:
            raise CannotStart(f"{run} is still trained by another process; end it first")


class AttachedProcess:
    """``parcade`` with these arguments, in this environment and working directory; output goes to ``log``.

    Errors: CannotStart.
    """

    def __init__(
        self, arguments: list[str], log: Path, *, environment: Mapping[str, str], directory: str = "."
    ) -> None:
        self._log = log
        try:
            output = open(log, "ab")
        except OSError as error:
            raise CannotStart(f"{log} cannot be written ({error.strerror})") from None
        try:
            with output:
                # In a session of its own, Ctrl-C does not reach it: its suite or sweep stops it.
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "parcade.cluster.attached", str(os.getpid()), *arguments],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                    env=environment, cwd=directory,
                )  # fmt: skip
        except OSError as error:
            raise CannotStart(
                f"parcade {arguments[0]} in {directory} cannot start ({error.strerror})"
            ) from None

    def exit_code(self) -> int | None:
        """Return the exit code, None while the process is running."""
        return self._process.poll()

    def last_line(self) -> str:
        """Return the last line of the output."""
        lines = self._log.read_text(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")

    def ask_to_stop(self) -> None:
        """Request a checkpoint and the end, if the process is running."""
        if self.exit_code() is None:
            self._process.terminate()

    def end(self, seconds: float) -> None:
        """Wait for the end; after ``seconds``, kill the process with those that it started in its group."""
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            # There may be no end to see: stuck in the kernel, or a second Ctrl-C left Popen's lock held.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_SECONDS)


def end_all(processes: Iterable[AttachedProcess]) -> None:
    """Wait for processes, and kill those that take longer than ``GRACE_SECONDS``."""
    end = time.monotonic() + GRACE_SECONDS
    for process in processes:
        process.end(end - time.monotonic())
