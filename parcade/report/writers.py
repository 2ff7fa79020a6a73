"""Destinations of reports: ``metrics.jsonl``, ``tensorboard_writer.py`` and ``wandb_writer.py``.

A destination that fails, such as a full disk, is reported, and the run continues.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from parcade.files.json_lines import append_whole, remove_later_lines


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
            remove_later_lines(self._path, resumed_at_frames)

    def write(self, metrics: dict[str, Any]) -> None:
        # JSON has no NaN and no infinity.
        finite = {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in metrics.items()}
        append_whole(self._path, (json.dumps(finite, allow_nan=False) + "\n").encode())


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
