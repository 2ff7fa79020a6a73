"""Destinations of reports: ``metrics.jsonl``, TensorBoard events, and ``wandb_writer.py``.

A destination that fails, such as a full disk, is reported, and the run continues.
"""

from __future__ import annotations

import errno
import functools
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from parcade.report.metric_names import MetricNames

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Writer:
    """A destination of reports."""

    name: ClassVar[str]

    def write(self, metrics: dict[str, Any]) -> None:
        """Write one report. Errors: OSError."""
        raise NotImplementedError

    def close(self, *, failed: bool) -> None:
        """Write what is buffered. ``failed``: the run ends with an exception. Errors: OSError."""


class MetricsFile(Writer):
    """Appends reports to ``metrics.jsonl`` in the run's directory, one JSON object per line.

    After a resume, it first removes the reports from after the checkpoint, so that the history is consistent.
    """

    name = "metrics.jsonl"

    def __init__(self, run: Path, resumed_at_frames: int | None = None) -> None:
        self._path = run / "metrics.jsonl"
        if resumed_at_frames is not None:
            self._cut(resumed_at_frames)

    def _cut(self, frames: int) -> None:
        if not self._path.exists():
            return
        kept = []
        for line in self._path.read_bytes().split(b"\n"):
            try:
                if json.loads(line)["frames"] <= frames:
                    kept.append(line + b"\n")
            except (ValueError, KeyError, TypeError):
                continue  # an incomplete line, left when the process was killed, or a damaged one
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.write_bytes(b"".join(kept))
            temporary.replace(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def write(self, metrics: dict[str, Any]) -> None:
        # JSON has no NaN and no infinity.
        finite = {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in metrics.items()}
        line = (json.dumps(finite, allow_nan=False) + "\n").encode()
        with open(self._path, "ab", buffering=0) as file:
            size = file.tell()
            try:
                written = file.write(line)
                if written < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(size)  # half a line would spoil the next one
                raise


class TensorBoardWriter(Writer):
    """Writes TensorBoard events to the run's directory.

    ``resumed_at``: position on the x axis where a resumed run continues; TensorBoard hides what is after it,
    and not the report at it.
    """

    name = "TensorBoard events"

    def __init__(self, run: Path, names: MetricNames, resumed_at: int | None = None) -> None:
        self._run, self._names, self._resumed_at = run, names, resumed_at

    @functools.cached_property
    def _events(self) -> SummaryWriter:
        """The event file.

        It is created at the first report: its import takes 10 % of the time to the first step.
        """
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard hides what is at the purge step as well.
        after = None if self._resumed_at is None else self._resumed_at + 1
        return SummaryWriter(str(self._run), purge_step=after)

    def write(self, metrics: dict[str, Any]) -> None:
        for name, value in self._names.rename(metrics).items():
            self._events.add_scalar(name, value, metrics[self._names.axis])
        self._events.flush()

    def close(self, *, failed: bool) -> None:
        if "_events" in vars(self):
            self._events.close()


class Writers(Writer):
    """Writes every report to several destinations. A context manager that closes them at the end of a run.

    If one fails, it warns once and continues with the others, and tries again with the next report.
    """

    name = "metrics"

    def __init__(self, writers: Sequence[Writer], say: Callable[[str], None]) -> None:
        self._writers, self._say = writers, say
        self._failing: set[str] = set()

    def write(self, metrics: dict[str, Any]) -> None:
        for writer in self._writers:
            try:
                writer.write(metrics)
                self._failing.discard(writer.name)
            except OSError as error:
                if writer.name not in self._failing:
                    reason = error.strerror or error
                    self._say(f"warning: cannot write {writer.name} ({reason}); training continues without")
                self._failing.add(writer.name)

    def close(self, *, failed: bool) -> None:
        for writer in self._writers:
            try:
                writer.close(failed=failed)
            except OSError as error:
                self._say(f"warning: {writer.name}: some reports are missing ({error.strerror or error})")

    def __enter__(self) -> Writers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=kind is not None)
