"""The trials of a sweep: one JSON file each, next to the run directories that they trained.

The files are the sweep's only state. A search and a scheduler are rebuilt from them.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from parcade.errors import UsageError, remedy
from parcade.files.reading import fits
from parcade.files.run_directory import read_json, read_result, write_json
from parcade.sweep.objective import CHECKS, Objective
from parcade.sweep.space import Space, Value

State = Literal["started", "finished", "stopped", "failed"]
Stage = Literal["trials", "confirmations"]
"""Names of the two directories: the search, and the trainings of its best settings with other seeds."""


@dataclass
class Trial:
    """One point of the space. ``values`` holds the objective at each check that was reached, the mean over
    the seeds, None before the first episode has ended.

    ``started``: to be continued; ``finished``: to the end of its budget; ``stopped``: by the scheduler;
    ``failed``: with the ``reason``.
    """

    number: int
    settings: dict[str, Value]
    seeds: tuple[int, ...]
    state: State = "started"
    values: list[float | None] = field(default_factory=list)
    reason: str = ""

    @property
    def value(self) -> float | None:
        """The newest value of the objective."""
        return self.values[-1] if self.values else None

    @property
    def share(self) -> float:
        """How much of its budget the trial has used, from 0 to 1."""
        return len(self.values) / CHECKS

    @property
    def is_over(self) -> bool:
        """Whether a continued sweep leaves the trial as it is. One that failed is tried again."""
        return self.state in ("finished", "stopped")


def read_trials(folder: Path, stage: Stage, space: Space | None = None) -> list[Trial]:
    """Return the trials of a sweep by number, confirmations of one also by seed.

    Each must have a value of every axis of the ``space``. Errors: UsageError for a damaged file.
    """
    paths = sorted((folder / stage).glob("*.json"))  # so that of damaged files, the same one is always named
    return sorted((_trial_of(path, space) for path in paths), key=lambda each: (each.number, each.seeds))


def _trial_of(path: Path, space: Space | None) -> Trial:
    data = read_json(path, advice="delete it to train this trial again")
    try:
        trial = Trial(**data)
        valid = fits(trial.number, int) and isinstance(trial.settings, dict)
        valid = valid and fits(trial.seeds, list[int]) and len(trial.seeds) > 0
        valid = valid and fits(trial.values, list[float | None]) and len(trial.values) <= CHECKS
        valid = valid and trial.state in get_args(State) and isinstance(trial.reason, str)
        if space is not None:
            valid = valid and trial.settings.keys() == space.keys()
            valid = valid and all(axis.has(trial.settings[name]) for name, axis in space.items())
        trial.seeds = tuple(trial.seeds)
    except TypeError:
        valid = False
    if not valid:
        raise UsageError(f"{path} is no trial of parcade sweep; delete it to train this trial again")
    return trial


def write_trial(folder: Path, stage: Stage, trial: Trial) -> None:
    """Write the file of a trial. A confirmation has one seed, and one file per seed.

    Errors: UsageError when it cannot be written.
    """
    name = f"{trial.number:04}" + (f"-s{trial.seeds[0]}" if stage == "confirmations" else "")
    path = folder / stage / f"{name}.json"
    try:
        write_json(path, dataclasses.asdict(trial))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror or error}); {remedy(error)}, then continue the "
            "sweep with the same command"
        ) from None


def run_of(folder: Path, trial: Trial, seed: int) -> Path:
    """Return the run directory of a trial's training."""
    return folder / "runs" / f"t{trial.number:04}-s{seed}"


def results_of(folder: Path, trial: Trial) -> list[dict[str, Any]]:
    """Return ``result.json`` of all seeds of a trial that have one."""
    runs = [run_of(folder, trial, seed) for seed in trial.seeds]
    return [read_result(run) for run in runs if (run / "result.json").exists()]


def measured(folder: Path, trial: Trial) -> dict[str, float | None]:
    """Return score, CPU seconds and wall-clock seconds of a trial: means over its seeds."""
    results = results_of(folder, trial)
    row: dict[str, float | None] = {}
    for name in ("score_mean", "cpu_seconds", "wall_seconds"):
        known = [result[name] for result in results if result[name] is not None]
        row[name] = statistics.fmean(known) if known and len(known) == len(trial.seeds) else None
    return row


def efficient_trials(folder: Path, trials: list[Trial]) -> set[int]:
    """Return the numbers of the finished trials that no trial beats in both score and CPU seconds."""
    rows = [(each.number, measured(folder, each)) for each in trials if each.state == "finished"]
    known = [(row["cpu_seconds"], -row["score_mean"], n) for n, row in rows if None not in row.values()]
    found, best = set(), math.inf
    for _, lost, number in sorted(known):
        if lost < best:
            found.add(number)
            best = lost
    return found


def best_first(trials: list[Trial], objective: Objective) -> list[Trial]:
    """Sort trials: the finished ones by their value, then by how far they got, and the failed ones last."""
    sign = -1.0 if objective.mode == "max" else 1.0

    def key(trial: Trial) -> tuple[int, float, float, int]:
        rank = ("finished", "stopped", "started", "failed").index(trial.state)
        return (rank, -trial.share, sign * (trial.value or 0.0), trial.number)

    return sorted(trials, key=key)
