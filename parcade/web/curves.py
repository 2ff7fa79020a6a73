"""Curves for the page: metrics of runs over frames, wall clock or CPU time, decimated; bands; CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np

from parcade.errors import UsageError
from parcade.history.bands import band
from parcade.history.cells import number_cell, text_cell
from parcade.history.evaluations import is_evaluation
from parcade.history.runs import Runs
from parcade.history.series import Columns, Curve, MetricsFile, decimated, sampled_reports
from parcade.report.metrics import check_axis

MOST_CURVES = 400
MOST_POINTS = 2000
SAMPLED_POINTS = 160
MOST_NEW_BYTES = 8 << 20
"""A request reads at most about this much of unread files; for the rest it takes samples."""


class Curves:
    """Curves of the runs of a directory."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs

    def of(self, names: list[str], metrics: list[str], x: str, points: int) -> dict[str, Any]:
        """Return decimated curves by run and metric, and whether all are complete.

        Long files that were never read are sampled, so that many runs show at once; ``read_ahead`` completes
        them. Errors: UsageError for an unknown axis or too many curves; UnknownRun.
        """
        check_axis(x)
        points = max(2, min(points, MOST_POINTS))
        if len(names) * len(metrics) > MOST_CURVES:
            raise UsageError(
                f"{len(names)} runs of {len(metrics)} metrics are over {MOST_CURVES} curves; choose fewer"
            )
        budget, complete = MOST_NEW_BYTES, True
        curves: dict[str, dict[str, Any]] = {}
        for name in names:
            curves[name] = {}
            for file, of_file in self._files_of(name, metrics):
                unread = file.unread_bytes
                if unread <= budget:
                    budget -= unread
                    columns = file.read_new({x, *of_file})
                else:
                    columns, complete = Columns(sampled_reports(file.path, SAMPLED_POINTS)), False
                axis = columns[x]
                curves[name] |= {each: decimated(axis, columns[each], points).to_json() for each in of_file}
        return {"curves": curves, "complete": complete}

    def _files_of(self, name: str, metrics: list[str]) -> list[tuple[MetricsFile, list[str]]]:
        """Return the files of a run that hold these metrics, each with those that it holds."""
        found: dict[MetricsFile, list[str]] = {}
        for metric in metrics:
            found.setdefault(self.runs.file_of(name, metric), []).append(metric)
        return list(found.items())

    def read_ahead(self, names: list[str]) -> None:
        """Read the files of these runs completely. Errors: UnknownRun."""
        for name in names:
            self.runs.metrics(name).read_new(())
            self.runs.evaluations(name).read_new(())

    def bands(self, groups: dict[str, list[str]], metric: str, x: str) -> dict[str, Any]:
        """Return the band of each group of runs, by the group's name. Errors: UsageError; UnknownRun."""
        check_axis(x)
        found = {}
        for group, names in groups.items():
            series = []
            for name in names:
                columns = self.runs.file_of(name, metric).read_new({x, metric})
                axis, values = columns[x], columns[metric]
                valid = ~(np.isnan(axis) | np.isnan(values))
                series.append((axis[valid], values[valid]))
            if (made := band(series)) is not None:
                found[group] = {
                    **Curve(*made).to_json(),
                    "runs": sum(len(points) > 0 for points, _ in series),
                }
        return found

    def csv(self, names: list[str], metrics: list[str], x: str) -> str:
        """Return all points of some runs as CSV, one row per report or evaluation.

        Errors: UsageError; UnknownRun.
        """
        check_axis(x)
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["run", x, *map(text_cell, metrics)])
        for name in names:
            for file, of_file in self._files_of(name, metrics):
                columns = file.read_new({x, *of_file})
                values = np.stack([columns[metric] for metric in (x, *metrics)], 1)
                if is_evaluation(of_file[0]):  # whose file also holds those of other rules
                    values = values[~np.isnan(values[:, 1:]).all(1)]
                for row in values.tolist():
                    writer.writerow([text_cell(name), *map(number_cell, row)])
        return text.getvalue()

    def metrics(self, names: list[str]) -> list[str]:
        """Return the names of all metrics that some of these runs have. Errors: UnknownRun."""
        found: dict[str, None] = {}
        for name in names:
            file = self.runs.metrics(name)
            small = file.unread_bytes <= MOST_NEW_BYTES
            columns = file.read_new() if small else Columns(sampled_reports(file.path, 4))
            found |= dict.fromkeys(columns.names)
            found |= dict.fromkeys(filter(is_evaluation, self.runs.evaluations(name).read_new().names))
        return sorted(found)
