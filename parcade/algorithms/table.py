"""The table of algorithms: adding one is a file and a row."""

from __future__ import annotations

from typing import NamedTuple

from parcade.algorithms.a2c import A2C, A2CConfig
from parcade.algorithms.base import Algorithm, AlgorithmConfig
from parcade.algorithms.ppo import PPO, PPOConfig
from parcade.algorithms.pqn import PQN, PQNConfig
from parcade.algorithms.reinforce import Reinforce, ReinforceConfig
from parcade.algorithms.vtrace import VTrace, VTraceConfig
from parcade.errors import unknown_name


class AlgorithmRow(NamedTuple):
    """An algorithm, its hyper-parameters, and the engines it runs on."""

    make: type[Algorithm]
    config: type[AlgorithmConfig]
    engines: tuple[str, ...]


SYNCHRONOUS = ("local", "serial", "mpi")

ALGORITHMS: dict[str, AlgorithmRow] = {
    "reinforce": AlgorithmRow(Reinforce, ReinforceConfig, SYNCHRONOUS),
    "a2c": AlgorithmRow(A2C, A2CConfig, SYNCHRONOUS),
    "ppo": AlgorithmRow(PPO, PPOConfig, SYNCHRONOUS),
    "pqn": AlgorithmRow(PQN, PQNConfig, SYNCHRONOUS),
    "vtrace": AlgorithmRow(VTrace, VTraceConfig, SYNCHRONOUS),
}


def algorithm_row(name: str) -> AlgorithmRow:
    """The row of this name. Errors: UsageError with the nearest name."""
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]
