"""The types of the public names; ``__init__.py`` imports each from its module on first use."""

from parcade.agent import load
from parcade.algorithms.table import register_algorithm
from parcade.atari.consoles import make_arcade as Arcade
from parcade.config import RunConfig, TrainConfig
from parcade.envs import EnvSettings, make_vec
from parcade.envs.backends import register_backend
from parcade.errors import UsageError
from parcade.integrations.gym import make
from parcade.learning import Trained, learn
from parcade.model.networks import NetworkConfig, register_network
from parcade.report.callbacks import Callback
from parcade.train import run_training, start_run

__all__ = [
    "Arcade",
    "Callback",
    "EnvSettings",
    "NetworkConfig",
    "RunConfig",
    "TrainConfig",
    "Trained",
    "UsageError",
    "__version__",
    "learn",
    "load",
    "make",
    "make_vec",
    "register_algorithm",
    "register_backend",
    "register_network",
    "run_training",
    "start_run",
]

__version__: str
