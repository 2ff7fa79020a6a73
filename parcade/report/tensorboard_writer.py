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
_FILES = itertools.count()  # a process may write several files of events within a second


class TensorBoardWriter(Writer):
    """Appends reports to a file of events in the run's directory.

    ``resumed_at``: position on the x axis where a resumed run continues; TensorBoard hides what is after it,
    and not the report at it. Everything in earlier files is hidden by -1.
    """

    name = "TensorBoard events"

    def __init__(self, folder: Path, names: MetricNames, resumed_at: int | None = None) -> None:
        self._names, self._resumed_at = names, resumed_at
        kind = f"{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{next(_FILES)}"
        self._path = folder / f"{FILE_PREFIX}{kind}"
        self._is_begun = False

    def write(self, metrics: dict[str, Any]) -> None:
        # Imported at the first report: it takes a tenth of the time to the first step.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        renamed = self._names.rename(metrics)
        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in renamed.items()]
        report = Event(step=int(metrics[self._names.axis]), summary=Summary(value=values))
        append_whole(self._path, _records([report] if self._is_begun else [*self._first_events(), report]))
        self._is_begun = True

    def _first_events(self) -> list[Event]:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        events = [Event(file_version="brain.Event:2")]
        if self._resumed_at is not None:
            # TensorBoard hides what is at the step of a start as well.
            start = SessionLog(status=SessionLog.START)
            events.append(Event(step=self._resumed_at + 1, session_log=start))
        return events


def _records(events: Iterable[Event]) -> bytes:
    """Return events as they are in a file."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    content = io.BytesIO()
    writer = RecordWriter(content)
    for event in events:
        event.wall_time = time.time()
        writer.write(event.SerializeToString())
    return content.getvalue()
