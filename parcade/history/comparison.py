"""Runs next to each other: groups that differ only by their seed, what each reaches, and when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from parcade.errors import UsageError, unknown_name
from parcade.files.reading import read_object
from parcade.history.bands import half_width
from parcade.history.evaluations import is_evaluation
from parcade.history.runs import Runs, compared_settings
from parcade.history.series import Columns
from parcade.report.metrics import check_axis

MOST_SETTINGS = 4
"""Groups that differ in more settings than this are named by their first run."""


@dataclass(frozen=True)
class Question:
    """What is compared. Errors: UsageError for an unknown axis."""

    metric: str = "score_mean"
    x: str = "frames"
    at: float | None = None
    """Where the metric is compared on the x axis; None compares at the end of each run."""
    target: float | None = None
    """Value whose first report is looked for."""

    def __post_init__(self) -> None:
        check_axis(self.x)


@dataclass(frozen=True)
class Run:
    """A run as its directory describes it."""

    name: str
    game: str
    algorithm: str
    seed: int | None
    status: str
    group: str
    """What runs share that differ only by their seed and where they end."""
    settings: dict[str, Any]
    columns: Columns
    evaluations: Columns

    def columns_with(self, metric: str) -> Columns:
        """Return the reports of the training, or the evaluations if the metric is one of them."""
        return self.evaluations if is_evaluation(metric) else self.columns

    @property
    def metrics(self) -> set[str]:
        """Names of all its metrics."""
        return {*self.columns.names, *filter(is_evaluation, self.evaluations.names)}


class Outcome:
    """The answer of one run: its curve ``x``, ``y`` ``[k]``, and numbers, NaN where it has none."""

    def __init__(self, run: Run, question: Question) -> None:
        self.run = run
        columns = run.columns_with(question.metric)
        x, y = columns[question.x], columns[question.metric]
        has_both = ~(np.isnan(x) | np.isnan(y))
        self.x, self.y = x[has_both], y[has_both]
        self.value = self._value_at(question.at)
        reached = self.x[self.y >= (math.inf if question.target is None else question.target)]
        self.reached_at = float(reached[0]) if len(reached) else math.nan
        self.frames, self.wall_seconds, self.cpu_seconds = (
            _last(run.columns[name]) for name in ("frames", "wall_seconds", "cpu_seconds")
        )

    @property
    def frames_per_second(self) -> float:
        """Frames divided by the wall clock of the run; NaN before its first report."""
        return self.frames / self.wall_seconds if self.wall_seconds > 0 else math.nan

    def _value_at(self, at: float | None) -> float:
        if at is None:
            return _last(self.y)
        is_within = len(self.x) > 0 and self.x[0] <= at <= self.x[-1]
        return float(np.interp(at, self.x, self.y)) if is_within else math.nan


@dataclass(frozen=True)
class Group:
    """Runs of one game that differ only by their seed and where they end."""

    game: str
    label: str
    outcomes: list[Outcome]

    @cached_property
    def values(self) -> np.ndarray:
        """Values of the runs that have one, ``[runs]``."""
        values = np.array([outcome.value for outcome in self.outcomes])
        return values[~np.isnan(values)]

    @property
    def mean(self) -> float:
        """Mean of the values; NaN without any."""
        return float(self.values.mean()) if len(self.values) else math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % confidence interval of the mean, from two runs on (Student's t)."""
        if len(self.values) < 2:
            return None
        half = float(half_width(self.values))
        return self.mean - half, self.mean + half

    @property
    def repeated_seeds(self) -> list[int]:
        """Seeds of several runs, which may be the same run again."""
        seeds = [outcome.run.seed for outcome in self.outcomes if outcome.run.seed is not None]
        return sorted({seed for seed in seeds if seeds.count(seed) > 1})

    @property
    def reached_at(self) -> np.ndarray:
        """Where the runs that reached the target did so, ``[runs]``."""
        return np.array([o.reached_at for o in self.outcomes if not math.isnan(o.reached_at)])


def _last(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known[-1]) if len(known) else math.nan


def find_runs(folders: Sequence[Path]) -> list[Run]:
    """Return the runs in these directories, each the directory of a run or of several. No run comes twice.

    Errors: UsageError for a directory that is missing, holds no run, or more than are listed.
    """
    found: dict[Path, Run] = {}
    for folder in folders:
        runs = Runs(folder)
        summaries = runs.scan()
        if not summaries:
            raise UsageError(f"{folder} holds no runs; expected the directory of a run, or of your runs")
        if runs.not_shown:
            count = len(summaries) + runs.not_shown
            raise UsageError(
                f"{folder} holds {count:,} runs, more than {len(summaries):,}; name some of them"
            )
        for summary in sorted(summaries, key=lambda summary: summary["id"]):
            path = runs.path(summary["id"])
            name = str(folder) if path == folder.resolve() else str(folder / summary["id"])
            if path not in found:
                found[path] = _run(name, path, summary, runs)
    return list(found.values())


def _run(name: str, path: Path, summary: dict[str, Any], runs: Runs) -> Run:
    settings = compared_settings(read_object(path / "config.json"))
    # A directory without settings is nobody's other seed.
    group = summary["group"] if summary["algorithm"] else name
    seed = None if summary["seed"] is None else int(summary["seed"])
    return Run(
        name,
        summary["game"],
        summary["algorithm"],
        seed,
        summary["status"],
        group,
        settings,
        runs.metrics(summary["id"]).read_new(),
        runs.evaluations(summary["id"]).read_new(),
    )


def compare(runs: Sequence[Run], question: Question) -> list[Group]:
    """Return the groups, by game and falling mean. Errors: UsageError for a metric that no run has."""
    known = sorted({name for run in runs for name in run.metrics})
    if not known:
        raise UsageError("none of these runs has a report yet; wait for the first ones")
    if question.metric not in known:
        raise unknown_name("metric", question.metric, known)
    members: dict[str, list[Run]] = {}
    for run in runs:
        members.setdefault(run.group, []).append(run)
    labels = _labels([of_group[0] for of_group in members.values()])
    groups = [
        Group(of_group[0].game, labels[group], [Outcome(run, question) for run in of_group])
        for group, of_group in members.items()
    ]
    return sorted(groups, key=lambda group: (group.game, -np.nan_to_num(group.mean, nan=-math.inf)))


def _labels(firsts: Sequence[Run]) -> dict[str, str]:
    """Name each group, given its first run: the algorithm, and the settings that tell its groups apart."""
    labels: dict[str, str] = {}
    for kind in dict.fromkeys((run.game, run.algorithm) for run in firsts):
        alike = [run for run in firsts if (run.game, run.algorithm) == kind]
        first, *others = [run.settings for run in alike]
        # A setting that an older version did not know yet tells nothing apart.
        shared = [name for name in first if all(name in other for other in others)]
        differing = [name for name in shared if any(other[name] != first[name] for other in others)]
        for run in alike:
            words = [f"{name.rpartition('.')[2]}={run.settings[name]}" for name in differing]
            labels[run.group] = " ".join([run.algorithm, *words])
        names = [labels[run.group] for run in alike]
        is_known = bool(alike[0].algorithm)
        if not is_known or len(differing) > MOST_SETTINGS or len(set(names)) < len(names):
            labels |= {run.group: f"{run.algorithm} as {run.name}".strip() for run in alike}
    return labels
