"""Trained agents that are part of the package: ``zoo:pong`` wherever a run's directory is expected.

An agent is a small run directory, ``agents/NAME/``: ``config.json``, one checkpoint with the policy alone,
and ``card.json`` with its scores and how it was trained. ``benchmarks/zoo.py`` makes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parcade.errors import unknown_name
from parcade.files.run_directory import read_json

PREFIX = "zoo:"
AGENTS = Path(__file__).parent / "agents"


def agent_names() -> list[str]:
    """Return the names of the agents, without the prefix, in alphabetical order."""
    return sorted(path.parent.name for path in AGENTS.glob("*/card.json"))


def is_in_zoo(run: str | Path) -> bool:
    """Return whether ``run`` names an agent of the zoo rather than a directory."""
    return str(run).startswith(PREFIX)


def agent_directory(run: str | Path) -> Path:
    """Return the directory of a trained agent: of ``zoo:NAME``, or ``run`` itself.

    Errors: UsageError with the nearest name if the zoo has no such agent.
    """
    if not is_in_zoo(run):
        return Path(run)
    name = str(run).removeprefix(PREFIX)
    if name not in agent_names():
        raise unknown_name("zoo agent", name, agent_names())
    return AGENTS / name


def card(name: str) -> dict[str, Any]:
    """Return the card of an agent.

    Keys: ``game``, ``algorithm``, ``frames`` of training, ``command``, ``commit``, ``cpu_seconds``, ``seed``;
    ``scores``, the result of ``parcade.evaluate.evaluate`` without its list; ``greedy_scores``, the same of
    greedy play.
    """
    return read_json(agent_directory(PREFIX + name) / "card.json")
