"""What a sweep consists of, and its file ``sweep.json``: the same command continues the same sweep."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parcade.config import TrainConfig
from parcade.envs.games import is_atari, naming_flags
from parcade.errors import UsageError
from parcade.suite.plan import as_json, budget_flags, from_json, write_plan
from parcade.sweep.objective import Budget, Objective, parse_objective
from parcade.sweep.space import Space, Value, flags_of, parse_space
from parcade.train import check_start
from parcade.training_flags import parse_training

# Flags that every trial starts with; the user's own override them. A report per second lets a scheduler
# judge short trials, too.
DEFAULT_FLAGS = ("--threads-per-rank", "1", "--report-seconds", "1")
FOLDERS = ("trials", "confirmations", "runs")
EXTENSIBLE = ("trials", "confirm", "confirm_seeds")
"""What may change when a sweep is continued."""


@dataclass(frozen=True)
class SweepPlan:
    """A sweep: trainings of one task that differ in the settings of a space.

    ``training`` are arguments of ``parcade train``, the game included. Every trial trains with all ``seeds``.
    The ``confirm`` best trials train again, with ``confirm_seeds`` seeds that the search has not used.
    """

    training: tuple[str, ...]
    space: tuple[str, ...]
    search: str
    scheduler: str
    objective: str
    budget: str
    seeds: tuple[int, ...]
    search_seed: int
    trials: int
    confirm: int
    confirm_seeds: int

    @functools.cached_property
    def base(self) -> TrainConfig:
        """The config of the user's command, without budget and settings of the space."""
        return parse_training([*self.training])

    @functools.cached_property
    def config(self) -> TrainConfig:
        """The config of a training without the settings of the space."""
        return parse_training(self.command({}))

    @functools.cached_property
    def axes(self) -> Space:
        """The space itself."""
        return parse_space(self.space, self.base)

    @property
    def goal(self) -> Objective:
        """The objective itself."""
        return parse_objective(self.objective)

    @property
    def length(self) -> Budget:
        """The budget of a training, as its reports count it."""
        limit = self.config.run.time_limit_seconds
        return (
            Budget("frames", self.config.run.total_frames) if limit is None else Budget("wall_seconds", limit)
        )

    @property
    def fresh_seeds(self) -> tuple[int, ...]:
        """The seeds of the confirmation."""
        first = max(self.seeds) + 1
        return tuple(range(first, first + self.confirm_seeds))

    def command(self, settings: dict[str, Value]) -> list[str]:
        """Arguments of ``parcade train`` for these settings, without defaults, seed and run directory."""
        # The frame skip is no setting of an algorithm, so no space has it.
        flags = budget_flags(self.budget, self.base.env.mean_frame_skip if is_atari(self.base.game) else 1)
        # Also without a target: a preset may set one.
        return [*self.training, *flags_of(settings), *flags, f"--target-score={self.goal.target_text}"]

    def training_of(self, settings: dict[str, Value], seed: int, run: Path) -> list[str]:
        """Arguments of ``parcade`` for one run of a trial."""
        words = self.command(settings)
        at = 0 if words[0].startswith("-") else 1  # after the game, if it comes first
        words[at:at] = DEFAULT_FLAGS
        return ["train", *words, f"--seed={seed}", f"--run-dir={run}"]

    def resuming(self, run: Path) -> list[str]:
        """Arguments of ``parcade`` that continue an interrupted run."""
        return ["train", "--resume", str(run), *naming_flags(self.config.game)]

    def check(self, *, on_this_machine: bool) -> None:
        """Check every bound and every listed value with the other settings of the command.

        ``on_this_machine``: also check what the machine refuses, e.g. a device that it lacks.
        Errors: UsageError of the config, which names the setting.
        """
        without = self._refusal({}, on_this_machine)
        for name, axis in self.axes.items():
            for value in axis.ends:
                if refusal := self._refusal({name: value}, on_this_machine):
                    of_space = "" if refusal == without else f"--space {name}, value {value}: "
                    raise UsageError(of_space + refusal)

    def _refusal(self, settings: dict[str, Value], on_this_machine: bool) -> str:
        """Return why a training with these settings would be refused; empty if it would start."""
        try:
            config = parse_training(self.command(settings))
            if on_this_machine:
                check_start(config)
        except UsageError as error:
            return str(error)
        return ""


def open_sweep(folder: Path, plan: SweepPlan) -> None:
    """Write ``sweep.json``, or check that the directory holds this sweep, which more trials extend.

    Errors: UsageError when anything else differs.
    """
    path, new = folder / "sweep.json", as_json(plan)
    if path.exists() and any((folder / "trials").glob("*.json")):  # one without a trial may change
        old = as_json(read_sweep(folder))
        for name in new.keys() - set(EXTENSIBLE):
            if old[name] != new[name]:
                raise UsageError(
                    f"{folder} holds a sweep with {name}={_shown(old[name])}, not {_shown(new[name])}; "
                    "use another --dir"
                )
        new["trials"] = max(new["trials"], old["trials"])
    write_plan(path, new)


def read_sweep(folder: Path) -> SweepPlan:
    """Return the plan of an existing sweep. Errors: UsageError when there is none, or a damaged one."""
    path = folder / "sweep.json"
    plan = from_json(SweepPlan, path, "parcade sweep")
    if not plan.seeds:
        raise UsageError(f"{path}: seeds=[] is damaged; it was not written by parcade sweep")
    return plan


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
