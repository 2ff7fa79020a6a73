"""Train and score the cells of a suite, several at once, each in processes of its own.

A cell is finished when its run is and, under an evaluation protocol, ``eval-PROTOCOL.json`` has its score. An
interrupted cell resumes from its checkpoint. A cell that fails does not stop the others. If the suite is
killed, its trainings save and stop (``cluster/attached_process.py``), and the next start waits for them.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parcade.cluster.attached_process import AttachedProcess, CannotStart, end_all, wait_until_free
from parcade.cluster.signals import StopRequest
from parcade.envs.games import is_atari, naming_flags
from parcade.errors import UsageError
from parcade.files.reading import fits
from parcade.files.run_directory import complete_checkpoints, is_finished, read_json, read_result
from parcade.suite.plan import Cell, Plan

POLL_SECONDS = 0.2


def run_of(folder: Path, cell: Cell) -> Path:
    """Return the run directory of a cell."""
    return folder / "runs" / cell.name


def is_trained(folder: Path, cell: Cell) -> bool:
    """Return whether the training of a cell has reached its end."""
    return is_finished(run_of(folder, cell))


def score_of(folder: Path, plan: Plan, cell: Cell) -> dict[str, Any] | None:
    """Return a finished cell's result with its ``score`` under the plan's protocol, else None."""
    if not is_trained(folder, cell):
        return None
    result = read_result(run_of(folder, cell))
    if plan.rules.score == "training":
        return None if result["score_mean"] is None else {**result, "score": result["score_mean"]}
    path = _score_file(folder, plan, cell)
    if not path.exists():
        return None
    evaluation = read_json(path, advice="delete it to evaluate again")
    if missing := {"score_mean", "trained_frames"} - evaluation.keys():
        raise UsageError(f"{path} lacks {min(missing)!r}; it is damaged, delete it to evaluate again")
    if not fits(evaluation["score_mean"], float):
        raise UsageError(f"{path}: score_mean is no number; it is damaged, delete it to evaluate again")
    # The training may have been resumed since, with more frames, and --out may have written this file.
    asked = {"trained_frames": result["frames"], "episodes": plan.rules.episodes}
    if is_atari(cell.game):  # the evaluation of another task names no protocol
        asked["protocol"] = plan.protocol
    counts = all(evaluation.get(name, value) == value for name, value in asked.items())
    return {**result, "score": evaluation["score_mean"]} if counts else None


def _score_file(folder: Path, plan: Plan, cell: Cell) -> Path:
    """Return the file of a cell's evaluation. ``eval.json`` is the user's, who may evaluate in other ways."""
    return run_of(folder, cell) / f"eval-{plan.protocol}.json"


def next_command(folder: Path, plan: Plan, cell: Cell) -> list[str] | None:
    """Return the arguments of ``parcade`` that bring a cell forward, None when it is finished."""
    run = run_of(folder, cell)
    if not is_trained(folder, cell):
        if complete_checkpoints(run):
            return ["train", "--resume", str(run), *naming_flags(cell.game)]
        return [*plan.command(cell), "--run-dir", str(run)]
    if plan.rules.score == "evaluation" and score_of(folder, plan, cell) is None:
        out = str(_score_file(folder, plan, cell))
        return [
            "eval", str(run), *naming_flags(cell.game), "--protocol", plan.protocol, "--json", "--out", out,
            "--seed", str(cell.seed),  # runs that played the same episodes would not be independent
        ]  # fmt: skip
    return None


class _Active:
    """The process that is bringing a cell forward."""

    def __init__(self, folder: Path, cell: Cell, command: list[str]) -> None:
        self.cell, self.command = cell, command
        if "--run-dir" in command:  # what a killed start left behind has no checkpoint to resume
            shutil.rmtree(run_of(folder, cell), ignore_errors=True)
        # Evaluations run side by side, too, and have no flag for it.
        one_thread = {"OMP_NUM_THREADS": "1"} if command[0] == "eval" else {}
        log = folder / "runs" / f"{cell.name}.log"
        self.process = AttachedProcess(command, log, environment=os.environ | one_thread)


class _Progress:
    """The cells of a suite on the way to their ends: ``waiting`` for a process, ``active`` in one, or failed.

    ``failed`` has the last line of every cell that failed.
    """

    def __init__(self, folder: Path, plan: Plan, say: Callable[[str], None]) -> None:
        self._folder, self._plan, self._say = folder, plan, say
        self.waiting = deque(cell for cell in plan.cells if next_command(folder, plan, cell))
        self.active: list[_Active] = []
        self.failed: dict[Cell, str] = {}

    def start_next(self, is_stopping: Callable[[], bool]) -> None:
        """Start the process that brings the next cell forward; none if it is finished by now.

        Errors: KeyboardInterrupt if ``is_stopping()`` while an earlier process goes on.
        """
        cell = self.waiting.popleft()
        try:
            wait_until_free(run_of(self._folder, cell), is_stopping)
            command = next_command(self._folder, self._plan, cell)
            if command is None:
                self._say_score(cell)
            else:
                self._say(f"{cell.name}: parcade {' '.join(command)}")
                self.active.append(_Active(self._folder, cell, command))
        except CannotStart as error:
            self._fail(cell, str(error))

    def settle(self) -> None:
        """Note the processes that have ended: a cell has a next command, is finished or has failed."""
        for job in [job for job in self.active if job.process.exit_code() is not None]:
            self.active.remove(job)
            code, following = job.process.exit_code(), next_command(self._folder, self._plan, job.cell)
            if code:
                self._fail(job.cell, job.process.last_line(), f"failed with exit code {code}: ")
            elif following is None:
                self._say_score(job.cell)
            elif following != job.command:
                self.waiting.appendleft(job.cell)
            else:
                self._fail(job.cell, _why_not_forward(self._folder, job))

    def stop(self) -> None:
        """Let the active cells save a checkpoint and stop."""
        for job in self.active:
            job.process.ask_to_stop()
        end_all(job.process for job in self.active)

    def _fail(self, cell: Cell, reason: str, how: str = "") -> None:
        self.failed[cell] = reason
        self._say(f"{cell.name}: {how}{reason}")

    def _say_score(self, cell: Cell) -> None:
        result = score_of(self._folder, self._plan, cell)
        shown = "no episode has ended" if result is None else f"score {result['score']:.2f}"
        self._say(f"{cell.name}: {shown}")


def run_cells(folder: Path, plan: Plan, *, at_once: int, say: Callable[[str], None]) -> dict[Cell, str]:
    """Bring all cells to their end, ``at_once`` at a time; return the last line of every cell that failed.

    A first signal of ``stop_signals`` lets the cells save a checkpoint and stop; then KeyboardInterrupt.
    """
    progress = _Progress(folder, plan, say)
    with StopRequest(None) as stop:
        try:
            while progress.waiting or progress.active:
                if stop.requested():
                    raise KeyboardInterrupt
                while progress.waiting and len(progress.active) < at_once:
                    progress.start_next(stop.requested)
                time.sleep(POLL_SECONDS)
                progress.settle()
        finally:
            progress.stop()
    return progress.failed


def _why_not_forward(folder: Path, job: _Active) -> str:
    """Return why a process without an error has left its cell where it was."""
    if job.command[0] == "eval":
        result = run_of(folder, job.cell) / "result.json"
        return (
            "its newest checkpoint is damaged, and the score would be that of an earlier policy; delete "
            f"{result}, and the same command trains the end again"
        )
    return "it was stopped before its end; the same command continues it"
