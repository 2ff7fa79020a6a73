"""Metrics on disk: ``metrics.jsonl`` and TensorBoard events.

A full disk is reported, and the run continues.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class MetricsWriter:
    """Appends reports to ``metrics.jsonl`` and to TensorBoard events in the run's directory.

    After a resume, it first removes the reports from after the checkpoint, so that the history is consistent.
    """

    def __init__(self, run: Path, say: Callable[[str], None], resumed_at_frames: int | None = None) -> None:
        self._say = say
        self._run, self._resumed_at_frames = run, resumed_at_frames
        self._path = run / "metrics.jsonl"
        self._failed = False
        if resumed_at_frames is not None:
            self._cut(resumed_at_frames)

    @functools.cached_property
    def _events(self) -> SummaryWriter:
        """The TensorBoard writer.

        It is created at the first report: its import takes 10 % of the time to the first step.
        """
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._run), purge_step=self._resumed_at_frames)

    def _cut(self, frames: int) -> None:
        if not self._path.exists():
            return
        kept = []
        for line in self._path.read_text().splitlines():
            try:
                if json.loads(line)["frames"] <= frames:
                    kept.append(line)
            except (ValueError, KeyError):
                continue  # an incomplete line, left when the process was killed
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text("".join(line + "\n" for line in kept))
        temporary.replace(self._path)

    def write(self, metrics: dict[str, Any]) -> None:
        """Append one report. If that fails, warn once and continue."""
        try:
            with open(self._path, "a") as file:
                file.write(json.dumps(metrics) + "\n")
            for name, value in metrics.items():
                if value is not None:
                    self._events.add_scalar(name, value, metrics["frames"])
            self._events.flush()
            self._failed = False
        except OSError as error:
            if not self._failed:
                self._say(
                    f"warning: cannot write metrics ({error.strerror}); training continues, free some space"
                )
            self._failed = True

    def close(self) -> None:
        """Flush and close the event file."""
        try:
            if "_events" in vars(self):
                self._events.close()
        except OSError as error:
            self._say(f"warning: the TensorBoard event file is incomplete ({error.strerror})")
