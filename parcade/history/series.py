"""Metrics of a run as columns: the end of a growing ``metrics.jsonl``, all of it, or an even sample.

A file of 10,000 reports has 12 MB and takes a tenth of a second to parse. The list of runs needs only the
newest reports, which are read from the end. Curves of many runs start from an even sample of lines; the
complete columns follow, read once and then extended by what was appended.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parcade.files.reading import open_regular

TAIL_BYTES = 1 << 15
MOST_LAST_REPORTS = 20
SAMPLE_BYTES = 1 << 13
"""Read for one report in the middle of a file: at least two of them, the first incomplete."""
MOST_LINE_BYTES = 1 << 16
MOST_COLUMNS = 500
"""Further names are ignored: a damaged file must not fill the memory."""
CHUNK_BYTES = 1 << 20
END_BYTES = 256
"""Compared before a file is read further."""


def parsed(line: bytes, most_bytes: int | None = None) -> dict[str, Any] | None:
    """Return the object in one line, or None if it is none or too long."""
    if len(line) > (most_bytes or MOST_LINE_BYTES):
        return None
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return report if isinstance(report, dict) else None


def number(value: Any) -> float:
    """Return a value of a report as a finite number, or NaN if it is none."""
    if value.__class__ is float or value.__class__ is int:  # faster than isinstance, and leaves out bool
        try:
            return value if math.isfinite(value) else math.nan
        except OverflowError:
            return math.nan
    return math.nan


def numbers(report: dict[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a report by name."""
    return {name: found for name, value in report.items() if not math.isnan(found := number(value))}


def _complete_lines(descriptor: int, start: int, length: int) -> list[bytes]:
    """Return the complete lines of a part of a file. From its middle, the first line is incomplete."""
    lines = os.pread(descriptor, length, start).split(b"\n")
    return lines[1:-1] if start else lines[:-1]


def last_reports(path: Path) -> list[dict[str, float]]:
    """Return the last ``MOST_LAST_REPORTS`` of a file, oldest first; none if it does not exist."""
    try:
        with open_regular(path) as descriptor:
            start = max(0, os.fstat(descriptor).st_size - TAIL_BYTES)
            lines = _complete_lines(descriptor, start, TAIL_BYTES)
    except OSError:
        return []
    return [numbers(report) for line in lines[-MOST_LAST_REPORTS:] if (report := parsed(line)) is not None]


def sampled_reports(path: Path, count: int) -> list[dict[str, float]]:
    """Return about ``count`` reports at even distances in a file, in order, the newest one included."""
    found = []
    try:
        with open_regular(path) as descriptor:
            last = max(0, os.fstat(descriptor).st_size - SAMPLE_BYTES)
            for start in np.linspace(0, last, count).astype(int).tolist():
                lines = _complete_lines(descriptor, start, SAMPLE_BYTES)
                if lines and (report := parsed(lines[0])) is not None:
                    found.append(numbers(report))
    except OSError:
        return []
    return [*found, *last_reports(path)[-1:]]


