"""The trainings of one trial, one process per seed, and the values that their reports give."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from parcade.cluster.processes import wait_for_end
from parcade.files.run_directory import complete_checkpoints, is_finished
from parcade.sweep.objective import CHECKS, Budget, Objective

POLL_SECONDS = 0.1
GRACE_SECONDS = 60.0
"""How long a training may take for its last checkpoint before it is killed, or before a new start of the
sweep gives up waiting for the end of an old one."""


class Training(NamedTuple):
    """A run of a trial: its directory, the arguments of ``parcade`` that start or resume it, and the working
    directory, which paths among the arguments are relative to.
    """

    run: str
    start: list[str]
    resume: list[str]
    directory: str


class Failed(Exception):
    """A training ended with an error; the message is the last line of its output."""


class _Process:
    """The process of a training, or none if the run is finished. A killed start is resumed or repeated."""

    def __init__(self, training: Training) -> None:
        self.run = Path(training.run)
        self.log = self.run.with_name(f"{self.run.name}.log")
        self._reports: list[dict[str, Any]] = []
        self._read_bytes, self._inode = 0, 0
        self.process: subprocess.Popen | None = None
        if self.finished:
            return
        if not wait_for_end(self.run, GRACE_SECONDS):  # processes that a killed sweep left behind
            raise Failed(f"{self.run} is still trained by another process; end it first")
        if complete_checkpoints(self.run):
            command = training.resume
        else:  # what a killed start left behind has no checkpoint to resume
            shutil.rmtree(self.run, ignore_errors=True)
            command = training.start
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "parcade.cluster.attached", str(os.getpid()), *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment,
                cwd=training.directory,
            )  # fmt: skip

    @property
    def finished(self) -> bool:
        """Whether the run has reached its end."""
        return is_finished(self.run)

    def check(self) -> None:
        """Errors: Failed if the process ended without finishing the run."""
        if self.process is not None and self.process.poll() is not None and not self.finished:
            lines = self.log.read_text(errors="replace").splitlines()
            last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
            raise Failed(f"exit code {self.process.returncode}: {last}")

    def reports(self) -> list[dict[str, Any]]:
        """Return all complete reports of the run so far."""
        path = self.run / "metrics.jsonl"
        if path.exists():
            with open(path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:  # a resumed run replaces the file by one without the lost reports
                    self._reports, self._read_bytes, self._inode = [], 0, inode
                file.seek(self._read_bytes)
                complete = file.read().rpartition(b"\n")
            self._reports += map(json.loads, complete[0].splitlines())
            self._read_bytes += len(complete[0]) + len(complete[1])
        return self._reports

    def ask_to_stop(self) -> None:
        """Request a checkpoint and the end, if the process is running."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def end(self, seconds: float) -> None:
        """Wait for the process, and kill what remains of it."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class TrialRuns:
    """Starts the trainings of a trial and follows their reports from the first one, also after a resume."""

    def __init__(self, trainings: list[Training], budget: Budget, objective: Objective) -> None:
        self._budget, self._objective = budget, objective
        self.values: list[float | None] = []
        self._processes: list[_Process] = []
        try:
            for training in trainings:
                self._processes.append(_Process(training))
        except BaseException:
            self.stop()
            raise

    def next_value(self, patience_seconds: float) -> bool:
        """Wait for the next check, and append its value; return False if time is over first.

        Errors: Failed when a training fails, or ends without having finished an episode.
        """
        end = time.monotonic() + patience_seconds
        check = len(self.values) + 1
        while (reports := self._reports_at(check)) is None:
            if time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)
        values = [self._objective.value(each, check / CHECKS) for each in reports]
        known = [value for value in values if value is not None]
        self.values.append(statistics.fmean(known) if len(known) == len(values) else None)
        if len(self.values) == CHECKS:
            self._end(GRACE_SECONDS)  # result.json is written shortly before a process ends
            if self.values[-1] is None:
                raise Failed("a training has not finished any episode; use a longer --budget")
        return True

    def _reports_at(self, check: int) -> list[list[dict[str, Any]]] | None:
        """Return the reports of every seed up to a check, None if one has not reached it."""
        found = []
        for each in self._processes:
            each.check()
            is_over = each.finished
            reports = each.reports()  # read after the test, so that those of a finished run are complete
            reached = None if check == CHECKS else self._budget.reports_at(check, reports)
            if reached is None and not is_over:
                return None
            found.append(reports if reached is None else reached)
        return found

    def stop(self) -> None:
        """Let the trainings save and stop."""
        for each in self._processes:
            each.ask_to_stop()
        self._end(GRACE_SECONDS)

    def _end(self, seconds: float) -> None:
        """Wait for the processes, and kill those that take too long."""
        end = time.monotonic() + seconds
        for each in self._processes:
            each.end(end - time.monotonic())
