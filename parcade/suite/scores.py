"""Scores of a suite as a table, from its runs or from a CSV file of other people's."""

from __future__ import annotations

import csv
import itertools
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parcade.envs.games import canonical_game, module_of
from parcade.errors import UsageError
from parcade.suite.games import human_normalized
from parcade.suite.jobs import score_of
from parcade.suite.plan import Cell, Plan

COLUMNS = (
    "game", "seed", "score", "human_normalized", "frames", "wall_seconds", "cpu_seconds", "algorithm",
    "protocol", "commit",
)  # fmt: skip


@dataclass
class Scores:
    """Scores by game, in the order of the seeds. ``name`` is the label in tables."""

    name: str
    protocol: str
    by_game: dict[str, list[float]] = field(default_factory=dict)

    def normalized(self, games: list[str]) -> np.ndarray | None:
        """Return human-normalised scores ``[runs, games]``, None if a game has no published scores.

        The column of a game with fewer runs than others ends with NaN.
        """
        columns = [[human_normalized(game, score) for score in self.by_game[game]] for game in games]
        if not columns or any(value is None for column in columns for value in column):
            return None
        return np.array(list(itertools.zip_longest(*columns, fillvalue=np.nan)), float)


def results_of(folder: Path, plan: Plan) -> dict[Cell, dict[str, Any]]:
    """Return the results of all finished cells."""
    found = {cell: score_of(folder, plan, cell) for cell in plan.cells}
    return {cell: result for cell, result in found.items() if result is not None}


def scores_of(plan: Plan, results: dict[Cell, dict[str, Any]]) -> Scores:
    """Return the scores of a suite's results."""
    scores = Scores(plan.algorithm, plan.protocol)
    for cell, result in results.items():
        scores.by_game.setdefault(cell.game, []).append(result["score"])
    return scores


def write_csv(path: Path, plan: Plan, results: dict[Cell, dict[str, Any]]) -> None:
    """Write one row per finished cell."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for cell, result in results.items():
            normalized = human_normalized(cell.game, result["score"])
            row = {
                **result,
                "game": cell.game,
                "seed": cell.seed,
                "human_normalized": "" if normalized is None else round(normalized, 6),
                "protocol": plan.protocol,
            }
            writer.writerow([row[name] for name in COLUMNS])


def read_others(paths: list[str], protocol: str, own: str) -> list[Scores]:
    """Read the CSV files of ``--against``. Files of one name are told apart by their paths, and so is one
    with the name ``own`` of the suite's scores.

    Errors: UsageError, as of ``read_csv``.
    """
    names = [Path(path).stem for path in paths]
    labels = [
        name
        if [own, *names].count(name) == 1
        else os.path.join(os.path.dirname(path) or ".", Path(path).name)
        for path, name in zip(paths, names, strict=True)
    ]
    return [read_csv(Path(path), protocol, label) for path, label in zip(paths, labels, strict=True)]


def read_csv(path: Path, protocol: str, name: str) -> Scores:
    """Read scores from a CSV file with the columns ``game``, ``score`` and ``protocol``, one row per run.

    ``name`` is their label in tables.
    Errors: UsageError for an unreadable file, a missing column, an unknown game, a score that is no number,
    a row with a seed that repeats another one, or another protocol than ``protocol``.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:  # Excel writes a mark at the start
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--against {path} cannot be read ({reason}); expected a CSV file") from None
    scores = Scores(name, protocol)
    lines: dict[tuple[str, ...], int] = {}  # of the runs with a seed, by everything that a row says
    for number, row in rows:
        missing = [name for name in ("game", "score", "protocol") if not row.get(name)]
        if missing:
            raise UsageError(
                f"{path}, line {number} lacks {missing[0]}; expected columns game, score, protocol"
            )
        if row["protocol"] != protocol:
            raise UsageError(
                f"{path}, line {number} has protocol {row['protocol']!r}, this suite {protocol!r}; "
                "scores of different protocols cannot be compared"
            )
        try:
            score = math.nan if "_" in row["score"] else float(row["score"])  # float reads 1_0 as 10
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise UsageError(f"{path}, line {number}: score {row['score']!r} is not a number")
        try:
            game = _game_of(row["game"])
        except UsageError as error:
            raise UsageError(f"{path}, line {number}: {error}") from None
        if row.get("seed"):
            run = (game, *(str(value) for name, value in row.items() if name != "game"))
            if run in lines:
                raise UsageError(
                    f"{path}, line {number} repeats line {lines[run]}; expected one row per run, remove one"
                )
            lines[run] = number
        scores.by_game.setdefault(game, []).append(score)
    if not rows:
        raise UsageError(f"{path} has no rows; expected columns game, score, protocol and one row per run")
    return scores


def _game_of(name: str) -> str:
    """Return a canonical name. ``MODULE:ID`` stays as it is: importing the module would run its code."""
    return canonical_game(name) if module_of(name) in ("", "parcade", "ale_py") else name
