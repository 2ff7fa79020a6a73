"""A comparison as a page and as a JSON object."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parcade.history.comparison import Group, Outcome, Question
from parcade.report.metrics import METRICS
from parcade.report.page import Block, Heading, Image, Page, Text, table_of
from parcade.report.terminal import clock, human

SAME_END = 0.05
"""Ends that differ by less than this fraction count as one."""


def comparison_page(groups: Sequence[Group], question: Question, images: Sequence[str] = ()) -> Page:
    """Return the page: a table of groups for each game, then every run."""
    at = "at the end" if question.at is None else f"at {_shown_x(question.at, question.x)}"
    meaning = METRICS.get(question.metric, "")
    note = (
        "Runs of a group differ only by their seed and where they end. Intervals: 95 % of the mean over "
        "runs, Student's t. Frames, frames/s and CPU-min are medians."
    )
    blocks: list[Block] = [Text(f"{question.metric}: {meaning}. {note}" if meaning else note)]
    for game in dict.fromkeys(group.game for group in groups):
        of_game = [group for group in groups if group.game == game]
        blocks += [Heading(game or "no game"), table_of(of_game, _group_columns(question))]
        blocks += [Text(line) for line in [*_ends(of_game, question), *_repeated(of_game)]]
    blocks += [Image(name, "mean curves, with intervals from two runs on") for name in images]
    blocks += [Heading("Runs"), table_of(_rows(groups), _run_columns(question))]
    return Page(f"{question.metric} {at}", tuple(blocks))


def _group_columns(question: Question) -> dict[str, Callable[[Group], str]]:
    columns: dict[str, Callable[[Group], str]] = {
        "settings": lambda group: group.label,
        "runs": lambda group: _of(len(group.values), len(group.outcomes)),
        question.metric: lambda group: _shown(group.mean),
        "95 % interval": lambda group: " to ".join(map(_shown, group.interval or ())),
        "lowest": lambda group: _shown(min(group.values, default=math.nan)),
        "highest": lambda group: _shown(max(group.values, default=math.nan)),
        "frames": lambda group: _median(group, lambda outcome: outcome.frames),
        "frames/s": lambda group: _median(group, lambda outcome: outcome.frames_per_second),
        "CPU-min": lambda group: _median(group, lambda outcome: outcome.cpu_seconds / 60),
    }
    if question.target is not None:
        target, axis = f"{question.target:g}", question.x.replace("_", " ")
        columns[f"reached {target}"] = lambda group: _of(len(group.reached_at), len(group.outcomes))
        columns[f"{axis} to {target}, median"] = lambda group: _reached(group, question.x)
    return columns


def _run_columns(question: Question) -> dict[str, Callable[[tuple[Group, Outcome]], str]]:
    return {
        "run": lambda row: row[1].run.name,
        "settings": lambda row: row[0].label,
        "seed": lambda row: "" if row[1].run.seed is None else str(row[1].run.seed),
        "status": lambda row: row[1].run.status,
        "frames": lambda row: _count(row[1].frames),
        question.metric: lambda row: _shown(row[1].value),
    }


def _rows(groups: Sequence[Group]) -> list[tuple[Group, Outcome]]:
    return [(group, outcome) for group in groups for outcome in group.outcomes]


def _ends(groups: Sequence[Group], question: Question) -> list[str]:
    """Say if values are of different lengths of training, or some runs have none."""
    outcomes = [outcome for _, outcome in _rows(groups)]
    if question.at is not None:
        without = [outcome.run.name for outcome in outcomes if math.isnan(outcome.value)]
        return [f"Without a value there, and left out: {', '.join(without)}."] if without else []
    ends = [float(outcome.x[-1]) for outcome in outcomes if len(outcome.x)]
    if not ends or min(ends) >= (1 - SAME_END) * max(ends):
        return []
    axis = question.x.replace("_", " ")
    first, last = (_shown_x(end, question.x) for end in (min(ends), max(ends)))
    return [
        f"These runs end between {first} and {last} ({axis}); "
        f"--at {max(1, math.floor(min(ends)))} compares them where all have arrived."
    ]


def _repeated(groups: Sequence[Group]) -> list[str]:
    """Say where an interval counts runs of the same seed as independent ones."""
    return [
        f"{group.label}: several runs have the seed {', '.join(map(str, group.repeated_seeds))}; "
        "the interval counts each as a run of its own."
        for group in groups
        if group.repeated_seeds
    ]


def _median(group: Group, number: Callable[[Outcome], float]) -> str:
    known = [value for outcome in group.outcomes if not math.isnan(value := number(outcome))]
    return _count(float(np.median(known)) if known else math.nan)


def _count(value: float) -> str:
    return "" if math.isnan(value) else human(value)


def _reached(group: Group, x: str) -> str:
    reached = group.reached_at
    if not len(reached):
        return ""
    shown = _shown_x(float(np.median(reached)), x)
    lowest, highest = (_shown_x(float(each), x) for each in (reached.min(), reached.max()))
    return shown if lowest == highest else f"{shown} ({lowest} to {highest})"


def _of(some: int, every: int) -> str:
    return str(every) if some == every else f"{some} of {every}"


def _shown(value: float) -> str:
    """Return a value with at least three digits, and at most three decimals unless it is very small."""
    size = abs(value)
    if math.isnan(value):
        return ""
    if 0 < size < 0.01:
        return f"{value:.3g}"
    return f"{value:,.{3 if 0 < size < 1 else 2 if size < 100 else 1}f}"


def _shown_x(value: float, x: str) -> str:
    return clock(value) if x.endswith("seconds") else human(value)


def to_json(groups: Sequence[Group], question: Question) -> dict[str, Any]:
    """Return the comparison as an object; numbers that are unknown are None."""
    return {
        "metric": question.metric,
        "x": question.x,
        "at": question.at,
        "target": question.target,
        "groups": [
            {
                "game": group.game,
                "settings": group.label,
                "mean": _or_none(group.mean),
                "interval": group.interval,
                "runs": [_run_to_json(outcome) for outcome in group.outcomes],
            }
            for group in groups
        ],
    }


def _run_to_json(outcome: Outcome) -> dict[str, Any]:
    run = outcome.run
    numbers = ("value", "reached_at", "frames", "wall_seconds", "cpu_seconds")
    return {
        "run": run.name,
        "algorithm": run.algorithm,
        "seed": run.seed,
        "status": run.status,
        **{name: _or_none(getattr(outcome, name)) for name in numbers},
    }


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
