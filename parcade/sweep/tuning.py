"""Trials on Ray Tune, which places them on a cluster, limits their number and stops those that fall behind.

Tune's own files contain pickles, which parcade never reads: Tune works in a temporary directory, and a
continued sweep gives a new Tune the trials from its own files (``trials.py``). Import this module after
``RayEngine`` has started, since Ray reads its token when it is imported.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, TrialScheduler
from ray.tune.search import Searcher

from parcade.errors import UsageError
from parcade.sweep.objective import CHECKS, Budget, Objective
from parcade.sweep.plan import SweepPlan
from parcade.sweep.runs import Failed, Training, TrialRuns, set_aside_others
from parcade.sweep.search import Search
from parcade.sweep.trials import Stage, Trial, run_of, write_trial

REDUCTION = 3
"""ASHA lets a third of the trials pass each of its checks, the first after 1/9 of the budget."""
PATIENCE_SECONDS = 1.0
"""A trial answers Tune at least this often, so that it can be stopped."""
# No output and no files of Tune's, and no handler of Ctrl-C; trials report without a value while they train.
TUNE_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}


class SweepTrainable(tune.Trainable):
    """A trial in a process of Tune's: trains, and reports every check as ``check`` and ``value``."""

    def setup(self, config: dict[str, Any]) -> None:
        self._runs: TrialRuns | None = None
        self._config = config

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Serve another trial, which saves the seconds that a new process would take."""
        self.cleanup()
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        try:
            if self._runs is None:
                trainings = [Training(*each) for each in self._config["trainings"]]
                self._runs = TrialRuns(
                    trainings, Budget(*self._config["budget"]), Objective(self._config["target"])
                )
            if not self._runs.next_value(PATIENCE_SECONDS):
                return {}
        except Exception as error:  # whatever it is, the sweep goes on and reports it
            self.cleanup()
            shown = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
            return {"failure": shown, "done": True}
        check, value = len(self._runs.values), self._runs.values[-1]
        return {"check": check, "done": check == CHECKS, **({} if value is None else {"value": value})}

    def cleanup(self) -> None:
        """Stop the trainings, after they have saved."""
        if self._runs is not None:
            self._runs.stop()


class Ledger(Searcher):
    """Gives trials to Tune, first those that an earlier start left unfinished, and writes down their results.

    ``search`` proposes the settings of new trials with the numbers in ``numbers``. ``failure`` is the error
    of a file that could not be written; then the sweep stops as at Ctrl-C.
    """

    def __init__(
        self,
        plan: SweepPlan,
        folder: Path,
        stage: Stage,
        unfinished: list[Trial],
        *,
        search: Search,
        numbers: list[int],
        is_stopping: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(metric="value", mode=plan.goal.mode)
        self._plan, self._folder, self._stage = plan, folder, stage
        self._waiting, self._numbers, self._search = deque(unfinished), deque(numbers), search
        self._is_stopping, self._say = is_stopping, say
        self._active: dict[str, Trial] = {}
        self.failure: UsageError | None = None

    def is_stopping(self) -> bool:
        """Return whether the user or a failure ends the sweep."""
        return self.failure is not None or self._is_stopping()

    def _write(self, trial: Trial) -> None:
        try:
            write_trial(self._folder, self._stage, trial)
        except UsageError as error:  # raised in Tune, it would be a traceback
            self.failure = error

    def _make_room(self, trial: Trial) -> None:
        for seed in trial.seeds:
            run = run_of(self._folder, trial, seed).absolute()
            try:
                set_aside_others(run, self._plan.training_of(trial.settings, seed, run))
            except OSError as error:
                self.failure = UsageError(
                    f"{run} is a run of other settings and cannot be renamed ({error.strerror}); delete it"
                )

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        is_new = self._stage == "confirmations" or not self._waiting
        if self._waiting:
            trial = self._waiting.popleft()
        elif self._numbers:
            number = self._numbers.popleft()
            trial = Trial(number, self._search.propose(number), self._plan.seeds)
        else:
            return Searcher.FINISHED
        if is_new:
            self._make_room(trial)
        trial.state, trial.values, trial.reason = "started", [], ""
        if self.failure is None:
            self._write(trial)
        if self.failure is not None:
            return Searcher.FINISHED
        self._active[trial_id] = trial
        self._say(f"{self._named(trial)}: {' '.join(f'{k}={v}' for k, v in trial.settings.items())}")
        return {
            "trainings": [self._training(trial, seed) for seed in trial.seeds],
            "budget": list(self._plan.length),
            "target": self._plan.goal.target,
        }

    def _training(self, trial: Trial, seed: int) -> list[Any]:
        run = run_of(self._folder, trial, seed).absolute()
        start = self._plan.training_of(trial.settings, seed, run)
        return list(Training(str(run), start, self._plan.resuming(run), os.getcwd()))

    def _named(self, trial: Trial) -> str:
        confirms = self._stage == "confirmations"
        return f"trial {trial.number}" + (f", confirmation with seed {trial.seeds[0]}" if confirms else "")

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if "check" in result:
            self._active[trial_id].values.append(result.get("value"))

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        trial = self._active.pop(trial_id)
        result = result or {}
        if result.get("check") == len(trial.values) + 1:  # the last result, which comes only here
            trial.values.append(result.get("value"))
        if error or "failure" in result:
            trial.state = "failed"
            trial.reason = result.get("failure", "Ray could not start it, or lost its process")
        elif len(trial.values) == CHECKS:
            trial.state = "finished"
        elif self.is_stopping():
            return  # the file says that it has started; the same command continues it
        else:
            trial.state = "stopped"
        self._write(trial)
        if self._stage == "trials":
            self._search.tell(trial)
        self._say(f"{self._named(trial)}: {self._outcome(trial)}")

    def _outcome(self, trial: Trial) -> str:
        if trial.state == "failed":
            return f"failed: {trial.reason}"
        at = "" if trial.state == "finished" else f", stopped after {trial.share:.0%} of its budget"
        return f"{self._plan.goal.label} {trial.value:.4g}{at}"

    def save(self, checkpoint_path: str) -> None:
        """Tune saves nothing that parcade needs."""

    def restore(self, checkpoint_path: str) -> None:
        raise AssertionError("sweeps are continued from their own files")


class _StopAll(tune.Stopper):
    """Ends the experiment when the user asks for it."""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._is_stopping()


def make_asha(plan: SweepPlan, known: list[Trial]) -> TrialScheduler:
    """Return ASHA (Li 2020, arXiv 1810.05934), which compares trials with the known ones, too."""
    asha = ASHAScheduler(
        time_attr="check", metric="value", mode=plan.goal.mode, max_t=CHECKS, reduction_factor=REDUCTION
    )
    for trial in known:
        past: Any = SimpleNamespace(trial_id=f"past-{trial.number}")
        asha.on_trial_add(None, past)
        for check, value in enumerate(trial.values, 1):
            if value is not None:
                asha.on_trial_result(None, past, {"check": check, "value": value})
        asha.on_trial_remove(None, past)
    return asha


def run_trials(
    ledger: Ledger,
    scheduler: TrialScheduler | None,
    folder: Path,
    *,
    resources: dict[str, float],
    at_once: int,
) -> None:
    """Run the ledger's trials to their end, ``at_once`` at a time, or until a stop is requested.

    Errors: UsageError when the file of a trial cannot be written.
    """
    os.environ.update(TUNE_SETTINGS)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # it misses the files that the settings omit
    work = folder / ".tune"
    shutil.rmtree(work, ignore_errors=True)  # of a sweep that was killed
    try:
        tune.Tuner(
            tune.with_resources(SweepTrainable, resources),
            tune_config=tune.TuneConfig(
                search_alg=ledger, scheduler=scheduler, num_samples=-1,
                max_concurrent_trials=at_once, reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                storage_path=str(work.absolute()), verbose=0, stop=_StopAll(ledger.is_stopping),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()  # fmt: skip
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if ledger.failure is not None:
        raise ledger.failure
