"""The table of algorithms. To add one, add a file and a row."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from parcade.algorithms.a2c import A2C, A2CConfig
from parcade.algorithms.a3c import A3C, A3CConfig
from parcade.algorithms.apex import Apex, ApexConfig
from parcade.algorithms.async_q import AsyncQ, AsyncQConfig
from parcade.algorithms.base import Algorithm, AlgorithmConfig
from parcade.algorithms.dqn import DQN, DQNConfig
from parcade.algorithms.es import ES, ESConfig
from parcade.algorithms.ga3c import GA3C, GA3CConfig
from parcade.algorithms.gorila import Gorila, GorilaConfig
from parcade.algorithms.impala import Impala, ImpalaConfig
from parcade.algorithms.ppo import PPO, PPOConfig
from parcade.algorithms.pqn import PQN, PQNConfig
from parcade.algorithms.reinforce import Reinforce, ReinforceConfig
from parcade.algorithms.vtrace import VTrace, VTraceConfig
from parcade.errors import UsageError, unknown_name
from parcade.plugins import check_registered, load_plugins


class AlgorithmRow(NamedTuple):
    """An algorithm, its hyper-parameters and the engines it supports."""

    make: type[Algorithm]
    config: type[AlgorithmConfig]
    engines: tuple[str, ...]
    topology: str = ""
    """The driver of ``parcade.topology`` for an algorithm with parts; empty for one loop on every rank."""


SYNCHRONOUS = ("local", "serial", "mpi")
ASYNCHRONOUS = ("serial", "ray")
ENGINES = ("local", "serial", "mpi", "ray")

ALGORITHMS: dict[str, AlgorithmRow] = {
    "reinforce": AlgorithmRow(Reinforce, ReinforceConfig, SYNCHRONOUS),
    "a2c": AlgorithmRow(A2C, A2CConfig, SYNCHRONOUS),
    "ppo": AlgorithmRow(PPO, PPOConfig, SYNCHRONOUS),
    "pqn": AlgorithmRow(PQN, PQNConfig, SYNCHRONOUS),
    "vtrace": AlgorithmRow(VTrace, VTraceConfig, SYNCHRONOUS),
    "dqn": AlgorithmRow(DQN, DQNConfig, SYNCHRONOUS),
    "a3c": AlgorithmRow(A3C, A3CConfig, ASYNCHRONOUS, "bundles"),
    "async-q": AlgorithmRow(AsyncQ, AsyncQConfig, ASYNCHRONOUS, "bundles"),
    "gorila": AlgorithmRow(Gorila, GorilaConfig, ASYNCHRONOUS, "bundles"),
    "apex": AlgorithmRow(Apex, ApexConfig, ASYNCHRONOUS, "replayed"),
    "impala": AlgorithmRow(Impala, ImpalaConfig, ASYNCHRONOUS, "unrolls"),
    "ga3c": AlgorithmRow(GA3C, GA3CConfig, ASYNCHRONOUS, "predicted"),
    "es": AlgorithmRow(ES, ESConfig, (*SYNCHRONOUS, "ray"), "population"),
}


FIELDS_OF_SOURCES = {
    "rollout": ("unroll_length",),
    "staggered": ("unroll_length", "num_groups"),
    "games": ("games_per_update",),
    "replay": (
        "unroll_length",
        "batch_size",
        "replay_capacity",
        "replay_spill",
        "save_replay",
        "learning_starts",
        "n_step",
        "priority_exponent",
    ),
    "population": ("population", "sigma", "games_per_member"),
}
"""The hyper-parameters that make an experience source, by ``source_kind``."""


def support_matrix() -> str:
    """Return a text table of the engines each algorithm supports."""
    width = max(map(len, ALGORITHMS))
    lines = [" " * width + "  " + "  ".join(ENGINES)]
    for name, row in ALGORITHMS.items():
        cells = [("yes" if engine in row.engines else "-").ljust(len(engine)) for engine in ENGINES]
        lines.append(f"{name:<{width}}  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def algorithm_row(name: str) -> AlgorithmRow:
    """Return the row of an algorithm. Errors: UsageError with the nearest name."""
    if name not in ALGORITHMS:
        load_plugins()
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


def register_algorithm(
    name: str,
    make: type[Algorithm],
    config: type[AlgorithmConfig],
    *,
    engines: tuple[str, ...] = SYNCHRONOUS,
) -> None:
    """Add an algorithm, for ``parcade train --algorithm NAME``; the fields of ``config`` become its flags.

    Errors: UsageError for a name that is in use, other classes, an engine that only algorithms with parts run
    on, an unknown ``source_kind`` or ``head``, one that does not take the continuous actions that the
    algorithm declares, or a config without defaults or the fields of its experience source.
    """
    check_registered("algorithm", name, make)
    if not (isinstance(make, type) and issubclass(make, Algorithm)):
        raise UsageError(f"algorithm {name!r} is {make!r}; expected a class derived from Algorithm")
    if not (isinstance(config, type) and issubclass(config, AlgorithmConfig)):
        raise UsageError(
            f"the config of algorithm {name!r} is {config!r}; expected a class derived from AlgorithmConfig"
        )
    _check_parts(name, make, config)
    if name in ALGORITHMS:
        raise UsageError(f"algorithm {name!r} exists already; choose another name")
    if strange := set(engines) - set(SYNCHRONOUS):
        raise UsageError(f"engines={', '.join(sorted(strange))}: expected some of {', '.join(SYNCHRONOUS)}")
    ALGORITHMS[name] = AlgorithmRow(make, config, engines)


def _check_parts(name: str, make: type[Algorithm], config: type[AlgorithmConfig]) -> None:
    """Check what the experience source and the policy of an algorithm are made from. Errors: UsageError."""
    for attribute, known in (("source_kind", FIELDS_OF_SOURCES), ("head", ("actor_critic", "q"))):
        value = getattr(make, attribute, None)
        if value not in known:
            raise UsageError(
                f"the {attribute} of algorithm {name!r} is {value!r}; expected one of {', '.join(known)}"
            )
    for method in ("optimizer", "update"):
        if getattr(make, method) is getattr(Algorithm, method):
            raise UsageError(f"algorithm {name!r} has no method {method} of its own; define it")
    if make.continuous and (make.head == "q" or make.source_kind == "replay"):
        raise UsageError(
            f"algorithm {name!r} is continuous, but learns from source_kind {make.source_kind!r} with head "
            f"{make.head!r}; Q values and replays are of discrete actions only: leave continuous at False"
        )
    fields = {field.name for field in dataclasses.fields(config)}
    try:
        config()
    except TypeError as error:  # a field without a default
        raise UsageError(
            f"{config.__name__} cannot be made without arguments ({error}); give defaults"
        ) from error
    missing = [field for field in FIELDS_OF_SOURCES[make.source_kind] if field not in fields]
    if missing:
        raise UsageError(
            f"{config.__name__} has no {', '.join(missing)}, but algorithm {name!r} learns from source_kind "
            f"{make.source_kind!r}; add the field, as in parcade's own configs"
        )
