"""The evaluations of a run's kept policies, ``evaluations.jsonl``: a learning curve of unseen episodes.

Each line is one policy played by one set of rules: the counters of its training, the mean score under
``evaluation/RULES``, and the complete result. So the file is read like the run's metrics.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parcade.errors import UsageError, remedy
from parcade.files.kept_policies import policy_directory
from parcade.files.locks import alone_in
from parcade.files.reading import fits, read_object
from parcade.files.run_directory import POLICIES, write_text
from parcade.history.series import number
from parcade.report.metric_names import MetricNames
from parcade.report.metrics import AXES
from parcade.report.tensorboard_writer import replace_curve

FILE = "evaluations.jsonl"
PREFIX = "evaluation/"
MOST_EPISODES = 5_000
"""Of each policy: their scores are in one line."""
MOST_LINE_BYTES = 1 << 17
"""Of as many scores with all their digits, and the rest of a line."""


def metric_of(protocol: str, *, greedy: bool) -> str:
    """Return the name of the metric of a protocol, or of the training's own rules if there is none."""
    return PREFIX + (protocol or ("greedy" if greedy else "sampled"))


def is_evaluation(metric: str) -> bool:
    """Return whether a metric is in ``evaluations.jsonl``."""
    return metric.startswith(PREFIX)


def meaning_of(metric: str) -> str:
    """Return what a metric of the file means; empty for another one."""
    if not is_evaluation(metric):
        return ""
    rules = metric.removeprefix(PREFIX)
    return f"mean score of kept policies in episodes that the training did not play; rules: {rules}"


@dataclass(frozen=True)
class Evaluation:
    """One line: the score of a policy under the rules of ``metric``.

    ``progress`` holds the counters of its training, by the names of ``AXES``, at least ``frames``;
    ``policy_sha256`` is that of its weights; ``result`` is what ``parcade eval`` stores.
    """

    metric: str
    policy_sha256: str
    progress: dict[str, float]
    result: dict[str, Any]

    @property
    def frames(self) -> int:
        """Frames of the policy's training."""
        return int(self.progress["frames"])

    def to_json(self) -> dict[str, Any]:
        """Return the line as an object."""
        return {
            **self.progress,
            self.metric: self.result["score_mean"],
            "policy_sha256": self.policy_sha256,
            "result": self.result,
        }


def training_of(policy: Path) -> tuple[dict[str, float], str]:
    """Return the counters and the SHA-256 of a kept policy, without reading its weights.

    Errors: UsageError when they are damaged.
    """
    data = read_object(policy / "checkpoint.json")
    progress, sums = data.get("progress"), data.get("sha256")
    if not (fits(sums, list[str]) and len(sums) == 1 and isinstance(progress, dict)):
        raise UsageError(f"{policy} is damaged; delete it")
    counters = {name: progress.get(name) for name in AXES}
    if not fits(counters, dict[str, float]) or counters["frames"] != int(policy.name):
        raise UsageError(f"{policy} is damaged; delete it")
    return counters, sums[0]


def training_at(run: Path, frames: int) -> tuple[dict[str, float], str]:
    """Return ``training_of`` the policy that a run keeps at these frames, with digest "" if it keeps none."""
    policy = policy_directory(run, frames)
    return training_of(policy) if policy.exists() else ({}, "")


def _is_sound(row: Evaluation) -> bool:
    """Whether all values have the types and ranges of those that ``to_json`` writes."""
    result, frames = row.result, row.progress["frames"]
    if not (fits(row.policy_sha256, str) and fits(result, dict[str, Any]) and fits(frames, int)):
        return False
    scores = result.get("scores")
    if not (isinstance(scores, list) and scores):
        return False
    return not any(
        math.isnan(number(value)) for value in (*row.progress.values(), result.get("score_mean"), *scores)
    )


class Evaluations:
    """The lines of one run's file. Errors: UsageError when the file is damaged or cannot be written."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.path = run / FILE
        self.rows = self._read()

    def _read(self) -> list[Evaluation]:
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeError) as error:
            raise UsageError(f"{self.path} cannot be read ({error}); delete it") from None
        return [self._parsed(number, line) for number, line in enumerate(lines, 1)]

    def _parsed(self, number: int, line: str) -> Evaluation:
        try:
            data = json.loads(line)
            (metric,) = filter(is_evaluation, data)
            progress = {"frames": data["frames"]}  # earlier versions wrote fewer counters than today's
            progress |= {name: data[name] for name in AXES if name in data}
            row = Evaluation(metric, data["policy_sha256"], progress, data["result"])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            row = None
        if row is None or not _is_sound(row):
            raise UsageError(f"{self.path}, line {number}, is damaged; delete the file to evaluate again")
        return row

    def check_rules(self, metric: str, wanted: dict[str, Any]) -> None:
        """Check that the stored results of a metric have these fields. Errors: UsageError."""
        of_metric = [row.result for row in self.rows if row.metric == metric]
        for result, (name, value) in itertools.product(of_metric, wanted.items()):
            if result.get(name) != value:
                raise UsageError(
                    f"{self.path} holds {metric} with {name}={result.get(name)}, got {value}; use the same, "
                    "or delete the file to evaluate again"
                )

    def find(self, metric: str, frames: int, policy_sha256: str) -> Evaluation | None:
        """Return the evaluation of a policy by these rules, if it is stored."""
        for row in self.rows:
            if (row.metric, row.frames, row.policy_sha256) == (metric, frames, policy_sha256):
                return row
        return None

    def add(self, new: Evaluation) -> bool:
        """Store an evaluation in place of one at the same frames. Return False if its policy is gone.

        A resume of the run may have removed it while it played.
        """
        with alone_in(self._run / POLICIES):
            self.rows = self._read()
            if training_at(self._run, new.frames)[1] != new.policy_sha256:
                return False
            others = [row for row in self.rows if (row.metric, row.frames) != (new.metric, new.frames)]
            self.rows = sorted([*others, new], key=lambda row: (row.metric, row.frames))
            self._write()
        return True

    def show_in_tensorboard(self, metric: str, names: MetricNames) -> None:
        """Write a metric as events of TensorBoard, in the run's folder of its name. Errors: OSError.

        Not next to the training's events: TensorBoard reads no more of a file once a later one is in its
        folder. Scores over decisions need rows with ``steps``, which earlier versions did not write.
        """
        with alone_in(self._run / POLICIES):
            self.rows = self._read()
            points = [
                (int(row.progress[names.axis]), float(row.result["score_mean"]))
                for row in self.rows
                if row.metric == metric and names.axis in row.progress
            ]
            replace_curve(self._run / metric, names.evaluation or metric, points)

    def _write(self) -> None:
        try:
            write_text(self.path, "".join(json.dumps(row.to_json()) + "\n" for row in self.rows))
        except OSError as error:
            raise UsageError(
                f"{self.path} cannot be written ({error.strerror}); {remedy(error)}, and start again"
            ) from None
