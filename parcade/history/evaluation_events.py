"""The evaluations of a run as events of TensorBoard, in the run's folder ``evaluation/RULES``.

Not next to the training's events: TensorBoard reads no more of a file once a later one is in its folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parcade.history.evaluations import Evaluation
from parcade.report.metric_names import MetricNames
from parcade.report.tensorboard_writer import FILE_PREFIX, TensorBoardWriter

BEFORE_ALL = -1


class EvaluationEvents:
    """Writes one curve of ``evaluations.jsonl`` over the axis of ``names``, into a folder named like it.

    The first score replaces the files of earlier commands by one with all scores, so that scores which a
    resume removed go too. Later ones are appended, and appear while TensorBoard runs.
    """

    def __init__(self, run: Path, names: MetricNames) -> None:
        self._run = run
        self._names = names
        self._writer: TensorBoardWriter | None = None

    def add(self, new: Evaluation, stored: Sequence[Evaluation]) -> None:
        """Write a new evaluation, which is in ``stored``, too. Errors: OSError."""
        if self._writer is not None:
            self._write(self._writer, new)
            return
        folder = self._run / new.metric
        folder.mkdir(parents=True, exist_ok=True)
        earlier = list(folder.glob(f"{FILE_PREFIX}*"))
        writer = TensorBoardWriter(folder, self._names, BEFORE_ALL)
        for row in stored:
            if row.metric == new.metric:
                self._write(writer, row)
        self._writer = writer
        for path in earlier:
            path.unlink(missing_ok=True)

    def _write(self, writer: TensorBoardWriter, row: Evaluation) -> None:
        name, axis = self._names.evaluation or row.metric, self._names.axis
        writer.write({axis: row.progress[axis], name: row.result["score_mean"]})
