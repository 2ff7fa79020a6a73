"""The trainings of one trial, one process per seed, and the values that their reports give."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

from parcade.cluster.attached_process import AttachedProcess, CannotStart, end_all, wait_until_free
from parcade.config import load_config
from parcade.envs.games import module_of
from parcade.errors import UsageError
from parcade.files.run_directory import claim_directory, complete_checkpoints, is_finished
from parcade.sweep.objective import CHECKS, Budget, Objective
from parcade.training_flags import parse_training

POLL_SECONDS = 0.1
SETTINGS = ("game", "env", "hyper", "topology")
"""Parts of a config that must be those of a trial's own for a run to be the trial's."""


class Training(NamedTuple):
    """A run of a trial: its directory, the arguments of ``parcade`` that start or resume it, and the working
    directory, which paths among the arguments are relative to.
    """

    run: str
    start: list[str]
    resume: list[str]
    directory: str


def set_aside_others(run: Path, start: list[str]) -> None:
    """Rename the directory of a run with other settings than those of ``start``, to ``.other``.

    A deleted file of a trial leaves such runs to a new trial of its number, which a search may give other
    settings. Errors: OSError.
    """
    if not run.is_dir():
        return
    config = parse_training(start[1:])
    try:
        found = load_config(run, config.game if module_of(config.game) else "")
    except UsageError:  # none, or a damaged one
        found = None
    if found is None or any(getattr(found, name) != getattr(config, name) for name in SETTINGS):
        run.rename(claim_directory(run.with_name(f"{run.name}.other")))


class Failed(Exception):
    """A training ended with an error; the message is the last line of its output."""


class _Started:
    """A training with its process, or none if the run is finished. A killed start is resumed or repeated."""

    def __init__(self, training: Training) -> None:
        self.run = Path(training.run)
        self._reports: list[dict[str, Any]] = []
        self._read_bytes, self._inode = 0, 0
        self.process: AttachedProcess | None = None
        if self.finished:
            return
        try:
            wait_until_free(self.run)
            if complete_checkpoints(self.run):
                command = training.resume
            else:  # what a killed start left behind has no checkpoint to resume
                shutil.rmtree(self.run, ignore_errors=True)
                command = training.start
            # Variables of Ray describe the worker that this process is, and not the training.
            environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
            log = self.run.with_name(f"{self.run.name}.log")
            self.process = AttachedProcess(
                command, log, environment=environment, directory=training.directory
            )
        except CannotStart as error:
            raise Failed(str(error)) from None

    @property
    def finished(self) -> bool:
        """Whether the run has reached its end."""
        return is_finished(self.run)

    def check(self) -> None:
        """Errors: Failed if the process ended without finishing the run."""
        if self.process is not None and self.process.exit_code() is not None and not self.finished:
            raise Failed(f"exit code {self.process.exit_code()}: {self.process.last_line()}")

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


class TrialRuns:
    """Starts the trainings of a trial and follows their reports from the first one, also after a resume."""

    def __init__(self, trainings: list[Training], budget: Budget, objective: Objective) -> None:
        self._budget, self._objective = budget, objective
        self.values: list[float | None] = []
        self._trainings: list[_Started] = []
        try:
            for training in trainings:
                self._trainings.append(_Started(training))
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
        values = [self._objective.value(each, self._budget.share(each)) for each in reports]
        known = [value for value in values if value is not None]
        self.values.append(statistics.fmean(known) if len(known) == len(values) else None)
        if len(self.values) == CHECKS:
            end_all(self._started())  # result.json is written shortly before a process ends
            if self.values[-1] is None:
                raise Failed("a training has not finished any episode; use a longer --budget")
        return True

    def _reports_at(self, check: int) -> list[list[dict[str, Any]]] | None:
        """Return the reports of every seed up to a check, None if one has not reached it."""
        found = []
        for each in self._trainings:
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
        for process in self._started():
            process.ask_to_stop()
        end_all(self._started())

    def _started(self) -> list[AttachedProcess]:
        return [each.process for each in self._trainings if each.process is not None]
