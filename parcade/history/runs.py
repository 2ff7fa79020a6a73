"""The runs below a directory: their names, and a summary of each from its own files."""

from __future__ import annotations

import hashlib
import heapq
import json
import math
import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parcade.cluster.processes import DIRECTORY, ProcessRecord, read_records
from parcade.durations import parse_duration
from parcade.errors import UsageError
from parcade.files.reading import read_object
from parcade.history import evaluations
from parcade.history.series import MetricsFile, last_reports, number
from parcade.history.status import Heartbeats, run_status

DEEPEST = 3
MOST_RUNS = 2000
MOST_OPEN_FILES = 200
"""Files of metrics and of evaluations whose columns are kept in memory."""
NOT_COMPARED = {"seed", "run_dir", "total_frames", "time_limit", "target_score", "report_seconds",
                "checkpoint_seconds", "keep_checkpoints", "keep_policy_frames", "hang_timeout"}  # fmt: skip
"""Settings of ``run`` that runs of one group may differ in: a group differs by its seed."""


class UnknownRun(Exception):
    """A name that is not in the list of runs."""


@dataclass
class _Known:
    """Signature of a run's files when it was last summarised, and the summary."""

    signature: tuple
    summary: dict[str, Any]


class Runs:
    """The runs below ``root``, found by their ``config.json`` or ``metrics.jsonl``.

    A run is named by its path relative to ``root``. Names come only from listing directories, and a request
    for any other name fails, so no request can leave ``root``. Threads may use it at once.
    Errors: UsageError if ``root`` is no directory.
    """

    def __init__(self, root: Path) -> None:
        if not os.path.isdir(root):  # False also for a name that is too long
            raise UsageError(
                f"{root} is not a directory; expected the directory of a run, or of your runs, e.g. runs"
            )
        root = root.resolve()
        self._only: str | None = None
        if _is_run(root):
            root, self._only = root.parent, root.name
        self.root = root
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._known: dict[str, _Known] = {}
        self.not_shown = 0
        """Number of runs of the last ``scan`` beyond ``MOST_RUNS``."""
        self._heartbeats = Heartbeats()
        self._files: OrderedDict[Path, MetricsFile] = OrderedDict()

    def path(self, name: str) -> Path:
        """Return the directory of a listed run. Errors: UnknownRun."""
        if name not in self._names:
            raise UnknownRun(name)
        return self.root / name

    def metrics(self, name: str) -> MetricsFile:
        """Return the metrics of a listed run. Errors: UnknownRun."""
        return self._open(self.path(name) / "metrics.jsonl")

    def evaluations(self, name: str) -> MetricsFile:
        """Return the evaluations of a listed run's kept policies. Errors: UnknownRun."""
        path = self.path(name) / evaluations.FILE
        return self._open(path, grows=False, most_line_bytes=evaluations.MOST_LINE_BYTES)

    def file_of(self, name: str, metric: str) -> MetricsFile:
        """Return the file that holds a metric of a listed run. Errors: UnknownRun."""
        return self.evaluations(name) if evaluations.is_evaluation(metric) else self.metrics(name)

    def _open(self, path: Path, **kind: Any) -> MetricsFile:
        with self._lock:
            file = self._files.pop(path, None) or MetricsFile(path, **kind)
            self._files[path] = file
            if len(self._files) > MOST_OPEN_FILES:
                self._files.popitem(last=False)
        return file

    def scan(self) -> list[dict[str, Any]]:
        """List the directory and return the summaries of its runs, newest first.

        At most ``MOST_RUNS``: those that were changed last.
        """
        names = [self._only] if self._only else _find(self.root)
        listed = self._newest(names) if len(names) > MOST_RUNS else names
        self.not_shown = len(names) - len(listed)
        self._names = set(listed)
        summaries = [self._summary(name) for name in listed]
        with self._lock:
            for gone in self._known.keys() - self._names:
                del self._known[gone]
        return sorted(summaries, key=lambda summary: (-summary["started"], summary["id"]))

    def status(self, name: str) -> tuple[str, str]:
        """Return the status of a listed run and one line that says why, read at this moment."""
        summary = self._summary(name)
        return summary["status"], summary["reason"]

    def _newest(self, names: list[str]) -> list[str]:
        """Return the ``MOST_RUNS`` runs whose reports or settings were written last."""

        def written(name: str) -> float:
            run = self.root / name
            return max(_modified(run / file) or 0.0 for file in ("config.json", "metrics.jsonl"))

        return heapq.nlargest(MOST_RUNS, names, key=written)

    def _summary(self, name: str) -> dict[str, Any]:
        """Return a run's summary; read its files only if one of them has changed or it may have died."""
        run = self.root / name
        ages = {file: _modified(run / file) for file in ("config.json", "metrics.jsonl", "result.json")}
        records = read_records(run)
        beats = _record_times(run, records)
        signature = (tuple(ages.values()), tuple((record.name, record.ended) for record in records))
        known = self._known.get(name)
        if known is None or known.signature != signature:
            known = _Known(signature, _facts(run, name, ages))
            with self._lock:
                self._known[name] = known
        now = time.time()
        alive = [
            self._heartbeats.is_alive(name, record, now - beats.get(record.name, 0.0)) for record in records
        ]
        facts = known.summary
        found = run_status(
            records,
            alive,
            facts["result"],
            has_reports=facts["frames"] is not None,
            report_age_seconds=now - (ages["metrics.jsonl"] or now),
            report_seconds=facts["report_seconds"],
        )
        summary = {key: value for key, value in facts.items() if key != "result"}
        if found.status != "running":
            summary["eta_seconds"] = None
        return {**summary, "status": found.status, "reason": found.reason}


