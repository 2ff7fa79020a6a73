"""``parcade eval DIR --curve``: score every policy that a training kept, while it trains or afterwards."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from parcade.commands.evaluation_plan import EvalFlags, Plan, plan_of, play, rules_of
from parcade.errors import UsageError
from parcade.files.kept_policies import kept_policies, policy_directory
from parcade.files.outputs import why_not_writable
from parcade.history.bands import half_width
from parcade.history.evaluations import Evaluation, Evaluations, metric_of, training_of
from parcade.history.runs import Runs
from parcade.report.metric_names import MetricNames, names_for

if TYPE_CHECKING:
    from parcade.agent import Agent
    from parcade.config import TrainConfig

WAIT_SECONDS = 2.0
"""Between two looks for further policies."""


def evaluate_curve(flags: EvalFlags) -> int:
    """Score all kept policies, oldest first; with ``follow``, until the training has ended."""
    from parcade.config import load_config
    from parcade.zoo import agent_directory

    run = agent_directory(flags.run)
    config = load_config(run, flags.env)
    if not (config.run.keep_policy_frames > 0 or kept_policies(run)):
        raise UsageError(f"{run} kept no policies, which make a curve; train with --keep-policy-frames N")
    curve, runs = _Curve(flags, run, _tensorboard_names(config)), Runs(run)
    is_told = False
    while True:
        # Asked before looking for policies: the last one is written before the training ends.
        may_come = flags.follow and _is_training(runs)
        if curve.evaluate_next():
            continue
        if not may_come:
            break
        if not is_told:
            print(f"waiting for further policies of {run}; Ctrl-C ends", file=sys.stderr)
            is_told = True
        time.sleep(WAIT_SECONDS)
    if not curve.rows:
        raise UsageError(f"{run} has kept no policy so far; wait for the first one with --follow")
    curve.show_stored_in_tensorboard()
    if flags.json:
        print(json.dumps([row.to_json() for row in curve.rows]))
    else:
        print(
            f"scores in {curve.path}; to draw them: parcade compare {run} --metric {curve.metric} --out DIR"
        )
    return 0


def _is_training(runs: Runs) -> bool:
    return any(summary["status"] in ("waiting", "running") for summary in runs.scan())


def _tensorboard_names(config: TrainConfig) -> MetricNames | None:
    """Return the names that the training's metrics have in TensorBoard, if they go there."""
    from parcade.algorithms.table import algorithm_row

    if "tensorboard" not in config.run.track:
        return None
    return names_for(config.run.metric_names, algorithm_row(config.run.algorithm).make.head)


class _Curve:
    """Scores of a run's kept policies, under the rules of the flags.

    Attributes: ``rows`` of the policies shown so far, ``path`` of their file, and ``metric``, known from the
    first policy on.
    """

    def __init__(self, flags: EvalFlags, run: Path, names: MetricNames | None) -> None:
        self.rows: list[Evaluation] = []
        self.metric = ""
        self._flags = flags
        self._run = run
        self._rules = rules_of(flags)
        self._stored = Evaluations(run)
        self._names = names
        self._is_shown = False
        self._warning = ""
        self._plan: Plan | None = None

    @property
    def path(self) -> Path:
        """The file of the scores."""
        return self._stored.path

    def evaluate_next(self) -> bool:
        """Score and show the oldest policy that was not shown yet; return whether there was one.

        A resume of the run removes policies and makes them again, so they are told apart by their weights.
        """
        shown = {(row.frames, row.policy_sha256) for row in self.rows}
        for policy in reversed(kept_policies(self._run)):
            try:
                progress, digest = training_of(policy)
            except UsageError:
                if policy.exists():
                    raise
                continue  # a resume removed it
            if (int(policy.name), digest) not in shown:
                self._show(self._score(int(policy.name), progress, digest))
                return True
        return False

    def _show(self, row: Evaluation | None) -> None:
        if row is None:
            return
        self.rows.append(row)
        if not self._flags.json:
            print(_line(row), flush=True)

    def _score(self, frames: int, progress: dict[str, float], digest: str) -> Evaluation | None:
        """Return the stored evaluation of a policy, or play and store it; None if it is removed meanwhile."""
        agent = None
        try:
            if self._plan is None:
                agent = self._load(frames)
                self._make_plan(agent)
            found = self._stored.find(self.metric, frames, digest)
            if found is not None:
                return found
            check_writable(self._run)
            agent = agent or self._load(frames)
        except UsageError:
            if policy_directory(self._run, frames).exists():
                raise
            return None
        result = play(agent, self._plan, f"{frames:,} frames")
        new = Evaluation(self.metric, digest, progress, result)
        if not self._stored.add(new):
            return None
        self.show_in_tensorboard()
        return new

    def show_in_tensorboard(self) -> None:
        """Write the curve for TensorBoard, if the training's metrics go there; warn if that fails."""
        if self._names is None:
            return
        try:
            self._stored.show_in_tensorboard(self.metric, self._names)
            self._is_shown = True
        except OSError as error:
            self._warn_once(f"warning: TensorBoard does not show the curve ({error.strerror or error})")

    def _warn_once(self, warning: str) -> None:
        if warning != self._warning:
            print(warning, file=sys.stderr)
        self._warning = warning

    def show_stored_in_tensorboard(self) -> None:
        """Do so for a curve of which nothing was played now, if the run's directory can be written."""
        if not self._is_shown and why_not_writable(self._run) is None:
            self.show_in_tensorboard()

    def _load(self, frames: int) -> Agent:
        from parcade.agent import load

        return load(self._flags.run, self._flags.env, frames)

    def _make_plan(self, agent: Agent) -> None:
        """Derive the rules and the name of the metric. Errors: UsageError if other rules are stored there."""
        from parcade.evaluate import epsilon_of

        plan = plan_of(self._flags, self._rules, agent)
        greedy = bool(plan.settings["greedy"] or agent.acts_greedily)
        self.metric = metric_of(plan.protocol, greedy=greedy)
        wanted = {
            "episodes": plan.episodes,
            "seed": plan.settings["seed"],
            "greedy": greedy,
            "epsilon": epsilon_of(agent, plan.settings["epsilon"], greedy=plan.settings["greedy"]),
            "start_states_sha256": plan.start_states_sha256,
        }
        self._stored.check_rules(self.metric, wanted)
        self._plan = plan


def check_writable(run: Path) -> None:
    """Check that scores can be stored, before any episode is played. Errors: UsageError."""
    if reason := why_not_writable(run):
        raise UsageError(f"run directory {run} cannot be written ({reason}); evaluate a copy of it")


def _line(row: Evaluation) -> str:
    """Return an evaluation in words."""
    result, scores = row.result, np.array(row.result["scores"])
    spread = ""
    if len(scores) > 1:
        half = half_width(scores)
        spread = f" (95 %: {scores.mean() - half:.2f} to {scores.mean() + half:.2f})"
    return (
        f"{row.frames:>13,} frames: mean {result['score_mean']:.2f}{spread}, "
        f"median {np.median(scores):g}, over {len(scores)} episodes"
    )
