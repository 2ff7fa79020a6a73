"""Which settings the next trial has: drawn at random, or proposed by Optuna.

A search is rebuilt from the finished trials of a sweep, so that nothing of it has to be saved.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from parcade.sweep.plan import SweepPlan
from parcade.sweep.space import Value, random_settings
from parcade.sweep.trials import Trial

STARTUP_TRIALS = 8
"""Trials that Optuna's TPE draws at random before it has a model."""


class Search(Protocol):
    """Proposes the settings of new trials."""

    def propose(self, number: int) -> dict[str, Value]:
        """Return the settings of the trial with this number."""

    def tell(self, trial: Trial) -> None:
        """Take the result of a trial that is over, also of one that an earlier start proposed."""


class RandomSearch:
    """Draws every setting independently."""

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan

    def propose(self, number: int) -> dict[str, Value]:
        return random_settings(self._plan.axes, seed=self._plan.search_seed, number=number)

    def tell(self, trial: Trial) -> None:
        """Nothing depends on results."""


class OptunaSearch:
    """Optuna's tree-structured Parzen estimator (Bergstra 2011), through Ray Tune.

    ``told`` trials are given to it as evaluated points. A trial that the scheduler stopped counts with the
    last value it reached.
    """

    def __init__(self, plan: SweepPlan, told: list[Trial]) -> None:
        import optuna
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._axes = plan.axes
        # A continued search must not repeat the draws of the first one, so its seed depends on what it knows.
        seed = int(np.random.default_rng([plan.search_seed, len(told)]).integers(2**31))
        sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True, constant_liar=True
        )
        self._tune: Any = OptunaSearch(
            {name: axis.distribution() for name, axis in plan.axes.items()},
            metric="value", mode=plan.goal.mode, sampler=sampler,
        )  # fmt: skip
        self._proposed: set[int] = set()
        for trial in told:
            self.tell(trial)

    def propose(self, number: int) -> dict[str, Value]:
        self._proposed.add(number)
        drawn = self._tune.suggest(str(number))
        return {name: axis.readable(drawn[name]) for name, axis in self._axes.items()}

    def tell(self, trial: Trial) -> None:
        failed = trial.state == "failed"
        if trial.number in self._proposed:
            result = None if failed else {"value": trial.value}
            self._tune.on_trial_complete(str(trial.number), result, error=failed)
        else:
            self._tune.add_evaluated_point(trial.settings, trial.value, error=failed)


def make_search(plan: SweepPlan, told: list[Trial]) -> Search:
    """Return the search of a plan that knows these trials."""
    return OptunaSearch(plan, told) if plan.search == "optuna" else RandomSearch(plan)
