"""``parcade compare``: trainings next to each other, averaged over their seeds."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from parcade.commands.reports import check_installed, report_folder, report_in
from parcade.errors import UsageError

if TYPE_CHECKING:
    from parcade.history.comparison import Group, Question


@dataclass(frozen=True)
class CompareFlags:
    """Compare trainings, finished or running. Runs that differ only by their seed form a group.

    Prints a table of the groups; with --out, also writes a report with mean curves.
    """

    runs: Annotated[tuple[str, ...], "positional"] = ("runs",)
    """Directories of runs, each of one or of several."""
    metric: str = "score_mean"
    """The metric that is compared, as in metrics.jsonl."""
    x: str = "frames"
    """The axis: frames, wall_seconds, cpu_seconds, iterations, updates or episodes."""
    at: int | None = None
    """Compare at this point of the axis, e.g. 4M; by default at the end of each run."""
    target: float | None = None
    """Also report how many runs reach this value, and where on the axis."""
    out: str = ""
    """Directory for report.md, report.html, curves.png and curves.csv; empty only prints."""
    json: bool = False
    """Print the comparison as JSON."""

    def __post_init__(self) -> None:
        if self.at is not None and self.at < 1:
            raise UsageError(f"at={self.at} is below 1; use a point of the axis, e.g. 4M")
        if self.target is not None and not math.isfinite(self.target):
            raise UsageError(f"target={self.target:g} is not finite; use a value of the metric, e.g. 18")


def compare(arguments: list[str]) -> int:
    """``parcade compare``."""
    from parcade.flags import parse

    flags = parse(CompareFlags, arguments, prog="parcade compare")
    if flags.out:
        check_installed(("matplotlib",), "plots", "parcade compare --out")
    from parcade.history import comparison
    from parcade.history.comparison_page import comparison_page, to_json
    from parcade.report.page import to_text

    question = comparison.Question(flags.metric, flags.x, flags.at, flags.target)
    groups = comparison.compare(comparison.find_runs([Path(each) for each in flags.runs]), question)
    folder = _write_report(flags.out, groups, question) if flags.out else None
    if flags.json:
        print(json.dumps(to_json(groups, question)))
        return 0
    print(to_text(comparison_page(groups, question)))
    if folder:
        print(f"report in {folder}")
    return 0


def _write_report(out: str, groups: list[Group], question: Question) -> Path:
    """Write a report into a directory and return it. Errors: UsageError if it cannot be written."""
    from parcade.history.comparison_curves import CURVES, draw_curves, write_curves
    from parcade.history.comparison_page import comparison_page
    from parcade.report.page import write_page

    folder = report_folder(out, "comparisons")
    with report_in(folder, "the runs are as they were"):
        draw_curves(groups, question, folder / CURVES)
        write_curves(groups, question, folder / "curves.csv")
        write_page(comparison_page(groups, question, [CURVES]), folder)
    return folder
