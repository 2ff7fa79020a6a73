"""parcade: deep reinforcement learning on Atari 2600 games from pixels, massively in parallel.

The public names are imported on first use, so that ``import parcade`` is fast.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

# A waiting OpenMP thread must not occupy a core that emulation could use. Torch reads it when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"

_HOMES = {
    "Arcade": "parcade.atari",
    "Callback": "parcade.report.callbacks",
    "EnvSettings": "parcade.envs",
    "NetworkConfig": "parcade.model.policy",
    "TrainConfig": "parcade.config",
    "Trained": "parcade.learning",
    "RunConfig": "parcade.config",
    "UsageError": "parcade.errors",
    "learn": "parcade.learning",
    "load": "parcade.agent",
    "make": "parcade.integrations.gym",
    "make_vec": "parcade.envs",
    "register_algorithm": "parcade.algorithms.table",
    "register_backend": "parcade.envs.backends",
    "register_network": "parcade.model.networks",
    "run_training": "parcade.train",
    "start_run": "parcade.train",
}

__all__ = [*_HOMES, "__version__"]


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module = importlib.import_module(_HOMES[name])
        _register_games()
        return getattr(module, name)
    raise AttributeError(f"module 'parcade' has no attribute {name!r}")


def _register_games() -> None:
    """Register the games with Gymnasium if it is imported: its user may call make("parcade/Pong-v0")."""
    if "gymnasium" in sys.modules:
        importlib.import_module("parcade.integrations.gym")


_register_games()