def _is_run(path: Path) -> bool:
    # os.path answers False where Path.is_file raises, e.g. below a directory of another user.
    return os.path.isfile(path / "config.json") or os.path.isfile(path / "metrics.jsonl")


def _find(root: Path) -> list[str]:
    """Return the names of the runs below ``root``; a run holds no other runs."""
    found: list[str] = []
    level = [root]
    for _ in range(DEEPEST):
        below: list[Path] = []
        for folder in level:
            for path in _folders(folder):
                (found.append(path.relative_to(root).as_posix()) if _is_run(path) else below.append(path))
        level = below
    return found


def _folders(folder: Path) -> list[Path]:
    """Return the directories in a directory; entries that cannot be read are left out one by one."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    named = (name for name in names if not name.startswith(".") and _is_text(name))
    return [folder / name for name in named if os.path.isdir(folder / name)]  # False for a link to itself


def _is_text(name: str) -> bool:
    """Return whether a file name is valid UTF-8, so that it can be sent."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _modified(path: Path) -> float | None:
    """Return when a file was last changed, or None if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _record_times(run: Path, records: list[ProcessRecord]) -> dict[str, float]:
    """Return when each record was written."""
    folder = run / DIRECTORY
    return {r.name: _modified(folder / f"{r.role}-{r.number}.json") or 0.0 for r in records}


def _facts(run: Path, name: str, ages: dict[str, float | None]) -> dict[str, Any]:
    """Return what a run's files say about it. Values from the files are checked for their types."""
    config, result = read_object(run / "config.json"), read_object(run / "result.json")
    settings = config.get("run") if isinstance(config.get("run"), dict) else {}
    reports = last_reports(run / "metrics.jsonl")
    last = reports[-1] if reports else {}
    total = _number(settings.get("total_frames"))
    return {
        "id": name,
        "game": _text(config.get("game")),
        "algorithm": _text(settings.get("algorithm")),
        "seed": _number(settings.get("seed")),
        "target_score": _number(settings.get("target_score")),
        "total_frames": total,
        "report_seconds": _number(settings.get("report_seconds")) or 5.0,
        "group": _group({**config, "run": settings}),
        "started": ages["config.json"] or ages["metrics.jsonl"] or 0.0,
        **{
            key: last.get(key)
            for key in ("frames", "score_mean", "episodes", "wall_seconds", "frames_per_second")
        },
        "eta_seconds": _seconds_left(reports, settings, total),
        "result": result,
    }


def _number(value: Any) -> float | None:
    """Return a finite number, or None."""
    found = number(value)
    return None if math.isnan(found) else found


def _text(value: Any) -> str:
    return value[:200] if isinstance(value, str) else ""


def compared_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return what runs share if they differ only by their seed and where they end, from a ``config.json``.

    The names of nested settings are joined by dots, e.g. ``hyper.network.hidden``.
    """
    of_run = config.get("run")
    compared = {key: value for key, value in of_run.items() if key not in NOT_COMPARED} if of_run else {}
    parts = {key: config.get(key) for key in ("game", "env", "hyper", "topology")}
    return _flat({**parts, "run": compared})


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found = {}
    for name, value in settings.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def _group(config: dict[str, Any]) -> str:
    """Return a digest of the compared settings."""
    try:
        text = json.dumps(compared_settings(config), sort_keys=True)
    except RecursionError:
        text = ""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _seconds_left(
    reports: list[dict[str, float]], settings: dict[str, Any], total: float | None
) -> float | None:
    """Return the time until all frames are played, at the rate of the last reports, or the time limit is up.

    The run ends by what comes first. None if neither is known.
    """
    recent = [report for report in reports if {"frames", "wall_seconds"} <= report.keys()]
    if not recent:
        return None
    last, ends = recent[-1], []
    limit = _limit_seconds(settings.get("time_limit"))
    if limit is not None:
        ends.append(limit - last["wall_seconds"])
    frames = last["frames"] - recent[0]["frames"]
    seconds = last["wall_seconds"] - recent[0]["wall_seconds"]
    if total is not None and frames > 0 and seconds > 0:
        ends.append((total - last["frames"]) * seconds / frames)
    return _number(max(0.0, min(ends))) if ends else None


def _limit_seconds(text: Any) -> float | None:
    """Return a saved time limit, e.g. ``10m``, in seconds; None if there is none."""
    try:
        return parse_duration(text) if isinstance(text, str) and text else None
    except UsageError:
        return None
