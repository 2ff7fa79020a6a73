"""What a suite consists of, and its file ``suite.json``: the same command continues the same suite."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

from parcade.durations import parse_duration
from parcade.envs.games import is_atari
from parcade.errors import UsageError, remedy
from parcade.files.reading import fits
from parcade.files.run_directory import read_json, write_json
from parcade.suite.protocols import Protocol, protocol_of
from parcade.training_flags import parse_training

T = TypeVar("T")
_BUDGET = re.compile(r"^(\d+(?:\.\d+)?)([kM]?)-(steps|frames)$")
MOST_SEEDS = 1000
# Of a seed, or of their number: longer ones exceed 64 bits, and very long ones Python's own limit.
MOST_DIGITS = 20
_FACTOR = {"": 1, "k": 1_000, "M": 1_000_000}


class Cell(NamedTuple):
    """One training of a suite."""

    game: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the run's directory."""
        return f"{self.game.replace('/', '_')}-s{self.seed}"


@dataclass(frozen=True)
class Plan:
    """A suite: every game is trained with every seed, by one algorithm under one protocol."""

    games: tuple[str, ...]
    seeds: tuple[int, ...]
    algorithm: str
    budget: str
    protocol: str
    flags: tuple[str, ...]

    @property
    def cells(self) -> list[Cell]:
        """All trainings, the first seed of every game first."""
        return [Cell(game, seed) for seed in self.seeds for game in self.games]

    @property
    def rules(self) -> Protocol:
        """The protocol itself."""
        return protocol_of(self.protocol)

    def command(self, cell: Cell) -> list[str]:
        """Arguments of ``parcade`` that train a cell, without its run directory."""
        budget = budget_flags(self.budget, self._frame_skip if is_atari(cell.game) else 1)
        return ["train", *self._words(cell.game), "--seed", str(cell.seed), *self._until, *budget]

    def _words(self, game: str) -> list[str]:
        return [
            game, "--algorithm", self.algorithm, "--env-preset", self.rules.env_preset,
            "--threads-per-rank", "1", *self.flags,
        ]  # fmt: skip

    @functools.cached_property
    def _frame_skip(self) -> int:
        """Frames per step of every console: presets and agents to start from set it, too.

        Errors: UsageError.
        """
        game = next(game for game in self.games if is_atari(game))
        return parse_training(self._words(game)).env.mean_frame_skip

    @property
    def _until(self) -> tuple[str, ...]:
        """Flags that remove the target score of a preset, which would end trainings before their budget."""
        given = {flag.split("=")[0].replace("_", "-") for flag in self.flags}
        return ("--target-score", "None") if "--preset" in given and "--target-score" not in given else ()


def budget_flags(budget: str, step_frames: float = 1) -> list[str]:
    """Translate ``10M-steps``, ``200M-frames``, ``2h`` or ``2:00:00`` to flags of ``parcade train``.

    ``step_frames`` is the number of frames per step. Errors: UsageError for anything else.
    """
    amount = _BUDGET.match(budget)
    if amount is not None:
        number = float(amount[1]) * _FACTOR[amount[2]]
        frames = number * step_frames if amount[3] == "steps" else number
        if 1 <= frames < math.inf:
            return ["--total-frames", str(round(frames))]
    elif _is_duration(budget):
        return ["--time-limit", budget]
    raise UsageError(f"budget {budget!r} is not a budget; use e.g. 10M-steps, 200M-frames or 2h")


def set_by_budget(budget: str) -> tuple[str, ...]:
    """Return the flags that a budget sets. Next to a duration, ``--total-frames`` remains the user's."""
    return ("--time-limit",) if _is_duration(budget) else ("--time-limit", "--total-frames")


def _is_duration(budget: str) -> bool:
    """Return whether a budget is a time. A bare number is none: it could count steps or frames."""
    try:
        parse_duration(budget)
    except UsageError:
        return False
    return budget.strip()[-1] in "smh" or ":" in budget


def seeds_of(text: str) -> tuple[int, ...]:
    """Return the seeds of ``3`` (the seeds 0, 1, 2) or of a list such as ``5,6,7``. Errors: UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) <= MOST_DIGITS for part in parts):
        raise UsageError(
            f"seeds {reprlib.repr(text)} are not seeds; use a number of seeds, e.g. 3, or a list, e.g. 5,6,7"
        )
    if len(parts) == 1 and int(parts[0]) > MOST_SEEDS:
        raise UsageError(f"{int(parts[0]):,} seeds are more than {MOST_SEEDS:,}; name seeds as a list: 5,6,7")
    seeds = tuple(range(int(parts[0]))) if len(parts) == 1 else tuple(map(int, parts))
    if not seeds or len(set(seeds)) < len(seeds):
        raise UsageError(f"seeds {text!r} name no seed, or one twice; use e.g. 3, or 5,6,7")
    return seeds


def open_suite(folder: Path, plan: Plan) -> None:
    """Write ``suite.json`` into the suite's directory, or check that it holds this suite.

    More seeds, or other games, extend a suite. Errors: UsageError when anything else differs.
    """
    path = folder / "suite.json"
    new = as_json(plan)
    if path.exists():
        old = as_json(read_plan(folder))
        for name in ("algorithm", "budget", "protocol", "flags"):
            if old[name] != new[name]:
                raise UsageError(
                    f"{folder} holds a suite with {name}={old[name]}, not {new[name]}; use another --dir"
                )
        new |= {
            name: [*old[name], *(x for x in new[name] if x not in old[name])] for name in ("games", "seeds")
        }
    write_plan(path, new)


def write_plan(path: Path, data: dict[str, Any]) -> None:
    """Write a plan, as ``as_json`` returns it. Errors: UsageError when it cannot be written."""
    try:
        write_json(path, data)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror or error}); {remedy(error)}, or use another --dir"
        ) from None


def read_plan(folder: Path) -> Plan:
    """Return the plan of an existing suite. Errors: UsageError when there is none, or a damaged one."""
    path = folder / "suite.json"
    plan = from_json(Plan, path, "parcade suite")
    for name in ("games", "seeds"):
        if not getattr(plan, name):
            raise UsageError(f"{path}: {name}=[] is damaged; it was not written by parcade suite")
    return plan


def from_json(kind: type[T], path: Path, writer: str) -> T:
    """Return the plan that ``as_json`` made and the command ``writer`` saved. Errors: UsageError."""
    data, values = read_json(path, writer.removeprefix("parcade ")), {}
    for name, expected in get_type_hints(kind).items():
        if name not in data:
            raise UsageError(f"{path} lacks {name!r}; it was not written by {writer}")
        value = data[name]
        if not fits(value, expected):
            raise UsageError(f"{path}: {name}={value!r} is damaged; it was not written by {writer}")
        values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def as_json(plan: Any) -> dict[str, Any]:
    """Return the fields of a plan, with lists for tuples."""
    values = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
