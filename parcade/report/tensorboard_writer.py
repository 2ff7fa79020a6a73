"""TensorBoard events as a destination of reports (``--track tensorboard``).

TensorBoard's own writer has a thread that prints a traceback when it cannot write, and never writes again.
Here each report is appended at once, or not at all: half a report would spoil the rest of the file.
"""

from __future__ import annotations

import io
import itertools
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parcade.report.metric_names import MetricNames
from parcade.report.writers import Writer, append_whole

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

FILE_PREFIX = "events.out.tfevents."
BEFORE_ALL = -1
_FILES = itertools.count()  # a process may write several files of events within a second


class TensorBoardWriter(Writer):
    """Appends reports to a file of events in the run's directory.

    ``resumed_at``: position on the x axis where a resumed run continues; TensorBoard hides what is after it,
    and not the report at it.
    """

    name = "TensorBoard events"

    def __init__(self, folder: Path, names: MetricNames, resumed_at: int | None = None) -> None:
        self._names, self._resumed_at = names, resumed_at
        self._path = _new_file(folder)
        self._is_begun = False

    def write(self, metrics: dict[str, Any]) -> None:
        report = _report(int(metrics[self._names.axis]), self._names.rename(metrics))
        events = [report] if self._is_begun else [*_first_events(self._resumed_at), report]
        append_whole(self._path, _records(events))
        self._is_begun = True


def replace_curve(folder: Path, name: str, points: Iterable[tuple[int, float]]) -> None:
    """Write (step, value) points as the only file of events in a folder. Errors: OSError.

    TensorBoard, if it is running, shows these points in place of those that it has read from earlier files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    earlier = list(folder.glob(f"{FILE_PREFIX}*"))
    reports = [_report(step, {name: value}) for step, value in points]
    append_whole(_new_file(folder), _records([*_first_events(BEFORE_ALL), *reports]))
    for path in earlier:
        path.unlink(missing_ok=True)


def _new_file(folder: Path) -> Path:
    """Return the name of a new file. TensorBoard reads the files of a folder in the order of their names."""
    seconds, process = f"{time.time():.0f}", f"{socket.gethostname()}.{os.getpid()}"
    return folder / f"{FILE_PREFIX}{seconds}.{process}.{next(_FILES):04d}"


def _first_events(resumed_at: int | None) -> list[Event]:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    events = [Event(file_version="brain.Event:2")]
    if resumed_at is not None:
        # TensorBoard hides what is at the step of a start as well.
        start = SessionLog(status=SessionLog.START)
        events.append(Event(step=resumed_at + 1, session_log=start))
    return events


def _report(step: int, values: dict[str, float]) -> Event:
    # Imported at the first report: it takes a tenth of the time to the first step.
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    summary = Summary(value=[Summary.Value(tag=tag, simple_value=float(v)) for tag, v in values.items()])
    return Event(step=step, summary=summary)


def _records(events: Iterable[Event]) -> bytes:
    """Return events as they are in a file."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    content = io.BytesIO()
    writer = RecordWriter(content)
    for event in events:
        event.wall_time = time.time()
        writer.write(event.SerializeToString())
    return content.getvalue()
