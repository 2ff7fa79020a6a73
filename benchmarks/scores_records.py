"""The results that fill the table of scores, wherever they are stored, and which cell each of them fills."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parcade.config.train import TrainConfig
from parcade.suite.plan import Cell, Plan
from parcade.training_flags import parse_training
from parcade.zoo import agent_names, card

RESULTS = Path(__file__).resolve().parent / "results"
STORED = RESULTS / "scores.jsonl"
ZOO_PROTOCOLS = {"scores": "null-op-30min", "greedy_scores": "greedy-30min"}
"""``benchmarks/zoo.py`` scores agents by these rules: 100 unseen episodes, null-op starts, 30 minutes."""
FEWEST_FRAMES = 0.99
"""Share of its frames after which a training counts as complete."""


@dataclass(frozen=True)
class Record:
    """A result: the score of one training under one protocol. Times are in seconds, None if unknown."""

    command: str
    protocol: str
    score: float
    frames: int
    wall_seconds: float | None
    cpu_seconds: float | None
    commit: str
    machine: dict[str, Any]
    curve: dict[str, list[float]] | None = None
    training_score: float | None = None  # mean of the training's last 100 episodes, if `score` is another


@dataclass(frozen=True)
class Training:
    """What a command trains. Two commands with equal trainings differ at most in length and bookkeeping."""

    game: str
    algorithm: str
    engine: str
    seed: int
    hyper: Any
    env: Any
    topology: Any


def training_of(config: TrainConfig) -> Training:
    run = config.run
    return Training(
        config.game, run.algorithm, run.engine, run.seed, config.hyper, config.env, config.topology
    )


def differences(config: TrainConfig, other: TrainConfig) -> str:
    """Return the hyper-parameters and environment settings in which ``config`` differs, with its values."""

    def changed(own: Any, others: Any) -> Iterator[str]:
        for each in dataclasses.fields(own):
            value, before = getattr(own, each.name), getattr(others, each.name)
            if dataclasses.is_dataclass(value):
                yield from changed(value, before)
            elif value != before:
                yield f"{each.name} {value:g}" if isinstance(value, float) else f"{each.name} {value}"

    return ", ".join([*changed(config.hyper, other.hyper), *changed(config.env, other.env)])


@functools.cache
def parsed(command: str) -> TrainConfig:
    """Return the config of ``parcade train ...``. Errors: UsageError, as the command itself would give."""
    before, flag, after = command.partition(" --seed ")
    if not flag:
        return _parsed(command)
    seed, _, rest = after.partition(" ")
    config = _parsed(f"{before} {rest}".strip())
    return dataclasses.replace(config, run=dataclasses.replace(config.run, seed=int(seed)))


@functools.cache
def _parsed(command: str) -> TrainConfig:
    """Parsing takes 0.1 s, so all seeds of a training share one config."""
    return parse_training(command.split()[2:])


def command_of(plan: Plan, cell: Cell) -> str:
    """Return the command of a cell as a user would type it."""
    return " ".join(["parcade", *plan.command(cell)])


def asked_of(plan: Plan, cell: Cell) -> TrainConfig:
    """Return the config of a cell."""
    return parsed(command_of(plan, cell))


def stored_records() -> list[Record]:
    """Return the results this script has stored."""
    lines = STORED.read_text().splitlines() if STORED.exists() else []
    return [Record(**json.loads(line)) for line in lines]


def training_records(records: list[Record]) -> list[Record]:
    """Return the evaluated trainings once more, with the scores that they had while they trained."""
    return [
        dataclasses.replace(
            record, protocol="training", score=record.training_score, training_score=None, curve=None
        )
        for record in records
        if record.training_score is not None
    ]


def zoo_records() -> list[Record]:
    """Return the scores of the agents in the package."""
    cards = [card(name) for name in agent_names()]
    return [
        Record(
            row["command"], protocol, row[scores]["score_mean"], row["frames"],
            row.get("wall_seconds"), row["cpu_seconds"], row["commit"], row["machine"],
        )
        for row in cards
        for scores, protocol in ZOO_PROTOCOLS.items()
        if scores in row
    ]  # fmt: skip


def cray_records() -> list[Record]:
    """Return the results in ``benchmarks/results/cray``, which are scores of the training itself."""
    rows = [json.loads(path.read_text()) for path in sorted((RESULTS / "cray").glob("*.json"))]
    return [
        Record(
            row["command"], "training", row["score_mean"], row["frames"],
            row["wall_seconds"], row["cpu_seconds"], row["commit"], row["machine"],
        )
        for row in rows
    ]  # fmt: skip


def all_records() -> list[Record]:
    """Return every result, this script's own first."""
    stored = stored_records()
    return [*stored, *training_records(stored), *zoo_records(), *cray_records()]


def is_complete(frames: int, config: TrainConfig, asked: TrainConfig) -> bool:
    """Return whether a run of ``frames`` with this config is as long as ``asked``, and no longer."""
    if asked.run.time_limit:
        return config.run.time_limit == asked.run.time_limit
    is_longer = config.run.total_frames > asked.run.total_frames / FEWEST_FRAMES
    return frames >= FEWEST_FRAMES * asked.run.total_frames and not is_longer


def find(plan: Plan, cell: Cell, records: list[Record]) -> tuple[Record | None, Record | None]:
    """Return a cell's result, and one of a training of another length, the longest; each may be None.

    A result of another protocol is neither.
    """
    asked = asked_of(plan, cell)
    training = training_of(asked)
    same = [
        record
        for record in records
        if record.protocol == plan.protocol and training_of(parsed(record.command)) == training
    ]
    complete = [record for record in same if is_complete(record.frames, parsed(record.command), asked)]
    other = [record for record in same if record not in complete]
    return (
        next(iter(complete), None),
        max(other, key=lambda record: record.frames, default=None),
    )