class Columns:
    """Numbers of reports by name; missing ones are NaN."""

    def __init__(self, reports: Sequence[dict[str, Any]] = ()) -> None:
        self.rows = 0
        self._columns: dict[str, array] = {}
        self.extend(reports)

    @property
    def names(self) -> list[str]:
        """Names of all columns."""
        return list(self._columns)

    def extend(self, reports: Sequence[dict[str, Any]]) -> None:
        """Add reports, column by column: a chunk of lines takes half the time that single lines take.

        All is read before anything changes, so after an error the same reports can be added again.
        """
        added: dict[str, array] = {}
        num_columns = len(self._columns)
        for name in dict.fromkeys(itertools.chain.from_iterable(reports)):
            if name not in self._columns:
                if num_columns == MOST_COLUMNS:
                    continue
                num_columns += 1
            added[name] = array("d", [math.nan] * (self.rows - len(self._columns.get(name, ()))))
            added[name].extend([number(report.get(name)) for report in reports])
        for name, values in added.items():
            self._columns.setdefault(name, array("d")).extend(values)
        self.rows += len(reports)

    def copy(self, names: Iterable[str] | None = None) -> Columns:
        """Return a copy of these columns, or of all."""
        found = Columns()
        found.rows = self.rows
        wanted = self._columns if names is None else self._columns.keys() & set(names)
        found._columns = {name: self._columns[name][:] for name in wanted}
        return found

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column ``[rows]`` float64, a copy; all NaN for an unknown name."""
        column = self._columns.get(name, array("d"))
        known = np.array(column, np.float64)
        return np.concatenate([known, np.full(self.rows - len(known), np.nan)])


class MetricsFile:
    """The columns of one growing file. Threads may use it at once.

    ``grows=False``: every change replaces the file, so a changed one is read from its beginning.
    """

    def __init__(self, path: Path, *, grows: bool = True, most_line_bytes: int = MOST_LINE_BYTES) -> None:
        self.path = path
        self._grows = grows
        self._most_line_bytes = most_line_bytes
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._columns = Columns()
        self._offset = 0
        self._end = b""
        self._inode: int | None = None
        self._changed_at = 0

    def read_new(self, names: Iterable[str] | None = None) -> Columns:
        """Read what was appended since the last call and return a copy of the columns ``names``, or of all.

        A resumed run replaces the file by a shorter one; then all of it is read again.
        """
        with self._lock:
            try:
                with open_regular(self.path) as descriptor:
                    found = os.fstat(descriptor)
                    # The number of a file that was deleted may be given to the one that replaces it.
                    is_another = found.st_ino != self._inode or self._end != self._last_read(descriptor)
                    if is_another or (found.st_mtime_ns != self._changed_at and not self._grows):
                        self._forget()
                        self._inode, self._changed_at = found.st_ino, found.st_mtime_ns
                    self._read_until(descriptor, found.st_size)
                    self._end = self._last_read(descriptor)
            except OSError:
                self._forget()
            return self._columns.copy(names)

    def _last_read(self, descriptor: int) -> bytes:
        """Return the last bytes before the place up to which the file was read."""
        start = max(0, self._offset - END_BYTES)
        return os.pread(descriptor, self._offset - start, start)

    def _read_until(self, descriptor: int, size: int) -> None:
        rest = b""
        start = self._offset
        while start < size:
            chunk = os.pread(descriptor, CHUNK_BYTES, start)
            if not chunk:
                break
            start += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            reports = (parsed(line, self._most_line_bytes) for line in lines)
            self._columns.extend([report for report in reports if report is not None])
            self._offset = start - len(rest)
            if len(rest) > self._most_line_bytes:
                rest = rest[: self._most_line_bytes]  # too long for a report; its end is still found

    @property
    def unread_bytes(self) -> int:
        """About how many bytes ``read_new`` would read; another thread may be reading them now."""
        try:
            found = self.path.stat()
        except OSError:
            return 0
        return found.st_size - self._offset if found.st_ino == self._inode else found.st_size


class Curve(NamedTuple):
    """A decimated series: per bucket the last x, and mean, minimum and maximum of y, ``[buckets]`` each."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def to_json(self) -> dict[str, list[float]]:
        """Return lists of numbers with six significant digits."""
        return {name: [float(f"{v:.6g}") for v in values.tolist()] for name, values in self._asdict().items()}


def decimated(x: np.ndarray, y: np.ndarray, buckets: int) -> Curve:
    """Divide a series ``[k]`` into at most ``buckets`` runs of equal length, without its NaN.

    No extreme is lost: every bucket keeps its minimum and maximum.
    """
    valid = ~(np.isnan(x) | np.isnan(y))
    x, y = x[valid], y[valid]
    if len(y) <= buckets:
        return Curve(x, y, y, y)
    starts = np.arange(buckets) * len(y) // buckets
    ends = np.append(starts[1:], len(y))
    with np.errstate(over="ignore"):  # the sum of numbers that a damaged file may hold
        means = np.add.reduceat(y, starts) / (ends - starts)
    return Curve(x[ends - 1], means, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts))
